"""Avro values: read with the schema of their writer, resolved to the schema of the reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa

from anabranch.spark.values.formats import Getter, Path

_PLAIN = ("time-millis", "time-micros", "uuid", "duration", "timestamp-nanos", "local-timestamp-nanos")
"""Logical types without a counterpart in Spark; their values keep the type that stores them."""


class AvroRows:
    """Decodes Avro records into dicts."""

    def __init__(self, writer: bytes, reader: bytes) -> None:
        """Take two schemas as JSON; raises any error when one of them cannot be read."""
        # Imported late: only queries with Avro values need the package.
        import fastavro

        self._writer = fastavro.parse_schema(without_plain_types(json.loads(writer)))
        same = writer == reader
        wanted = None if same else with_defaults(without_plain_types(json.loads(reader)))
        self._reader = None if wanted is None else fastavro.parse_schema(wanted)
        self._read = fastavro.schemaless_reader

    def rows(self, values: Sequence[bytes]) -> list[Any]:
        found = []
        for value in values:
            stream = BytesIO(value)
            found.append(self._read(stream, self._writer, self._reader))
            if stream.tell() != len(value):
                raise ValueError(f"the record ends {len(value) - stream.tell()} bytes before its value")
        return found

    def getters(self, kind: Any, path: Path) -> Sequence[Getter]:
        return [_field(field.name) for field in kind]

    def leaves(self, kind: Any, values: list[Any]) -> Any:
        return pa.array(values, kind)


def _field(name: str) -> Getter:
    return lambda record: record.get(name)


def without_plain_types(schema: Any) -> Any:
    """Return an Avro schema without the logical types that Spark does not know."""
    if isinstance(schema, list):
        return [without_plain_types(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: part for name, part in schema.items() if part not in _PLAIN or name != "logicalType"}
    for name in ("type", "items", "values", "fields"):
        if name in kept:
            kept[name] = without_plain_types(kept[name])
    return kept


def with_defaults(schema: Any) -> Any:
    """Return an Avro schema in which each field has a default: null, unless it states another.

    Columns of Spark are nullable, and some clients register optional fields without their default.
    """
    if isinstance(schema, list):
        return [with_defaults(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {**schema}
    for name in ("type", "items", "values"):
        if name in changed:
            changed[name] = with_defaults(changed[name])
    if "fields" in changed:
        changed["fields"] = [_with_default(with_defaults(field)) for field in changed["fields"]]
    return changed


def _with_default(field: dict[str, Any]) -> dict[str, Any]:
    if "default" in field:
        return field
    members = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return {**field, "type": ["null", *(part for part in members if part != "null")], "default": None}
