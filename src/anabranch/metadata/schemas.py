"""Records of schemas: a small index for each topic, and one record for each version of its schema.

The record of a version never changes. Its path has the incarnation of the index and a digest of the schema,
so writers that race for the same number do not overwrite each other, and a deletion spares the schemas of
the next topic of the name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

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
    meaning: str = ""
    """Equal for schemas of the same meaning; empty in records of earlier versions of Anabranch."""
    deleted: bool = False
    """Whether this version removes the schema: earlier versions no longer count, but can still be read."""


class SchemaIndexRecord(Record, frozen=True, kw_only=True, rename="camel"):
    incarnation: int
    versions: tuple[SchemaVersionRecord, ...] = ()
    policies: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The topic's own policies about schemas, by their names in admin calls; deleted with the topic."""

    @property
    def living(self) -> range:
        """The numbers of the versions since the last deletion."""
        first = len(self.versions)
        while first and not self.versions[first - 1].deleted:
            first -= 1
        return range(first, len(self.versions))

    def number_of(self, digest: str, meaning: str) -> int | None:
        for number in self.living:
            known = self.versions[number]
            if known.digest == digest or (meaning and known.meaning == meaning):
                return number
        return None


Check = Callable[[SchemaIndexRecord, SchemaVersionRecord], Awaitable[None]]


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

    async def add(self, topic: TopicName, schema: StoredSchema, meaning: str, check: Check) -> int:
        """The number of a schema, which is stored if it is new; `check` raises if it may not be."""
        encoded = msgspec.msgpack.encode(schema)
        entry = SchemaVersionRecord(
            type=schema.type, digest=digest(schema), size_bytes=len(encoded), meaning=meaning
        )
        for _ in range(ATTEMPTS):
            found, version = await self._load(topic)
            index = found or SchemaIndexRecord(incarnation=await self.store.increment(INCARNATIONS))
            if (number := index.number_of(entry.digest, meaning)) is not None:
                return number
            await check(index, entry)
            with suppress(VersionConflictError):
                path = _version_path(topic, index.incarnation, entry.digest)
                await self.store.put(path, encoded, expected=ABSENT)
            longer = msgspec.structs.replace(index, versions=(*index.versions, entry))
            if await self._replace_index(topic, longer, version):
                if found is None:
                    await self._delete_versions(topic, index.incarnation)
                return len(index.versions)
        raise _contended(topic)

    async def set_policy(self, topic: TopicName, name: str, value: object) -> None:
        """Store a policy of the topic's own, or remove it if the value is None."""
        for _ in range(ATTEMPTS):
            found, version = await self._load(topic)
            index = found or SchemaIndexRecord(incarnation=await self.store.increment(INCARNATIONS))
            policies = {other: kept for other, kept in index.policies.items() if other != name}
            if value is not None:
                policies[name] = value
            if await self._replace_index(topic, msgspec.structs.replace(index, policies=policies), version):
                return
        raise _contended(topic)

    async def retire(self, topic: TopicName, *, forget: bool = False) -> int | None:
        """Start over without a schema, under higher numbers; None if the topic has no schema now.

        With `forget`, the definitions of the earlier versions are deleted too.
        """
        for _ in range(ATTEMPTS):
            found, version = await self._load(topic)
            if found is None or not (found.living or (forget and found.versions)):
                return None
            # Paths of a new incarnation lead to none of the earlier definitions.
            incarnation = await self.store.increment(INCARNATIONS) if forget else found.incarnation
            mark = SchemaVersionRecord(type=0, digest="", size_bytes=0, deleted=True)
            longer = msgspec.structs.replace(found, incarnation=incarnation, versions=(*found.versions, mark))
            if await self._replace_index(topic, longer, version):
                if forget:
                    await self._delete_versions(topic, incarnation)
                return len(found.versions)
        raise _contended(topic)

    async def delete(self, topic: TopicName) -> None:
        """Delete all schemas of a topic."""
        for _ in range(ATTEMPTS):
            found, version = await self._load(topic)
            if found is None:
                return None
            with suppress(VersionConflictError):
                await self.delete_record(_index_path(topic), version)
                return await self._delete_versions(topic, found.incarnation + 1)
        raise _contended(topic)

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
            encoded, key = msgspec.msgpack.encode(schema), digest(schema)
            await self.store.put(_version_path(topic, incarnation, key), encoded)
            entries.append(SchemaVersionRecord(type=schema.type, digest=key, size_bytes=len(encoded)))
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


def _contended(topic: TopicName) -> MetadataError:
    return MetadataError(f"the schemas of {topic} changed {ATTEMPTS} times in a row; try again")


def digest(schema: StoredSchema) -> str:
    """The digest of a schema's type and definition; some properties of a key-value schema belong to it."""
    kinds = [schema.properties.get(f"{half}.schema.type", "") for half in ("key", "value")]
    return hashlib.sha256(b"%d:" % schema.type + schema.data + "".join(kinds).encode()).hexdigest()


def _index_path(topic: TopicName) -> str:
    whole = topic.partitioned_topic
    parts = (whole.tenant, whole.namespace, whole.local)
    return f"{SCHEMAS}/" + "/".join(map(encode_part, parts))


def _version_path(topic: TopicName, incarnation: int, digest: str) -> str:
    return f"{_index_path(topic)}/{incarnation}-{digest}"
