"""Decodes Avro values with the schema of their writer, resolved to the schema of the reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from anabranch.schemas.codecs import avro_reader
from anabranch.spark.values.formats import Getter, Path

_PLAIN = ("time-millis", "time-micros", "uuid", "duration", "timestamp-nanos", "local-timestamp-nanos")
"""Logical types without a counterpart in Spark; their values keep the type that stores them."""


class AvroRows:
    """Decodes Avro records into dicts."""

    def __init__(self, writer: bytes, reader: bytes) -> None:
        """Take two schemas as JSON. An invalid schema raises an error of any type."""
        wanted = None if writer == reader else with_defaults(without_plain_types(json.loads(reader)))
        self._decode = avro_reader(
            json.dumps(without_plain_types(json.loads(writer))).encode(),
            None if wanted is None else json.dumps(wanted).encode(),
        )

    def rows(self, values: Sequence[bytes]) -> list[Any]:
        return list(map(self._decode, values))

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
    """Return an Avro schema in which each field has a default: null, unless it has another one.

    Spark's columns are nullable, and some clients register optional fields without their default.
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
