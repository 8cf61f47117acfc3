"""Decodes protobuf values by a descriptor. Fields are matched by number, and unknown fields are ignored."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from anabranch.errors import InvalidConfigurationError
from anabranch.schemas.protobuf import MessageType
from anabranch.spark.values.formats import Getter, Path

_TIMESTAMP = "google.protobuf.Timestamp"

_TYPES: dict[int, DataType] = {
    FieldDescriptor.CPPTYPE_INT32: IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: LongType(),
    # Half of the unsigned numbers do not fit into a signed type of 32 bits.
    FieldDescriptor.CPPTYPE_UINT32: LongType(),
    FieldDescriptor.CPPTYPE_UINT64: LongType(),
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: StringType(),
}


class ProtobufRows:
    """Decodes protobuf values into messages."""

    def __init__(self, message: MessageType, kind: Any) -> None:
        """`kind` is the Arrow type of the column; its fields are a subset of the message's."""
        descriptor = message.descriptor()
        self._parse = message_factory.GetMessageClass(descriptor).FromString
        self._getters: dict[Path, list[Getter]] = {}
        self._collect(kind, descriptor, ())

    def rows(self, values: Sequence[bytes]) -> list[Any]:
        return list(map(self._parse, values))

    def getters(self, kind: Any, path: Path) -> Sequence[Getter]:
        return self._getters[path]

    def leaves(self, kind: Any, values: list[Any]) -> Any:
        return pa.array(values, kind)

    def _collect(self, kind: Any, descriptor: Descriptor, path: Path) -> None:
        fields = [_field_of(descriptor, part.name) for part in kind]
        self._getters[path] = [_getter(field) for field in fields]
        for part, field in zip(kind, fields, strict=True):
            inner = part.type.value_type if pa.types.is_list(part.type) else part.type
            if pa.types.is_map(inner):
                inner, field = inner.item_type, field.message_type.fields_by_name["value"]
            if pa.types.is_struct(inner):
                self._collect(inner, field.message_type, (*path, part.name))


def _field_of(descriptor: Descriptor, name: str) -> Any:
    field = descriptor.fields_by_name.get(name)
    if field is None:
        raise InvalidConfigurationError(f"the message {descriptor.full_name} has no field {name}")
    return field


def _getter(field: Any) -> Getter:
    name = field.name
    get = attrgetter(name)
    convert = _converter(field)
    if _is_map(field):
        value = _converter(field.message_type.fields_by_name["value"])
        return lambda row: {key: found if value is None else value(found) for key, found in get(row).items()}
    if field.is_repeated:
        return lambda row: list(get(row)) if convert is None else list(map(convert, get(row)))
    if field.has_presence:
        return lambda row: (
            (get(row) if convert is None else convert(get(row))) if row.HasField(name) else None
        )
    return get if convert is None else lambda row: convert(get(row))


def _converter(field: Any) -> Getter | None:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        # A newer writer may send a number that this descriptor does not know.
        return lambda number: names.get(number, str(number))
    if field.message_type is not None and field.message_type.full_name == _TIMESTAMP:
        return lambda time: time.seconds * 1_000_000 + time.nanos // 1000
    return None


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def spark_type_of(descriptor: Descriptor, outside: tuple[str, ...] = ()) -> StructType:
    """Return the Spark type of a message; raises InvalidConfigurationError."""
    if descriptor.full_name in outside:
        raise InvalidConfigurationError(
            f"the message {descriptor.full_name} contains itself, which a Spark type cannot do"
        )
    around = (*outside, descriptor.full_name)
    return StructType([StructField(field.name, _type_of(field, around)) for field in descriptor.fields])


def _type_of(field: Any, around: tuple[str, ...]) -> DataType:
    if _is_map(field):
        parts = field.message_type.fields_by_name
        return MapType(_single_type(parts["key"], around), _single_type(parts["value"], around))
    single = _single_type(field, around)
    return ArrayType(single) if field.is_repeated else single


def _single_type(field: Any, around: tuple[str, ...]) -> DataType:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return TimestampType()
        return spark_type_of(field.message_type, around)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else StringType()
    return _TYPES[field.cpp_type]
