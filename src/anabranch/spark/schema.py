"""The columns of the source, and the check of a schema that the user asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from anabranch.errors import InvalidConfigurationError

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

COLUMNS: Mapping[str, Any] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "segment": LongType(),
    "position": LongType(),
    "timestamp": TimestampType(),
    "eventTime": TimestampType(),
    "headers": ArrayType(_HEADER),
    "keyHash": IntegerType(),
}
"""Every column that the source can fill, with its type."""

_ALWAYS = ("key", "value", "topic", "segment", "position", "timestamp")

_NEVER_NULL = ("topic", "segment", "position", "timestamp")


def source_schema(*, event_time: bool, headers: bool, key_hash: bool) -> Any:
    """Return the schema of a query without a user-defined one."""
    wanted = [*_ALWAYS]
    wanted += ["eventTime"] if event_time else []
    wanted += ["headers"] if headers else []
    wanted += ["keyHash"] if key_hash else []
    return StructType([StructField(name, COLUMNS[name]) for name in wanted])


def check_source_schema(schema: Any) -> None:
    """Refuse columns that the source cannot fill, when Spark plans the query and not when it runs."""
    seen = set()
    for column in schema.fields:
        kind = COLUMNS.get(column.name)
        if kind is None:
            raise InvalidConfigurationError(
                f"the source has no column {column.name}; it has {', '.join(COLUMNS)}"
            )
        if column.name in seen:
            raise InvalidConfigurationError(f"the schema names column {column.name} twice")
        seen.add(column.name)
        if column.dataType != kind:
            raise InvalidConfigurationError(
                f"column {column.name} is of type {kind.simpleString()}, not {column.dataType.simpleString()}"
            )
        if not column.nullable and column.name not in _NEVER_NULL:
            raise InvalidConfigurationError(f"column {column.name} may be null; declare it without NOT NULL")


def arrow_schema(schema: Any) -> Any:
    """Return the Arrow schema that Spark requires of batches."""
    return to_arrow_schema(schema, timezone="UTC")
