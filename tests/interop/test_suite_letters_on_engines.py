"""Retry topics and dead letters of our client on each engine, and readers beside a broker that prunes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from anabranch import AsyncClient, Backoff, Checkpoint, DeadLetter
from anabranch.errors import DataLossError
from tests.interop.engines import EngineLimit, RunningEngine
from tests.interop.suite import PATIENCE_S, SuiteReading, opened, send

# The first run downloads some 250 MB for Pulsar.
pytestmark = [pytest.mark.timeout(900), pytest.mark.real_time]

PRUNING_S = 240.0
"""5.0.0-M1 prunes once a minute."""
OPENERS = 10
"""So many open readers all the time that some of them are opening when the broker prunes."""


async def test_a_message_comes_from_the_retry_topic_and_then_is_a_dead_letter(engine: RunningEngine) -> None:
    topic, retries, letters = [await engine.new_topic(word) for word in ("retried", "retries", "given-up")]
    async with engine.client() as client:
        consumer: Any = await opened(
            client, "queue", topic, retry_topic=retries, dead_letter=DeadLetter(1, topic=letters)
        )
        found = await client.subscribe_queue(letters, "found", initial_position="earliest")
        await send(await client.create_producer(topic), range(1))
        await consumer.reconsume_later(await consumer.receive(timeout=PATIENCE_S), delay=0.3)
        again = await consumer.receive(timeout=PATIENCE_S)
        assert (again.data, again.key, again.topic) == (b"0", "key-0", retries)
        assert (again.properties["RECONSUMETIMES"], again.properties["REAL_TOPIC"]) == ("1", topic)
        await consumer.reconsume_later(again, reason="no cup")
        letter = await found.receive(timeout=PATIENCE_S)
        assert (letter.data, letter.key, letter.properties["REAL_TOPIC"]) == (b"0", "key-0", topic)
        assert await consumer.receive_many(1, timeout=0.5) == []


async def test_a_missing_dead_letter_topic_is_created_or_named(
    engine: RunningEngine, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await engine.new_topic("poisoned")
    async with engine.client() as client:
        await send(await client.create_producer(topic), range(1))
        consumer = await opened(
            client, "queue", topic, redelivery=Backoff(0.1, 0.1), dead_letter=DeadLetter(1)
        )
        for _ in range(2):
            await consumer.negative_acknowledge(await consumer.receive(timeout=PATIENCE_S))
        assert await consumer.receive_many(1, timeout=2) == []
        if engine.lacks(EngineLimit.CREATION):
            missing = f"the dead letter topic {topic}-DLQ does not exist"
            assert caplog.text.count(missing) == 1
            # The message is kept until there is a place for it.
            async with engine.admin() as admin:
                await admin.create_topic(f"{topic}-DLQ")
        # A letter is forwarded when its message comes again, to a consumer that asks for messages.
        asking = asyncio.create_task(consumer.receive_many(1, timeout=PATIENCE_S))
        letters = await client.subscribe_queue(f"{topic}-DLQ", "found", initial_position="earliest")
        assert (await letters.receive(timeout=PATIENCE_S)).data == b"0"
        asking.cancel()


@pytest.mark.long
async def test_readers_that_open_while_segments_are_pruned_report_no_loss(engine: RunningEngine) -> None:
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    namespace = await engine.new_namespace("pruned", retention=nothing)
    topic = f"topic://{namespace}/orders"
    async with engine.client() as client, engine.admin() as admin:
        await admin.create_topic(topic)
        reading = SuiteReading("stream", await opened(client, "stream", topic))
        producer = await client.create_producer(topic)
        await send(producer, range(20))
        await reading.until(20)
        await admin.split(topic, 0)
        await send(producer, range(20, 60))
        pruned = asyncio.Event()
        openers = [asyncio.create_task(open_readers(client, topic, pruned)) for _ in range(OPENERS)]
        async with asyncio.timeout(PRUNING_S):
            while 0 in (await client.layout(topic)).layout.segments:  # noqa: ASYNC110 - a probe
                await asyncio.sleep(0.05)
        pruned.set()
        assert sum(await asyncio.gather(*openers)) >= OPENERS
        await check_reader(client, topic)


async def open_readers(client: AsyncClient, topic: str, pruned: asyncio.Event) -> int:
    """Open readers until the segment is pruned; returns their number."""
    count = 0
    while not pruned.is_set():
        # A reader that had opened, and reads the segment when it is pruned, has a loss to report.
        with suppress(ReadLostError):
            await check_reader(client, topic)
        count += 1
    return count


class ReadLostError(Exception):
    """A reader that had opened before reports that a segment is gone."""


async def check_reader(client: AsyncClient, topic: str) -> None:
    """Each reader gets the messages that no consumer has acknowledged; the others may be gone."""
    async with await client.create_checkpoint_consumer(topic, start=Checkpoint.earliest()) as reader:
        missing = set(range(20, 60))
        while missing:
            try:
                missing.discard(int((await reader.receive(timeout=PATIENCE_S)).data))
            except DataLossError as error:
                raise ReadLostError from error
