"""The registry of schemas: one record per version, limits, deletion."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from anabranch.broker.catalog import schemas
from anabranch.broker.catalog.schemas import SchemaRegistry
from anabranch.errors import IncompatibleSchemaError
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.records import ClassicTopicRecord, TopicRecord
from anabranch.metadata.schemas import SCHEMAS, SchemaStore, StoredSchema
from anabranch.metadata.store import Stored
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb

TOPIC = TopicName.parse("topic://public/default/orders")
CLASSIC = TopicName.parse("persistent://public/default/orders")
PATH = f"{SCHEMAS}/public/default/orders"
MEGABYTE = 1024 * 1024


class CountingStore(MemoryStore):
    """Counts the bytes that are read and written."""

    read_bytes = 0
    written_bytes = 0

    async def get(self, path: str) -> Stored | None:
        stored = await super().get(path)
        self.read_bytes += 0 if stored is None else len(stored.value)
        return stored

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        self.written_bytes += len(value)
        return await super().put(path, value, expected=expected, ephemeral=ephemeral)


def schema_of(name: str, size_bytes: int = 0) -> pb.Schema:
    """A schema that is compatible with all others of this function: one field with a default."""
    field = {"name": f"f{name}", "type": "int", "default": 0}
    record = {"type": "record", "name": "Order", "fields": [field], "doc": ""}
    record["doc"] = "." * (size_bytes - len(json.dumps(record)))
    return pb.Schema(name="", schema_data=json.dumps(record).encode(), type=pb.Schema.Json)


def large(number: int) -> pb.Schema:
    return schema_of(str(number), MEGABYTE)


async def test_a_registration_and_a_read_cost_one_schema_each() -> None:
    store = CountingStore()
    registry = SchemaRegistry(SchemaStore(store))
    for number in range(20):
        await registry.admit_producer(TOPIC, large(number), 7)
    assert store.written_bytes < 21 * MEGABYTE
    # Each new version is compared with the newest one.
    assert store.read_bytes < 21 * MEGABYTE
    store.read_bytes = 0
    for _ in range(100):
        found = await registry.get(TOPIC, None)
        assert found is not None
        assert found[0].data == large(19).schema_data
    assert store.read_bytes < 2 * MEGABYTE
    first = await registry.get(TOPIC, bytes(8))
    assert first is not None
    assert first[0].data == large(0).schema_data


async def test_reads_of_one_schema_at_once_load_it_once() -> None:
    store = CountingStore()
    registry = SchemaRegistry(SchemaStore(store))
    await registry.admit_producer(TOPIC, large(1), 7)
    await asyncio.gather(*(registry.get(TOPIC, None) for _ in range(100)))
    assert store.read_bytes < 2 * MEGABYTE


async def test_the_cache_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "CACHE_BYTES", 2 * MEGABYTE)
    store = CountingStore()
    registry = SchemaRegistry(SchemaStore(store))
    for number in range(4):
        await registry.admit_producer(TOPIC, large(number), 7)
    for _ in range(2):
        for number in range(4):
            await registry.get(TOPIC, number.to_bytes(8, "big"))
    assert store.read_bytes > 7 * MEGABYTE


async def test_writers_that_race_get_one_number_for_each_schema() -> None:
    registry = SchemaRegistry(SchemaStore(MemoryStore()))
    asked = [schema_of(str(number % 5)) for number in range(20)]
    numbers = await asyncio.gather(*(registry.admit_producer(TOPIC, schema, 7) for schema in asked))
    assert len(set(numbers)) == 5
    for schema, number in zip(asked, numbers, strict=True):
        found = await registry.get(TOPIC, number)
        assert found is not None
        assert found[0].data == schema.schema_data


async def test_a_schema_beyond_a_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SchemaRegistry(SchemaStore(MemoryStore()))
    with pytest.raises(IncompatibleSchemaError, match="bytes"):
        await registry.admit_producer(TOPIC, schema_of("1", 2 * MEGABYTE), 7)
    monkeypatch.setattr(schemas, "VERSIONS_MAX", 2)
    for number in range(2):
        await registry.admit_producer(TOPIC, schema_of(str(number)), 7)
    with pytest.raises(IncompatibleSchemaError, match="2 schemas"):
        await registry.admit_producer(TOPIC, schema_of("3"), 7)
    assert await registry.admit_producer(TOPIC, schema_of("1"), 7) == bytes(7) + b"\x01"
    monkeypatch.setattr(schemas, "VERSIONS_MAX", 10)
    monkeypatch.setattr(schemas, "TOPIC_BYTES_MAX", 100)
    with pytest.raises(IncompatibleSchemaError, match="100 bytes"):
        await registry.admit_producer(TOPIC, schema_of("3"), 7)


async def test_the_schemas_go_with_the_last_topic_of_the_name() -> None:
    store = MemoryStore()
    topics = TopicStore(store)
    registry = SchemaRegistry(topics.schemas)
    await topics.create(TOPIC, TopicRecord(epoch=0, next_segment_id=0, segments={}, incarnation=3))
    await topics.create_classic(CLASSIC, ClassicTopicRecord())
    await registry.admit_producer(TOPIC, schema_of("1"), 7)
    await topics.delete_classic(CLASSIC)
    assert await registry.get(TOPIC, None) is not None
    await topics.create_classic(CLASSIC, ClassicTopicRecord())
    await topics.delete(TOPIC, 3)
    assert await registry.get(CLASSIC, None) is not None
    await topics.delete_classic(CLASSIC)
    assert await registry.get(CLASSIC, None) is None
    assert await store.children(SCHEMAS) == []


async def test_a_version_of_a_writer_that_died_is_removed_later() -> None:
    store = MemoryStore()
    registry = SchemaRegistry(SchemaStore(store))
    await store.increment("/sequences/schemas")
    await store.put(f"{PATH}/0-dead", b"")
    await registry.admit_producer(TOPIC, schema_of("1"), 7)
    assert [part.partition("-")[0] for part in await store.children(PATH)] == ["1"]


async def test_a_stored_list_of_schemas_becomes_an_index() -> None:
    store = MemoryStore()
    registry = SchemaRegistry(SchemaStore(store))
    old = [
        StoredSchema("a", pb.Schema.Json, schema_of(str(number)).schema_data, {"k": "v"}, number)
        for number in range(3)
    ]
    await store.put(PATH, msgspec.json.encode(old))
    found = await registry.get(TOPIC, bytes(7) + b"\x01")
    assert found is not None
    assert found[0] == old[1]
    assert await registry.admit_producer(TOPIC, schema_of("2"), 7) == bytes(7) + b"\x02"
    assert await registry.admit_producer(TOPIC, schema_of("3"), 7) == bytes(7) + b"\x03"
