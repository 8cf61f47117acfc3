"""Reads Avro schemas with fastavro, which is imported on first use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from anabranch.schemas.optional import optional
from anabranch.schemas.schema_errors import InvalidSchemaError

DEPTH_MAX: Final = 64
"""Most levels of nesting in a schema."""
_INSIDE: Final = ("type", "items", "values", "fields")
_NO_MEANING: Final = ("doc",)


class ParsedAvro(NamedTuple):
    """A parsed schema: its names are full ones, and a type that was defined before is its name."""

    root: Any
    named: Mapping[str, Any]


def parse_avro(data: bytes | str) -> ParsedAvro:
    """Read an Avro schema in JSON; raises InvalidSchemaError."""
    fastavro = optional("fastavro", "Avro schemas", "avro")
    raw = _load(data)
    named: dict[str, Any] = {}
    try:
        # Pulsar's clients write defaults that do not fit the type, and Pulsar does not check them.
        root = fastavro.parse_schema(raw, named_schemas=named, _ignore_default_error=True)
    except Exception as error:
        # fastavro's errors have no common type, and a wrong form raises builtin ones.
        reason = str(error) or type(error).__name__
        raise InvalidSchemaError(f"the definition is not an Avro schema: {reason}") from error
    return ParsedAvro(root, named)


def text_of_avro(data: bytes) -> str:
    """Return a text that does not depend on the white space, key order or documentation of a schema."""
    return json.dumps(_without_notes(_load(data)), sort_keys=True, separators=(",", ":"))


def _load(data: bytes | str) -> Any:
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the definition is not JSON: {error}") from error
    _check_depth(raw)
    return raw


def _check_depth(raw: Any) -> None:
    level = [raw]
    for _ in range(DEPTH_MAX):
        level = [
            part
            for one in level
            if isinstance(one, (dict, list))
            for part in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise InvalidSchemaError(f"the definition has more than {DEPTH_MAX} levels")


def _without_notes(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_notes(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_notes(part) if name in _INSIDE else part
        for name, part in schema.items()
        if name not in _NO_MEANING
    }
