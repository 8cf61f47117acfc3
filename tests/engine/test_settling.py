"""Sealed segments whose last ledger is empty, on a real Pulsar: the broker names no last message of those.

A topic that is loaded gets another ledger. If it is sealed before its next message, that ledger stays empty.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch import AsyncAdminClient, AsyncClient, Checkpoint
from anabranch.client.net.connection_pool import ConnectionPool, PoolTimes, new_pool
from anabranch.client.net.stored_tail import BEFORE_ALL, StoredTail, stored_since
from anabranch.control.pulsar_admin import PulsarAdmin
from anabranch.model.names import TopicName
from anabranch.spark.options.queries import read_source_options
from anabranch.spark.service import BrokerService, close_sessions
from anabranch.spark.source.batch_reader import BatchReader
from anabranch.spark.source.data_source import source_schema
from simulation.harness.pulsar.control import ControlServer
from tests.harness.pulsar import EngineAddresses

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

SCHEMA = source_schema(event_time=False, headers=False, key_hash=False)


@pytest.fixture
def control(small_engine: EngineAddresses, tmp_path: Path) -> Iterator[ControlServer]:
    server = ControlServer(
        tmp_path, 0, http_url=small_engine.http_url, zookeeper_url=small_engine.zookeeper_url
    )
    try:
        server.start()
        yield server
    finally:
        close_sessions()
        server.stop()


@pytest.fixture
async def pulsar(small_engine: EngineAddresses) -> AsyncIterator[PulsarAdmin]:
    admin = PulsarAdmin([small_engine.http_url])
    yield admin
    await admin.close()


@pytest.fixture
async def pool(small_engine: EngineAddresses) -> AsyncIterator[ConnectionPool]:
    made = new_pool(small_engine.url, PoolTimes(), {})
    yield made
    await made.close()


async def publish(url: str, topic: str, first: int, end: int, **options: Any) -> None:
    async with AsyncClient(url) as client:
        producer = await client.create_producer(topic, **options)
        for number in range(first, end):
            await producer.send(b"%d" % number, key="k")


async def read_by_checkpoint(url: str, topic: str, count: int) -> list[int]:
    async with AsyncClient(url) as client:
        consumer = await client.create_checkpoint_consumer(topic, start=Checkpoint.earliest())
        return [int((await consumer.receive(timeout=60)).data) for _ in range(count)]


def read_by_spark(url: str, topic: str) -> list[int]:
    options = read_source_options({"service.url": url, "subscribe": topic})
    reader = BatchReader(BrokerService(url), options, SCHEMA)
    found: list[int] = []
    for partition in pickle.loads(pickle.dumps(reader.partitions())):
        for batch in reader.read(partition):
            found += [int(value) for value in batch.column("value").to_pylist()]
    return found


@pytest.mark.parametrize("loads", [0, 1, 2])
async def test_a_producer_finds_its_entries_before_empty_ledgers(
    small_engine: EngineAddresses, pulsar: PulsarAdmin, pool: ConnectionPool, loads: int
) -> None:
    topic = TopicName.parse(f"persistent://public/default/settled-{time.time_ns()}")
    await pulsar.create(topic, {})
    await publish(small_engine.url, str(topic), 0, 10, name="me")
    for _ in range(loads):
        await pulsar.unload(topic)
        await pulsar.internals(topic)
    await pulsar.terminate(topic)
    connection = await pool.connection_for(str(topic))
    whole = StoredTail(pool, str(topic), "me", BEFORE_ALL)
    found = await stored_since(whole, connection)
    assert [entry.sequence_id for entry in found] == list(range(10))
    rest = StoredTail(pool, str(topic), "me", found[6].place)
    assert [entry.sequence_id for entry in await stored_since(rest, connection)] == [7, 8, 9]
    nothing = StoredTail(pool, str(topic), "me", found[-1].place)
    assert await stored_since(nothing, connection) == []


@pytest.mark.parametrize("is_loaded_again", [False, True])
async def test_nothing_is_found_in_a_sealed_topic_without_entries(
    pulsar: PulsarAdmin, pool: ConnectionPool, is_loaded_again: bool
) -> None:
    topic = TopicName.parse(f"persistent://public/default/empty-{time.time_ns()}")
    await pulsar.create(topic, {})
    await pulsar.terminate(topic)
    if is_loaded_again:
        await pulsar.unload(topic)
    connection = await pool.connection_for(str(topic))
    assert await stored_since(StoredTail(pool, str(topic), "me", BEFORE_ALL), connection) == []


@pytest.mark.parametrize("batch", [1, 7])
async def test_a_segment_that_was_loaded_and_sealed_is_read_to_its_end(
    control: ControlServer, pulsar: PulsarAdmin, batch: int
) -> None:
    name = f"loaded-{time.time_ns()}"
    async with AsyncAdminClient(control.http_url) as admin:
        await admin.create_topic(name)
        async with AsyncClient(control.url) as client:
            producer = await client.create_producer(name)
            for first in range(0, 21, batch):
                some = range(first, first + batch)
                await producer.send_many([b"%d" % number for number in some], ["k"] * batch)
        await pulsar.unload(TopicName.parse(f"persistent://public/default/{name}.segment-0000-ffff-0"))
        await admin.split(name, 0)
    await publish(control.url, name, 21, 25)
    assert await read_by_checkpoint(control.url, name, 25) == list(range(25))
    assert await asyncio.to_thread(read_by_spark, control.url, name) == list(range(25))


async def test_a_segment_that_was_sealed_empty_gets_new_subscriptions(
    control: ControlServer, pulsar: PulsarAdmin
) -> None:
    name = f"hollow-{time.time_ns()}"
    async with AsyncAdminClient(control.http_url) as admin:
        await admin.create_topic(name)
        await admin.split(name, 0)
        await pulsar.unload(TopicName.parse(f"persistent://public/default/{name}.segment-0000-ffff-0"))
    await publish(control.url, name, 0, 5)
    async with AsyncClient(control.url) as client:
        consumer = await client.subscribe_stream(name, "late", initial_position="earliest")
        found = [int((await consumer.receive(timeout=60)).data) for _ in range(5)]
    assert found == list(range(5))
