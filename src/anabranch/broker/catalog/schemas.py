"""Schemas of topics: versions in the order of their registration, kept in the metadata store.

All segments of a topic and the classic topic of the same name share one list. The registry does not read the
definition of a schema: it refuses a change of type, and producers and consumers check the rest.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from anabranch.errors import IncompatibleSchemaError, MetadataError, VersionConflictError
from anabranch.metadata.store import ABSENT, MetadataStore
from anabranch.model.names import TopicName, encode_part
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import pairs

_VERSION = Struct(">q")
_ATTEMPTS = 16
_NO_SCHEMA = (pb.Schema.Type.Value("None"), pb.Schema.AutoConsume)
"""Schema types of clients without a schema of their own: plain bytes, or the schema of the topic."""


class StoredSchema(msgspec.Struct, frozen=True):
    """One version, as the client sent it."""

    name: str
    type: int
    data: bytes
    properties: dict[str, str]
    timestamp: int


class SchemaRegistry:
    """Finds and registers schemas; a version is the index in the list, as eight bytes on the wire."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def all(self, topic: TopicName) -> list[StoredSchema]:
        return (await self._load(topic))[0]

    async def get(self, topic: TopicName, version: bytes | None) -> tuple[StoredSchema, bytes] | None:
        """The schema of a version, the newest by default, with its version; None when there is none."""
        known = await self.all(topic)
        if version is None:
            return (known[-1], _VERSION.pack(len(known) - 1)) if known else None
        if len(version) != _VERSION.size:
            raise IncompatibleSchemaError(
                f"{version.hex() or 'an empty text'} is no schema version; send {_VERSION.size} bytes"
            )
        (number,) = _VERSION.unpack(version)
        return (known[number], version) if 0 <= number < len(known) else None

    async def register(self, topic: TopicName, schema: pb.Schema, now_ms: int) -> bytes:
        """The version of a schema, which is added if it is new; empty without a schema."""
        if schema.type in _NO_SCHEMA:
            return b""
        asked = StoredSchema(
            schema.name,
            schema.type,
            schema.schema_data,
            {pair.key: pair.value for pair in schema.properties},
            now_ms,
        )
        for _ in range(_ATTEMPTS):
            known, version = await self._load(topic)
            for number, old in enumerate(known):
                if (old.type, old.data) == (asked.type, asked.data):
                    return _VERSION.pack(number)
            if known and known[-1].type != asked.type:
                names = pb.Schema.Type
                raise IncompatibleSchemaError(
                    f"{topic} has a schema of type {names.Name(pb.Schema.Type.ValueType(known[-1].type))}, "
                    f"not {names.Name(schema.type)}"
                )
            try:
                await self._store.put(_path(topic), msgspec.json.encode([*known, asked]), expected=version)
            except VersionConflictError:
                continue
            return _VERSION.pack(len(known))
        raise MetadataError(
            f"the schemas of {topic} changed concurrently {_ATTEMPTS} times in a row; try again"
        )

    async def delete(self, topic: TopicName) -> None:
        if await self._store.get(_path(topic)) is not None:
            await self._store.delete(_path(topic))

    async def _load(self, topic: TopicName) -> tuple[list[StoredSchema], int]:
        stored = await self._store.get(_path(topic))
        if stored is None:
            return [], ABSENT
        return msgspec.json.decode(stored.value, type=list[StoredSchema]), stored.version


def to_wire(schema: StoredSchema) -> pb.Schema:
    return pb.Schema(
        name=schema.name,
        schema_data=schema.data,
        type=pb.Schema.Type.ValueType(schema.type),
        properties=pairs(schema.properties),
    )


def _path(topic: TopicName) -> str:
    whole = topic.partitioned_topic
    parts = (whole.tenant, whole.namespace, whole.local)
    return "/schemas/" + "/".join(map(encode_part, parts))
