"""The definition of a schema as the registry keeps it, and the checks that it can be read.

Kinds have the names of Pulsar's protocol. Struct kinds are defined by Avro schemas, JSON values too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from anabranch.schemas.avro import parse_avro, text_of_avro
from anabranch.schemas.protobuf import MessageType
from anabranch.schemas.schema_errors import InvalidSchemaError

AVRO_KINDS: Final = ("Json", "Avro", "Protobuf")
"""Kinds whose definition is an Avro schema."""
KEY_VALUE: Final = "KeyValue"
SEPARATED: Final = "SEPARATED"
NATIVE: Final = "ProtobufNative"
_SIZE: Final = Struct(">i")
_HALVES: Final = ("key", "value")

REST_NAMES: Final[Mapping[str, str]] = {
    "None": "BYTES",
    "String": "STRING",
    "Json": "JSON",
    "Protobuf": "PROTOBUF",
    "Avro": "AVRO",
    "Bool": "BOOLEAN",
    "Int8": "INT8",
    "Int16": "INT16",
    "Int32": "INT32",
    "Int64": "INT64",
    "Float": "FLOAT",
    "Double": "DOUBLE",
    "Date": "DATE",
    "Time": "TIME",
    "Timestamp": "TIMESTAMP",
    "KeyValue": "KEY_VALUE",
    "Instant": "INSTANT",
    "LocalDate": "LOCAL_DATE",
    "LocalTime": "LOCAL_TIME",
    "LocalDateTime": "LOCAL_DATE_TIME",
    "ProtobufNative": "PROTOBUF_NATIVE",
}
"""Kind -> its name in Pulsar's REST calls and in the properties of key-value schemas."""
KINDS: Final = {name: kind for kind, name in REST_NAMES.items()}


class Definition(NamedTuple):
    """A kind, its definition, and its properties."""

    kind: str
    data: bytes
    properties: Mapping[str, str]


def check_definition(definition: Definition) -> None:
    """Raise InvalidSchemaError if the definition cannot be read."""
    kind = definition.kind
    if kind not in REST_NAMES:
        raise InvalidSchemaError(f"the registry does not keep schemas of kind {kind}")
    if kind in AVRO_KINDS:
        schema = parse_avro(definition.data)
        if kind == "Avro" and isinstance(schema.root, list):
            raise InvalidSchemaError("an Avro schema must be a record or a plain type, not a union")
    elif kind == NATIVE:
        MessageType.registered(definition.data).descriptor()
    elif kind == KEY_VALUE:
        for half in halves(definition):
            check_definition(half)


def key_value_definition(key: Definition | None, value: Definition | None, *, separated: bool) -> Definition:
    """Return the definition of a key-value schema, in the form of Pulsar's clients.

    A half that is None has no definition.
    """
    properties = {"kv.encoding.type": SEPARATED if separated else "INLINE"}
    data = b""
    for name, half in zip(_HALVES, (key, value), strict=True):
        found = half or Definition("None", b"", {})
        properties |= {
            f"{name}.schema.name": "",
            f"{name}.schema.type": REST_NAMES[found.kind],
            f"{name}.schema.properties": json.dumps(dict(found.properties)),
        }
        data += _SIZE.pack(len(found.data)) + found.data
    return Definition(KEY_VALUE, data, properties)


def is_separated(definition: Definition) -> bool:
    """Return whether it is a key-value schema whose key is the key of its messages."""
    return definition.kind == KEY_VALUE and definition.properties.get("kv.encoding.type") == SEPARATED


def halves(definition: Definition) -> tuple[Definition, Definition]:
    """Return the schemas of the key and of the value of a key-value schema."""
    data, parts = definition.data, []
    for half in _HALVES:
        try:
            (size,) = _SIZE.unpack_from(data)
        except Exception:
            raise InvalidSchemaError("a key-value schema is two definitions with their sizes") from None
        # Pulsar writes -1 for a half without a definition.
        size = max(size, 0)
        if len(data) < _SIZE.size + size:
            raise InvalidSchemaError(f"the definition of the {half} is shorter than its size says")
        found, data = data[_SIZE.size : _SIZE.size + size], data[_SIZE.size + size :]
        name = definition.properties.get(f"{half}.schema.type", "BYTES")
        kind = KINDS.get(name)
        if kind is None or kind == KEY_VALUE:
            raise InvalidSchemaError(f"the {half} of a key-value schema cannot be of type {name}")
        parts.append(Definition(kind, found, {}))
    return parts[0], parts[1]


def split_text(definition: Definition) -> str:
    """Return a key-value schema as Pulsar's REST calls show it: an object with the two definitions."""
    shown = {}
    for name, half in zip(_HALVES, halves(definition), strict=True):
        text = half.data.decode(errors="replace")
        try:
            shown[name] = json.loads(text)
        except ValueError:
            shown[name] = text
    return json.dumps(shown, separators=(",", ":"))


def joined(text: bytes) -> bytes:
    """Undo `split_text`; raises InvalidSchemaError."""
    try:
        found = json.loads(text)
        parts = [found[name] for name in _HALVES]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidSchemaError(f"a key-value schema is an object with key and value: {error}") from error
    return join(*(part if isinstance(part, str) else json.dumps(part) for part in parts))


def join(key: str, value: str) -> bytes:
    """Return the definition of a key-value schema."""
    halves = (key.encode(), value.encode())
    return b"".join(_SIZE.pack(len(half)) + half for half in halves)


def digest_of(definition: Definition) -> str:
    """Equal for definitions with the same meaning: Avro schemas may differ in form and documentation."""
    data = definition.data
    if definition.kind in AVRO_KINDS:
        data = text_of_avro(data).encode()
    elif definition.kind == KEY_VALUE:
        data = "".join(map(digest_of, halves(definition))).encode()
    return hashlib.sha256(f"{definition.kind}:".encode() + data).hexdigest()
