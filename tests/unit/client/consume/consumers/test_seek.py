"""Seek, unsubscribe, pause and resume against a real broker on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from anabranch import AsyncClient, Batching, Checkpoint, MessageId
from anabranch.errors import (
    AlreadyClosedError,
    ConsumerBusyError,
    InvalidConfigurationError,
    ReceiveTimeoutError,
)
from tests.harness.cluster import TOPIC, Brokers

CLASSIC = "persistent://public/default/classic"
KEYS = [f"key-{n}" for n in range(20)]
KINDS = ["stream", "queue", "keyed"]

Seen = dict[str, list[int]]


async def publish(client: AsyncClient, lo: int, hi: int, topic: str = TOPIC) -> None:
    async with await client.create_producer(topic, batching=Batching(max_messages=7)) as producer:
        for number in range(lo, hi):
            await producer.send_many([b"%d" % number] * len(KEYS), keys=KEYS)


async def subscribe(client: AsyncClient, kind: str, topic: str = TOPIC, **more: Any) -> Any:
    if kind == "stream":
        return await client.subscribe_stream(topic, "s", initial_position="earliest", **more)
    order: Any = "key" if kind == "keyed" else "none"
    return await client.subscribe_queue(topic, "s", initial_position="earliest", order=order, **more)


async def take(consumer: Any, count: int | None = None, seen: Seen | None = None) -> Seen:
    """Take messages and acknowledge them, until `count` came or none comes for a second."""
    seen = defaultdict(list) if seen is None else seen
    left = 10**9 if count is None else count
    while left and (messages := await consumer.receive_many(min(left, 10), timeout=1.0)):
        for message in messages:
            seen[message.key].append(int(message.value))
        if hasattr(consumer, "acknowledge_cumulative"):
            await consumer.acknowledge_cumulative(messages[-1])
        else:
            await consumer.acknowledge(messages)
        left -= len(messages)
    return {key: sorted(numbers) for key, numbers in seen.items()} if kind_of(consumer) == "queue" else seen


def kind_of(consumer: Any) -> str:
    return "queue" if type(consumer).__name__ == "AsyncQueueConsumer" else "ordered"


def every(lo: int, hi: int) -> Seen:
    return {key: list(range(lo, hi)) for key in KEYS}


@pytest.mark.parametrize("topic", [TOPIC, CLASSIC])
@pytest.mark.parametrize("kind", KINDS)
async def test_seek_goes_to_the_beginning_the_end_or_a_time(brokers: Brokers, kind: str, topic: str) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 5, topic)
        if topic == TOPIC:
            await (await brokers.controller()).split(0)
        await asyncio.sleep(10.0)
        between = datetime.fromtimestamp(brokers.clock.wall_ms() / 1000, UTC)
        await asyncio.sleep(10.0)
        await publish(client, 5, 10, topic)
        consumer = await subscribe(client, kind, topic)
        assert await take(consumer, 110) != {}
        await consumer.seek("earliest")
        assert await take(consumer) == every(0, 10)
        await consumer.seek(between)
        assert await take(consumer) == every(5, 10)
        await consumer.seek("earliest")
        await consumer.seek(MessageId.latest())
        await publish(client, 10, 12, topic)
        assert await take(consumer) == every(10, 12)


@pytest.mark.parametrize("kind", ["stream", "keyed"])
async def test_seek_moves_every_consumer_of_the_subscription(brokers: Brokers, kind: str) -> None:
    async with brokers.client() as one, brokers.client() as two:
        await publish(one, 0, 5)
        await (await brokers.controller()).split(0)
        await publish(one, 5, 10)
        consumers = [await subscribe(client, kind) for client in (one, two)]
        await asyncio.gather(*map(take, consumers))
        await consumers[0].seek("earliest")
        seen: Seen = defaultdict(list)
        await asyncio.gather(*(take(consumer, seen=seen) for consumer in consumers))
        assert seen == every(0, 10)


@pytest.mark.parametrize("kind", KINDS)
async def test_seek_behind_a_message_reads_the_later_ones_again(brokers: Brokers, kind: str) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 4)
        consumer = await subscribe(client, kind)
        messages = [await consumer.receive(timeout=5) for _ in range(34)]
        chosen = messages[33].id.to_bytes()
        messages += [await consumer.receive(timeout=5) for _ in range(46)]
        await (await brokers.controller()).split(0)
        await publish(client, 4, 6)
        if kind == "stream":
            await consumer.acknowledge_cumulative(messages[-1])
        else:
            await consumer.acknowledge(messages)
        assert await take(consumer) == every(4, 6)
        await consumer.seek(MessageId.from_bytes(chosen))
        expected: Seen = defaultdict(list)
        for message in messages[34:]:
            expected[message.key].append(int(message.value))
        for key in KEYS:
            expected[key] += [4, 5]
        assert await take(consumer) == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_messages_from_before_a_seek_are_neither_handed_out_nor_acknowledged(
    brokers: Brokers, kind: str
) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 5)
        consumer = await subscribe(client, kind)
        old = await consumer.receive_many(50, timeout=5)
        seeking = asyncio.ensure_future(consumer.seek("earliest"))
        await asyncio.sleep(0)
        if kind == "stream":
            await consumer.acknowledge_cumulative(old[-1])
        else:
            await consumer.acknowledge(old)
        await seeking
        assert await take(consumer) == every(0, 5)


async def test_seek_survives_the_restart_of_the_broker(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 5)
        consumer = await subscribe(client, "stream")
        assert await take(consumer) == every(0, 5)
        seeking = asyncio.ensure_future(consumer.seek("earliest", timeout=60))
        await brokers.restart()
        await seeking
        assert await take(consumer) == every(0, 5)


@pytest.mark.parametrize("wrong", ["middle", 17, datetime(2026, 1, 1)])
async def test_a_wrong_target_is_refused_before_anything_moves(brokers: Brokers, wrong: Any) -> None:
    async with brokers.client() as client:
        consumer = await subscribe(client, "queue")
        with pytest.raises(InvalidConfigurationError):
            await consumer.seek(wrong)
        await publish(client, 0, 1)
        assert await take(consumer) == every(0, 1)


@pytest.mark.parametrize("topic", [TOPIC, CLASSIC])
@pytest.mark.parametrize("kind", KINDS)
async def test_unsubscribe_deletes_the_subscription_and_closes(
    brokers: Brokers, kind: str, topic: str
) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 2, topic)
        consumer = await subscribe(client, kind, topic)
        assert await take(consumer) == every(0, 2)
        await consumer.unsubscribe()
        with pytest.raises(AlreadyClosedError):
            await consumer.receive(timeout=1)
        again = await subscribe(client, kind, topic)
        assert await take(again) == every(0, 2), "the subscription was created again, at the beginning"


@pytest.mark.parametrize("topic", [TOPIC, CLASSIC])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_subscription_that_others_use_is_not_deleted(brokers: Brokers, kind: str, topic: str) -> None:
    async with brokers.client() as one, brokers.client() as two:
        await publish(one, 0, 2, topic)
        first, second = await subscribe(one, kind, topic), await subscribe(two, kind, topic)
        await asyncio.gather(take(first), take(second))
        with pytest.raises(ConsumerBusyError, match=r"has (other|connected) consumers"):
            await first.unsubscribe()
        await publish(one, 2, 4, topic)
        assert await take(second) == every(2, 4)


@pytest.mark.parametrize("kind", [*KINDS, "checkpoint"])
async def test_a_paused_consumer_hands_out_nothing_until_it_is_resumed(brokers: Brokers, kind: str) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 5)
        if kind == "checkpoint":
            consumer: Any = await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
        else:
            consumer = await subscribe(client, kind)
        first = await consumer.receive(timeout=5)
        assert int(first.value) == 0
        consumer.pause()
        assert consumer.paused
        with pytest.raises(ReceiveTimeoutError):
            await consumer.receive(timeout=2)
        assert await consumer.receive_many(5, timeout=2) == []
        await (await brokers.controller()).split(0)
        waiting = asyncio.ensure_future(consumer.receive(timeout=30))
        await asyncio.sleep(5)
        assert not waiting.done()
        consumer.resume()
        found = [first, await waiting]
        while messages := await consumer.receive_many(100, timeout=1.0):
            found += messages
        assert len(found) == 100


async def test_closing_ends_the_waiting_of_a_paused_consumer(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await subscribe(client, "queue")
        consumer.pause()
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(1)
        await consumer.close()
        with pytest.raises(AlreadyClosedError):
            await waiting
        consumer.resume()
        with pytest.raises(AlreadyClosedError):
            await consumer.receive()


async def test_a_run_waits_while_its_consumer_is_paused(brokers: Brokers) -> None:
    handled: list[int] = []

    async def handle(message: Any) -> None:
        handled.append(int(message.value))

    async with brokers.client() as client:
        consumer = await subscribe(client, "stream")
        run = asyncio.ensure_future(consumer.run(handle))
        consumer.pause()
        await publish(client, 0, 2)
        await asyncio.sleep(5)
        assert handled == []
        consumer.resume()
        await asyncio.sleep(5)
        assert sorted(handled) == sorted([0, 1] * len(KEYS))
        run.cancel()
