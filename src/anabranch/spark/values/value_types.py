"""Checks which Spark types a decoded value may have."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from anabranch.errors import InvalidConfigurationError

_LEAVES = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)


def check_value_type(kind: DataType, stated: DataType | None, place: str = "value") -> None:
    """Refuse a type that no format can fill, and one that is not a subset of the type in the schema."""
    if stated is not None and not isinstance(kind, type(stated)):
        raise InvalidConfigurationError(
            f"{place} is of type {stated.simpleString()} in the schema, not {kind.simpleString()}"
        )
    match kind:
        case StructType():
            for field in kind.fields:
                if not field.nullable:
                    raise InvalidConfigurationError(
                        f"{place}.{field.name} may be null; declare it without NOT NULL"
                    )
                inner = None if stated is None else _field(stated, field.name, place)
                check_value_type(field.dataType, inner, f"{place}.{field.name}")
        case ArrayType():
            _check_item(kind.containsNull, place)
            check_value_type(kind.elementType, None if stated is None else _inner(stated), place)
        case MapType():
            _check_item(kind.valueContainsNull, place)
            if stated is None and not isinstance(kind.keyType, StringType):
                raise InvalidConfigurationError(f"{place} is a map whose keys are not of type string")
            check_value_type(kind.valueType, None if stated is None else _inner(stated), place)
        case _ if not isinstance(kind, _LEAVES) or (stated is not None and kind != stated):
            raise InvalidConfigurationError(f"{place} cannot be of type {kind.simpleString()}")


def _check_item(nullable: bool, place: str) -> None:
    if not nullable:
        raise InvalidConfigurationError(f"the items of {place} may be null; declare them without NOT NULL")


def _inner(kind: Any) -> DataType:
    inner: DataType = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
    return inner


def _field(kind: Any, name: str, place: str) -> DataType:
    for field in kind.fields:
        if field.name == name:
            inner: DataType = field.dataType
            return inner
    raise InvalidConfigurationError(
        f"the schema of {place} has no field {name}; it has {', '.join(kind.names)}"
    )
