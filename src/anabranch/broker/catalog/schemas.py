"""Schemas of topics: versions in the order of their registration, kept in the metadata store.

All segments of a topic and the classic topic of the same name share one list. The registry does not read the
definition of a schema: it refuses a change of type, and producers and consumers check the rest.
"""

from __future__ import annotations

from collections import OrderedDict
from struct import Struct

from anabranch.aio import KeyedLocks
from anabranch.errors import IncompatibleSchemaError
from anabranch.metadata.schemas import SchemaIndexRecord, SchemaStore, SchemaVersionRecord, StoredSchema
from anabranch.model.names import TopicName
from anabranch.protocol.limits import SCHEMA_BYTES_MAX
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import pairs

VERSION_BYTES_MAX = 2 * SCHEMA_BYTES_MAX
"""Most bytes of a schema with its name and properties."""
VERSIONS_MAX = 1000
TOPIC_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of all versions of a topic."""
CACHE_BYTES = 16 * 1024 * 1024

_VERSION = Struct(">q")
_NO_SCHEMA = (pb.Schema.Type.Value("None"), pb.Schema.AutoConsume)
"""Schema types of clients without a schema of their own: plain bytes, or the schema of the topic."""


class SchemaRegistry:
    """Finds and registers schemas; a version is a number, as eight bytes on the wire."""

    def __init__(self, schemas: SchemaStore) -> None:
        self._schemas = schemas
        self._cached: OrderedDict[str, StoredSchema] = OrderedDict()
        self._cached_bytes = 0
        self._loading = KeyedLocks()

    async def get(self, topic: TopicName, version: bytes | None) -> tuple[StoredSchema, bytes] | None:
        """The schema of a version, the newest by default, with its version; None when there is none."""
        index = await self._schemas.load_index(topic)
        if version is None:
            number = -1 if index is None else len(index.versions) - 1
        elif len(version) == _VERSION.size:
            (number,) = _VERSION.unpack(version)
        else:
            raise IncompatibleSchemaError(
                f"{version.hex() or 'an empty text'} is no schema version; send {_VERSION.size} bytes"
            )
        if index is None or not 0 <= number < len(index.versions):
            return None
        schema = await self._load(self._schemas.path(topic, index, number))
        return None if schema is None else (schema, _VERSION.pack(number))

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

        def check(index: SchemaIndexRecord, entry: SchemaVersionRecord) -> None:
            check_fits(str(topic), index, entry)

        return _VERSION.pack(await self._schemas.add(topic, asked, check))

    async def _load(self, path: str) -> StoredSchema | None:
        """Load a version; callers that ask for the same one at once share the read."""
        async with self._loading.held(path):
            found = self._cached.pop(path, None)
            if found is None:
                found = await self._schemas.load_version(path)
                self._cached_bytes += 0 if found is None else len(found.data)
            if found is not None:
                self._cached[path] = found
            while self._cached_bytes > CACHE_BYTES:
                _, oldest = self._cached.popitem(last=False)
                self._cached_bytes -= len(oldest.data)
            return found


def check_fits(topic: str, index: SchemaIndexRecord, entry: SchemaVersionRecord) -> None:
    """Raise IncompatibleSchemaError unless the schema may become the next version."""
    stored = sum(known.size_bytes for known in index.versions)
    if entry.size_bytes > VERSION_BYTES_MAX:
        raise IncompatibleSchemaError(
            f"a schema of {topic} has {entry.size_bytes} bytes; at most {VERSION_BYTES_MAX} are stored"
        )
    if len(index.versions) >= VERSIONS_MAX or stored + entry.size_bytes > TOPIC_BYTES_MAX:
        raise IncompatibleSchemaError(
            f"{topic} has {len(index.versions)} schemas of {stored} bytes; at most {VERSIONS_MAX} schemas of "
            f"{TOPIC_BYTES_MAX} bytes are stored, delete the topic to begin anew"
        )
    if index.versions and index.versions[-1].type != entry.type:
        before, after = _type_name(index.versions[-1].type), _type_name(entry.type)
        raise IncompatibleSchemaError(f"{topic} has a schema of type {before}, not {after}")


def _type_name(number: int) -> str:
    return pb.Schema.Type.Name(pb.Schema.Type.ValueType(number))


def to_wire(schema: StoredSchema) -> pb.Schema:
    return pb.Schema(
        name=schema.name,
        schema_data=schema.data,
        type=pb.Schema.Type.ValueType(schema.type),
        properties=pairs(schema.properties),
    )
