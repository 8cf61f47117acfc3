"""The number of messages that a consumer buffers: as configured, or as many as the application needs."""

from __future__ import annotations

import asyncio

import pytest

from anabranch import AsyncCheckpointConsumer, AsyncStreamConsumer, Checkpoint
from anabranch.client.consume.segments.segments import QUEUE_SIZE
from anabranch.client.decide.consuming.permits import GROWN_BYTES_MAX
from simulation.harness.client_insides import sources_of
from tests.harness.cluster import TOPIC, Brokers

Consumer = AsyncStreamConsumer[bytes] | AsyncCheckpointConsumer[bytes]

COUNT = 20_000


async def publish(brokers: Brokers, size: int = 100) -> None:
    """Entries of a hundred messages each."""
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        for first in range(0, COUNT, 100):
            await producer.send_many(
                [b"%*d" % (size, n) for n in range(first, first + 100)], keys=["k"] * 100
            )


async def read(consumer: Consumer, count: int = COUNT, pause_s: float = 0.0) -> None:
    numbers: list[int] = []
    while len(numbers) < count:
        numbers += [int(message.data) for message in await consumer.receive_many(100, timeout=5)]
        await asyncio.sleep(pause_s)
    assert numbers == list(range(count))


def permits(consumer: Consumer) -> int:
    (source,) = sources_of(consumer).values()
    return source.permits.size


async def subscribe(brokers: Brokers, kind: str, size: int | None = None) -> Consumer:
    client = brokers.client()
    if kind == "stream":
        return await client.subscribe_stream(
            TOPIC, "s", initial_position="earliest", receiver_queue_size=size
        )
    return await client.create_checkpoint_consumer(
        TOPIC, start=Checkpoint.earliest(), receiver_queue_size=size
    )


@pytest.mark.parametrize("kind", ["stream", "checkpoint"])
async def test_the_buffer_grows_for_a_fast_application(brokers: Brokers, kind: str) -> None:
    await publish(brokers)
    consumer = await subscribe(brokers, kind)
    await read(consumer)
    assert 4 * QUEUE_SIZE <= permits(consumer) <= GROWN_BYTES_MAX / 100


@pytest.mark.parametrize("kind", ["stream", "checkpoint"])
async def test_the_buffer_stays_for_a_slow_application(brokers: Brokers, kind: str) -> None:
    await publish(brokers)
    consumer = await subscribe(brokers, kind)
    await read(consumer, COUNT // 2, pause_s=0.01)
    assert permits(consumer) == QUEUE_SIZE


async def test_the_buffer_stays_for_a_reader_that_has_caught_up(brokers: Brokers) -> None:
    consumer = await subscribe(brokers, "stream")
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        for number in range(5 * QUEUE_SIZE // 100):
            await producer.send_many([b"%d" % number] * 100)
            assert len(await consumer.receive_many(1000, timeout=1)) == 100
    assert permits(consumer) == QUEUE_SIZE


async def test_the_buffer_stays_when_messages_are_large(brokers: Brokers) -> None:
    await publish(brokers, size=GROWN_BYTES_MAX // QUEUE_SIZE // 2)
    consumer = await subscribe(brokers, "stream")
    await read(consumer)
    assert permits(consumer) == QUEUE_SIZE


async def test_a_configured_size_is_kept(brokers: Brokers) -> None:
    await publish(brokers)
    consumer = await subscribe(brokers, "stream", 2000)
    await read(consumer)
    assert permits(consumer) == 2000
