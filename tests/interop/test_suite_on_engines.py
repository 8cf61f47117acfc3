"""Our client on each engine: the same promises on our broker and on Apache Pulsar.

docs/pulsar-5.md lists the limits of each engine; a test whose promise is limited says what happens instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from anabranch import (
    AsyncProducer,
    Backoff,
    Checkpoint,
    DeadLetter,
    Schema,
)
from anabranch.errors import (
    ConsumerBusyError,
    ProducerFencedError,
    TopicNotFoundError,
    UnsupportedFeatureError,
)
from tests.interop.engines import EngineLimit, RunningEngine
from tests.interop.suite import KINDS, PATIENCE_S, SuiteReading, opened, reached, send

# The first run downloads some 250 MB for Pulsar.
pytestmark = [pytest.mark.timeout(900), pytest.mark.real_time]


@dataclass
class Order:
    name: str
    amount: int


@asynccontextmanager
async def sending_on(producer: AsyncProducer[bytes], first: int) -> AsyncIterator[Callable[[], int]]:
    """Send numbers while the block runs; the function returns the next number after the block."""
    following, wanted = first, True

    async def send_some() -> None:
        nonlocal following
        while wanted:
            await send(producer, range(following, following + 20))
            following += 20

    task = asyncio.create_task(send_some())
    try:
        yield lambda: following
    finally:
        wanted = False
        await task


async def test_nothing_is_lost_doubled_or_reordered_through_a_split_and_a_merge(
    engine: RunningEngine,
) -> None:
    topic = await engine.new_topic("changing")
    async with engine.client() as client, engine.admin() as admin:
        readings = [SuiteReading(kind, await opened(client, kind, topic)) for kind in KINDS]
        producer = await client.create_producer(topic)
        async with sending_on(producer, 0) as sent:
            await admin.split(topic, 0)
            await asyncio.sleep(0.1)
        await asyncio.gather(*(reading.until(sent()) for reading in readings))
        async with sending_on(producer, sent()) as sent:
            await admin.merge(topic, [1, 2])
            await asyncio.sleep(0.1)
        await asyncio.gather(*(reading.until(sent()) for reading in readings))
        for reading in readings:
            reading.check(sent())
        assert sorted((await client.layout(topic)).layout.segments)[-1] == 3


async def test_a_consumer_that_is_behind_reads_each_generation_after_its_parents(
    engine: RunningEngine,
) -> None:
    topic = await engine.new_topic("behind")
    async with engine.client() as client, engine.admin() as admin:
        readings = [SuiteReading(kind, await opened(client, kind, topic)) for kind in KINDS]
        producer = await client.create_producer(topic)
        await send(producer, range(60))
        await admin.split(topic, 0)
        await send(producer, range(60, 120))
        await admin.merge(topic, [1, 2])
        await send(producer, range(120, 180))
        await asyncio.gather(*(reading.until(180) for reading in readings))
        for reading in readings:
            limited = reading.kind in ("stream", "keyed") and engine.lacks(EngineLimit.GENERATIONS)
            reading.check(180, in_order=not limited)


async def test_a_member_that_leaves_gives_its_segments_to_the_others(engine: RunningEngine) -> None:
    topic = await engine.new_topic("shared", 2)
    async with engine.client() as client:
        one, other = [
            await client.subscribe_stream(topic, "group", name=name, initial_position="earliest")
            for name in ("one", "other")
        ]
        await reached(lambda: len(one.assignment) == 1 and len(other.assignment) == 1)
        await other.close()
        await reached(lambda: len(one.assignment) == 2)
        await send(await client.create_producer(topic), range(100))
        reading = SuiteReading("stream", one)
        await reading.until(100)
        reading.check(100)


async def test_a_checkpoint_goes_on_with_the_next_message(engine: RunningEngine) -> None:
    topic = await engine.new_topic("kept")
    async with engine.client() as client, engine.admin() as admin:
        await send(producer := await client.create_producer(topic), range(100))
        first = SuiteReading("checkpoint", await opened(client, "checkpoint", topic))
        await first.until(33)
        kept = first.consumer.checkpoint().to_bytes()
        await first.consumer.close()
        await admin.split(topic, 0)
        await send(producer, range(100, 150))
        start = Checkpoint.from_bytes(kept)
        first.consumer = await client.create_checkpoint_consumer(topic, start=start)
        await first.until(150)
        first.check(150)


@pytest.mark.parametrize("partitions", [0, 3])
async def test_classic_topics_have_every_kind_of_consumer(engine: RunningEngine, partitions: int) -> None:
    topic = f"persistent://public/default/{engine.new_name('classic')}"
    async with engine.client() as client, engine.admin() as admin:
        if partitions or engine.lacks(EngineLimit.CLASSIC_CREATION):
            await admin.create_classic_topic(topic, partitions)
        await send(await client.create_producer(topic), range(60))
        for kind in KINDS:
            if engine.lacks(EngineLimit.CLASSIC_CREATION) and kind != "checkpoint":
                await admin.create_subscription(topic, kind, start="earliest")
            reading = SuiteReading(kind, await opened(client, kind, topic))
            await reading.until(60)
            reading.check(60)
            await reading.consumer.close()


async def test_refused_messages_come_again_and_then_go_to_the_dead_letters(engine: RunningEngine) -> None:
    topic = await engine.new_topic("refused")
    letters = await engine.new_topic("letters")
    async with engine.client() as client:
        await send(await client.create_producer(topic), range(3))
        policy = DeadLetter(1, topic=letters)
        consumer = await opened(client, "queue", topic, redelivery=Backoff(0.1, 0.1), dead_letter=policy)
        found = await client.subscribe_queue(letters, "found", initial_position="earliest")
        deliveries: list[int] = []
        while len(deliveries) < 4:
            message = await consumer.receive(timeout=PATIENCE_S)
            deliveries.append(int(message.data))
            if message.data == b"1":
                await consumer.negative_acknowledge(message)
            else:
                await consumer.acknowledge(message)
        assert sorted(deliveries) == [0, 1, 1, 2]
        assert await consumer.receive_many(1, timeout=0.5) == []
        letter = await found.receive(timeout=PATIENCE_S)
        assert (letter.data, letter.key, letter.properties["REAL_TOPIC"]) == (b"1", "key-1", topic)


@pytest.mark.parametrize("codec", ["lz4", "zlib", "zstd", "snappy"])
async def test_messages_keep_all_their_parts(engine: RunningEngine, codec: Any) -> None:
    topic = await engine.new_topic("parts")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    async with engine.client() as client:
        consumer = await client.subscribe_queue(topic, "q", initial_position="earliest")
        producer = await client.create_producer(topic, compression=codec)
        await producer.send(b"a" * 1000, key="k", properties={"p": codec}, event_time=at)
        await producer.send_many([b"a" * 1000, b"b"], keys=["k", None])
        first, *others = [await consumer.receive(timeout=PATIENCE_S) for _ in range(3)]
        assert (first.data, first.key, first.properties) == (b"a" * 1000, "k", {"p": codec})
        assert first.event_time == at
        assert sorted((message.data, message.key) for message in others) == [(b"a" * 1000, "k"), (b"b", None)]


async def test_values_have_types(engine: RunningEngine) -> None:
    topic = await engine.new_topic("typed")
    async with engine.client() as client:
        producer = await client.create_producer(topic, schema=Schema.json(Order))
        consumer = await client.subscribe_queue(
            topic, "q", schema=Schema.json(Order), initial_position="earliest"
        )
        await producer.send(Order("tea", 2), key="alice")
        assert (await consumer.receive(timeout=PATIENCE_S)).value == Order("tea", 2)


async def test_a_missing_topic_is_created_or_named(engine: RunningEngine) -> None:
    name = f"topic://public/default/{engine.new_name('missing')}"
    async with engine.client() as client:
        if engine.lacks(EngineLimit.CREATION):
            with pytest.raises(TopicNotFoundError, match=name):
                await client.create_producer(name)
        else:
            await send(await client.create_producer(name), range(1))


async def test_an_exclusive_producer_keeps_others_out(engine: RunningEngine) -> None:
    topic = await engine.new_topic("alone", 2)
    async with engine.client() as client:
        first = await client.create_producer(topic, access_mode="exclusive")
        with pytest.raises(ProducerFencedError):
            await client.create_producer(topic, access_mode="exclusive")
        await first.close()
        await send(await client.create_producer(topic, access_mode="exclusive"), range(40))


async def test_a_subscription_moves_to_its_beginning_or_the_refusal_says_why(engine: RunningEngine) -> None:
    topic = await engine.new_topic("moved")
    async with engine.client() as client:
        await send(await client.create_producer(topic), range(10))
        reading = SuiteReading("stream", await opened(client, "stream", topic))
        await reading.until(10)
        if engine.lacks(EngineLimit.MOVING):
            with pytest.raises(UnsupportedFeatureError, match="neither moves nor deletes the subscription"):
                await reading.consumer.seek("earliest")
        else:
            await reading.consumer.seek("earliest")
            again = SuiteReading("stream", reading.consumer)
            await again.until(10)
            again.check(10)


async def test_a_queue_moves_to_its_beginning_through_a_split(engine: RunningEngine) -> None:
    topic = await engine.new_topic("queued", 2)
    async with engine.client() as client, engine.admin() as admin:
        await send(await client.create_producer(topic), range(10))
        reading = SuiteReading("queue", await opened(client, "queue", topic))
        await reading.until(10)
        await admin.split(topic, 0)
        if engine.lacks(EngineLimit.MOVING):
            with pytest.raises(UnsupportedFeatureError, match="neither moves nor deletes the subscription"):
                await reading.consumer.seek("earliest")
        else:
            await reading.consumer.seek("earliest")
            again = SuiteReading("queue", reading.consumer)
            await again.until(10)
            again.check(10)


async def test_a_queue_with_another_consumer_is_not_deleted(engine: RunningEngine) -> None:
    topic = await engine.new_topic("kept-queue")
    async with engine.client() as client:
        one, other = [await opened(client, "queue", topic) for _ in range(2)]
        with pytest.raises(ConsumerBusyError):
            await one.unsubscribe()
        await send(await client.create_producer(topic), range(10))
        reading = SuiteReading("queue", other)
        await reading.until(10)
        reading.check(10)


async def test_a_queue_that_is_deleted_begins_anew(engine: RunningEngine) -> None:
    topic = await engine.new_topic("deleted", 2)
    async with engine.client() as client:
        await send(await client.create_producer(topic), range(40))
        for _ in range(2):
            reading = SuiteReading("queue", await opened(client, "queue", topic))
            await reading.until(40)
            reading.check(40)
            await reading.consumer.unsubscribe()


async def test_calls_beyond_those_of_pulsar_answer_or_are_named_as_missing(engine: RunningEngine) -> None:
    topic = await engine.new_topic("explained")
    async with engine.admin() as admin:
        if engine.lacks(EngineLimit.EXPLAINING):
            with pytest.raises(UnsupportedFeatureError, match=r"no call GET /admin/v2/scalable/.*/why"):
                await admin.why(topic)
            with pytest.raises(UnsupportedFeatureError, match="no call GET /admin/v2/brokers"):
                await admin.brokers()
        else:
            assert (await admin.why(topic)) is not None
            assert len(await admin.brokers()) == 1
