"""Converts Avro types to Spark types, and back.

Pulsar describes JSON values with Avro schemas too. All fields become nullable, because a later version of a
schema may remove any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from anabranch.errors import InvalidConfigurationError

_PRIMITIVES: Mapping[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_LOGICAL: Mapping[tuple[str, str], DataType] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
_WIDER = ({"int", "long"}, LongType()), ({"float", "double"}, DoubleType())
"""Unions of numbers that fit one Spark type."""


def spark_type(schema: Any) -> DataType:
    """Return the Spark type of a parsed Avro schema; raises InvalidConfigurationError."""
    return _AvroTypes().type_of(schema, "")


class _AvroTypes:
    """Walks through one schema and remembers the named types in it."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []

    def type_of(self, schema: Any, namespace: str) -> DataType:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return self._named_or_primitive(schema, namespace)
        kind = schema.get("type")
        if isinstance(kind, (dict, list)):
            return self.type_of(kind, namespace)
        logical = _LOGICAL.get((kind, schema.get("logicalType")))
        if logical is not None:
            return logical
        if schema.get("logicalType") == "decimal":
            return DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
        if kind == "array":
            return ArrayType(self.type_of(schema["items"], namespace))
        if kind == "map":
            return MapType(StringType(), self.type_of(schema["values"], namespace))
        if kind in ("record", "enum", "fixed"):
            return self._name(schema, namespace)
        return self._named_or_primitive(kind, namespace)

    def _name(self, schema: Any, namespace: str) -> DataType:
        space = schema.get("namespace", namespace)
        name = _full_name(schema["name"], space)
        self._named[name] = schema
        if schema["type"] != "record":
            return _PRIMITIVES[schema["type"]]
        if name in self._open:
            raise InvalidConfigurationError(
                f"the Avro type {name} contains itself, which a Spark type cannot do"
            )
        self._open.append(name)
        # A name with dots sets the namespace of the types inside.
        inside = name.rpartition(".")[0]
        fields = [StructField(part["name"], self.type_of(part["type"], inside)) for part in schema["fields"]]
        self._open.pop()
        return StructType(fields)

    def _named_or_primitive(self, name: str, namespace: str) -> DataType:
        if name in _PRIMITIVES and name not in ("enum", "fixed"):
            return _PRIMITIVES[name]
        named = self._named.get(_full_name(name, namespace), self._named.get(name))
        if named is None:
            raise InvalidConfigurationError(f"the Avro schema uses the type {name}, which has no Spark type")
        return self._name(named, namespace)

    def _union(self, schema: list[Any], namespace: str) -> DataType:
        members = [part for part in schema if part != "null"]
        if len(members) == 1:
            return self.type_of(members[0], namespace)
        for names, wider in _WIDER:
            if members and all(isinstance(part, str) and part in names for part in members):
                return wider
        raise InvalidConfigurationError(
            f"the Avro union of {members} has no Spark type; a union may hold null and one other type"
        )


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def avro_schema(kind: DataType, name: str = "value") -> Any:
    """Return the Avro schema that Spark's own `to_avro` uses for a type: nullable fields are unions."""
    for of_spark, of_avro in _TO_AVRO:
        if isinstance(kind, of_spark):
            return of_avro
    match kind:
        case DecimalType():
            return {
                "type": "bytes",
                "logicalType": "decimal",
                "precision": kind.precision,
                "scale": kind.scale,
            }
        case ArrayType():
            return {"type": "array", "items": _nullable(kind.elementType, name)}
        case MapType():
            return {"type": "map", "values": _nullable(kind.valueType, name)}
        case StructType():
            fields = [
                {"name": field.name, "type": _nullable(field.dataType, f"{name}_{field.name}")}
                for field in kind.fields
            ]
            return {"type": "record", "name": name, "fields": fields}
    raise InvalidConfigurationError(f"a value of type {kind.simpleString()} has no Avro type")


def _nullable(kind: DataType, name: str) -> list[Any]:
    return [avro_schema(kind, name), "null"]


_TO_AVRO: tuple[tuple[Any, Any], ...] = (
    (BooleanType, "boolean"),
    ((ByteType, ShortType, IntegerType), "int"),
    (LongType, "long"),
    (FloatType, "float"),
    (DoubleType, "double"),
    (BinaryType, "bytes"),
    (StringType, "string"),
    (DateType, {"type": "int", "logicalType": "date"}),
    (TimestampType, {"type": "long", "logicalType": "timestamp-micros"}),
    (TimestampNTZType, {"type": "long", "logicalType": "local-timestamp-micros"}),
)
