"""The queue consumer that keeps the order of keys, against a real broker on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from anabranch import AsyncQueueConsumer, Backoff, DeadLetter, Message
from anabranch.errors import InvalidConfigurationError
from tests.harness.cluster import TOPIC, Brokers


async def publish(brokers: Brokers, count: int, *, keys: int = 4, first: int = 0) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        numbers = range(first, first + count)
        await producer.send_many([b"%d" % n for n in numbers], keys=[f"key-{n % keys}" for n in numbers])


async def drain(consumer: AsyncQueueConsumer[bytes], timeout: float = 0.5) -> list[Message[bytes]]:
    found: list[Message[bytes]] = []
    while messages := await consumer.receive_many(100, timeout=timeout):
        found += messages
    return found


def numbers(messages: list[Message[bytes]]) -> list[int]:
    return [int(message.data) for message in messages]


def of_key(messages: list[Message[bytes]], key: int) -> list[int]:
    return [int(message.data) for message in messages if message.key == f"key-{key}"]


OPTIONS: dict[str, Any] = {"initial_position": "earliest", "order": "key"}


async def test_messages_of_a_key_come_in_order_through_a_split(brokers: Brokers) -> None:
    await publish(brokers, 40)
    await (await brokers.controller()).split(0)
    await publish(brokers, 40, first=40)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", **OPTIONS)
        first = await drain(consumer)
        assert max(numbers(first)) < 40, "children open when their parent is acknowledged"
        await consumer.acknowledge(first)
        second = await drain(consumer)
        await consumer.acknowledge(second)
        assert all(of_key(first + second, key) == list(range(key, 80, 4)) for key in range(4))


async def test_a_refused_message_pauses_its_key_and_comes_again_first(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", **OPTIONS, redelivery=Backoff(5, 5, jitter=0))
        await publish(brokers, 4)
        first = await drain(consumer)
        refused = next(message for message in first if message.key == "key-1")
        await consumer.acknowledge([message for message in first if message is not refused])
        began = brokers.loop.time()
        await consumer.negative_acknowledge(refused)
        await publish(brokers, 40, first=4)
        others = await drain(consumer)
        assert of_key(others, 1) == [], "later messages of the key wait"
        assert len(others) == 30, "other keys go on"
        again = await consumer.receive(timeout=10)
        assert 4.9 < brokers.loop.time() - began < 5.2
        assert (again.value, again.redelivery_count) == (refused.value, 1)
        await consumer.negative_acknowledge(again, delay=0)
        rest = await drain(consumer)
        assert of_key(rest, 1) == list(range(1, 44, 4))
        assert rest[0].redelivery_count == 2
        await consumer.acknowledge(others + rest)
        await consumer.close()
        left = await client.subscribe_queue(TOPIC, "q", order="key")
        assert await drain(left) == []


async def test_refused_messages_of_a_key_come_again_in_their_order(brokers: Brokers) -> None:
    await publish(brokers, 5, keys=1)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", **OPTIONS)
        messages = await drain(consumer)
        await consumer.negative_acknowledge(messages[2], delay=1)
        await consumer.negative_acknowledge(messages[4], delay=1)
        await consumer.negative_acknowledge(messages[1], delay=2)
        again = await drain(consumer, timeout=3)
        assert [(int(m.data), m.redelivery_count) for m in again] == [(1, 1), (2, 1), (4, 1)]


async def test_a_lost_connection_keeps_refused_messages_and_their_order(brokers: Brokers) -> None:
    await publish(brokers, 20, keys=2)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", **OPTIONS, receiver_queue_size=4)
        first = await consumer.receive(timeout=1)
        await consumer.negative_acknowledge(first, delay=10)
        brokers.kill()
        await brokers.start()
        found = await drain(consumer, timeout=12)
        key = int(first.data) % 2
        assert of_key(found, key) == list(range(key, 20, 2))
        assert of_key(found, 1 - key) == list(range(1 - key, 20, 2))


async def test_consumers_share_a_topic_and_hand_over_after_acknowledgement(brokers: Brokers) -> None:
    await publish(brokers, 40)
    async with brokers.client() as one, brokers.client() as two:
        a = await one.subscribe_queue(TOPIC, "q", **OPTIONS)
        held = await drain(a)
        joining = asyncio.ensure_future(two.subscribe_queue(TOPIC, "q", **OPTIONS))
        await asyncio.sleep(2)
        await publish(brokers, 40, first=40)
        await a.negative_acknowledge(held[0], delay=60)
        await a.acknowledge(held[1:])
        b = await joining
        handled: dict[int, list[int]] = defaultdict(list)
        for _ in range(10):
            for consumer in (a, b):
                messages = await consumer.receive_many(100, timeout=0.5)
                for message in messages:
                    handled[int(message.data) % 4].append(int(message.data))
                await consumer.acknowledge(messages)
        refused = int(held[0].data)
        expected = {key: list(range(40 + key, 80, 4)) for key in range(4)}
        expected[refused % 4].insert(0, refused)
        assert dict(handled) == expected, "the refused message goes to the next reader, before later ones"


async def test_a_dead_letter_lets_its_key_continue_and_carries_its_origin(brokers: Brokers) -> None:
    await publish(brokers, 10, keys=1)
    async with brokers.client() as client:
        letters = await client.subscribe_queue(f"{TOPIC}-DLQ", "q")
        consumer = await client.subscribe_queue(
            TOPIC, "q", **OPTIONS, redelivery=Backoff(1, 1), dead_letter=DeadLetter(2)
        )
        for attempt in range(3):
            message = await consumer.receive(timeout=5)
            assert (int(message.data), message.redelivery_count) == (0, attempt)
            with pytest.raises(ValueError, match="oops"):
                async with consumer.processing(message):
                    raise ValueError("oops")
        assert numbers(await drain(consumer)) == list(range(1, 10))
        letter = await letters.receive(timeout=5)
        assert (letter.value, letter.key) == (b"0", "key-0")
        assert letter.properties["REAL_TOPIC"] == TOPIC
        assert letter.properties["ORIGIN_MESSAGE_ID"] == str(message.id)
        assert letter.properties["ORIGIN_SEGMENT"] == "0"
        assert letter.properties["DEAD_LETTER_REASON"] == "ValueError: oops"
        assert letter.properties["DEAD_LETTER_ATTEMPTS"] == "3"


@pytest.mark.parametrize("policy", ["park", "block"])
async def test_a_parked_key_waits_and_a_blocked_one_tries_for_ever(brokers: Brokers, policy: Any) -> None:
    await publish(brokers, 10, keys=2)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(
            TOPIC, "q", **OPTIONS, redelivery=Backoff(1, 1), dead_letter=DeadLetter(2, policy=policy)
        )
        done: list[int] = []

        async def handle(message: Message[bytes]) -> None:
            if message.value == b"0":
                raise ValueError("never")
            done.append(int(message.data))

        statistics = await consumer.run(handle, stop=20)
        assert done == [1, 3, 5, 7, 9]
        assert statistics.parked == (policy == "park")
        assert statistics.failed == 3 if policy == "park" else statistics.failed > 10


async def test_policies_that_need_the_order_of_keys_are_refused_without_it(brokers: Brokers) -> None:
    async with brokers.client() as client:
        with pytest.raises(InvalidConfigurationError, match="park"):
            await client.subscribe_queue(TOPIC, "q", dead_letter=DeadLetter(1, policy="park"))
        with pytest.raises(InvalidConfigurationError, match="processing_timeout"):
            await client.subscribe_queue(TOPIC, "q", order="key", processing_timeout=1)
        with pytest.raises(InvalidConfigurationError, match="policy"):
            DeadLetter(1, policy="bury")  # type: ignore[arg-type]


async def test_a_consumer_takes_no_more_when_too_many_messages_wait(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", **OPTIONS, receiver_queue_size=10)
        await publish(brokers, 2, keys=1)
        first, _ = await drain(consumer)
        await consumer.negative_acknowledge(first, delay=60)
        await publish(brokers, 500, keys=1, first=2)
        await publish(brokers, 20, keys=7, first=10_001)
        assert await drain(consumer, timeout=5) == []
        found = await drain(consumer, timeout=70)
        await consumer.acknowledge(found)
        assert of_key(found, 0)[:501] == [0, *range(2, 502)]
        assert len(found) == 521


async def test_a_subscription_may_change_from_no_order_to_key_order_and_back(brokers: Brokers) -> None:
    await publish(brokers, 40)
    async with brokers.client() as client:
        handled: list[int] = []
        for order in ("none", "key", "none"):
            consumer = await client.subscribe_queue(
                TOPIC,
                "q",
                initial_position="earliest",
                order=order,
                receiver_queue_size=10,
            )
            messages = await consumer.receive_many(10, timeout=5)
            handled += numbers(messages)
            await consumer.acknowledge(messages)
            await consumer.close()
        consumer = await client.subscribe_queue(TOPIC, "q", order="key")
        handled += numbers(await drain(consumer))
        assert sorted(handled) == list(range(40))
