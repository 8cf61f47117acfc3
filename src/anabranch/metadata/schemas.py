"""Records of schemas: a small index for each topic, and one record for each version of its schema.

The record of a version never changes. Its path has the incarnation of the index and a digest of the schema,
so writers that race for the same number do not overwrite each other, and a deletion spares the schemas of
the next topic of the name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress

import msgspec

from anabranch.errors import MetadataError, VersionConflictError
from anabranch.metadata.record_store import ATTEMPTS, RecordStore
from anabranch.metadata.records import Record
from anabranch.metadata.store import ABSENT
from anabranch.model.names import TopicName, encode_part

SCHEMAS = "/schemas"
INCARNATIONS = "/sequences/schemas"


class StoredSchema(msgspec.Struct, frozen=True):
    """One version, as the client sent it."""

    name: str
    type: int
    data: bytes
    properties: dict[str, str]
    timestamp: int


class SchemaVersionRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """The entry of a version in the index; its number is its place there."""

    type: int
    digest: str
    size_bytes: int


class SchemaIndexRecord(Record, frozen=True, kw_only=True, rename="camel"):
    incarnation: int
    versions: tuple[SchemaVersionRecord, ...] = ()

    def number_of(self, entry: SchemaVersionRecord) -> int | None:
        for number, known in enumerate(self.versions):
            if known.digest == entry.digest:
                return number
        return None


Check = Callable[[SchemaIndexRecord, SchemaVersionRecord], None]


class SchemaStore(RecordStore):
    """The records of schemas; this class must not know which schemas fit together."""

    async def load_index(self, topic: TopicName) -> SchemaIndexRecord | None:
        return (await self._load(topic))[0]

    def path(self, topic: TopicName, index: SchemaIndexRecord, number: int) -> str:
        """The path of a version, which names one schema for ever."""
        return _version_path(topic, index.incarnation, index.versions[number].digest)

    async def load_version(self, path: str) -> StoredSchema | None:
        stored = await self.store.get(path)
        return None if stored is None else msgspec.msgpack.decode(stored.value, type=StoredSchema)

    async def add(self, topic: TopicName, schema: StoredSchema, check: Check) -> int:
        """The number of a schema, which is stored if it is new; `check` raises if it may not be."""
        encoded = msgspec.msgpack.encode(schema)
        entry = SchemaVersionRecord(type=schema.type, digest=_digest(schema), size_bytes=len(encoded))
        for _ in range(ATTEMPTS):
            found, version = await self._load(topic)
            index = found or SchemaIndexRecord(incarnation=await self.store.increment(INCARNATIONS))
            if (number := index.number_of(entry)) is not None:
                return number
            check(index, entry)
            with suppress(VersionConflictError):
                path = _version_path(topic, index.incarnation, entry.digest)
                await self.store.put(path, encoded, expected=ABSENT)
            longer = msgspec.structs.replace(index, versions=(*index.versions, entry))
            if await self._replace_index(topic, longer, version):
                if found is None:
                    await self._delete_versions(topic, index.incarnation)
                return len(index.versions)
        raise MetadataError(f"the schemas of {topic} changed {ATTEMPTS} times in a row; try again")

    async def delete(self, topic: TopicName) -> None:
        """Delete all schemas of a topic."""
        for _ in range(ATTEMPTS):
            found, version = await self._load(topic)
            if found is None:
                return None
            with suppress(VersionConflictError):
                await self.delete_record(_index_path(topic), version)
                return await self._delete_versions(topic, found.incarnation + 1)
        raise MetadataError(f"the schemas of {topic} changed {ATTEMPTS} times in a row; try again")

    async def _load(self, topic: TopicName) -> tuple[SchemaIndexRecord | None, int]:
        stored = await self.store.get(_index_path(topic))
        if stored is None:
            return None, ABSENT
        if stored.value.startswith(b"["):
            await self._convert(topic, stored.value, stored.version)
            return await self._load(topic)
        return msgspec.json.decode(stored.value, type=SchemaIndexRecord), stored.version

    async def _convert(self, topic: TopicName, value: bytes, version: int) -> None:
        """Replace a list with all schemas, as earlier versions of Anabranch stored them, by an index."""
        incarnation = await self.store.increment(INCARNATIONS)
        entries = []
        for schema in msgspec.json.decode(value, type=list[StoredSchema]):
            encoded, digest = msgspec.msgpack.encode(schema), _digest(schema)
            await self.store.put(_version_path(topic, incarnation, digest), encoded)
            entries.append(SchemaVersionRecord(type=schema.type, digest=digest, size_bytes=len(encoded)))
        index = SchemaIndexRecord(incarnation=incarnation, versions=tuple(entries))
        await self._replace_index(topic, index, version)

    async def _replace_index(self, topic: TopicName, index: SchemaIndexRecord, version: int) -> bool:
        try:
            await self.store.put(_index_path(topic), msgspec.json.encode(index), expected=version)
        except VersionConflictError:
            return False
        return True

    async def _delete_versions(self, topic: TopicName, before: int) -> None:
        """Delete the versions of earlier incarnations, also of writers that died before their index."""
        for part in await self.store.children(_index_path(topic)):
            if int(part.partition("-")[0]) < before:
                await self.delete_record(f"{_index_path(topic)}/{part}")


def _digest(schema: StoredSchema) -> str:
    return hashlib.sha256(b"%d:" % schema.type + schema.data).hexdigest()


def _index_path(topic: TopicName) -> str:
    whole = topic.partitioned_topic
    parts = (whole.tenant, whole.namespace, whole.local)
    return f"{SCHEMAS}/" + "/".join(map(encode_part, parts))


def _version_path(topic: TopicName, incarnation: int, digest: str) -> str:
    return f"{_index_path(topic)}/{incarnation}-{digest}"
