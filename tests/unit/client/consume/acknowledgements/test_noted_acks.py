"""Messages acknowledged one by one: they are only noted at first, and count from that moment on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from anabranch import AsyncClient, AsyncQueueConsumer, Message
from tests.harness.cluster import TOPIC, Brokers

COUNT = 40
LATE_S = 600.0
"""Acknowledgements wait longer than any test for a group, so that only a note of them exists."""


async def take(brokers: Brokers, consumer: AsyncQueueConsumer[bytes]) -> list[Message[bytes]]:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        await producer.send_many([b"%d" % n for n in range(COUNT)])
    found = [await consumer.receive(timeout=10) for _ in range(COUNT)]
    return sorted(found, key=lambda message: int(message.data))


async def test_a_noted_message_is_not_given_back(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", ack_group_time=LATE_S)
        messages = await take(brokers, consumer)
        for message in messages[:7]:
            await consumer.acknowledge(message)
        for message in messages[5:9]:
            await consumer.negative_acknowledge(message, delay=0)
        again = await consumer.receive_many(COUNT, timeout=5)
        assert sorted(int(message.data) for message in again) == [7, 8]


async def left(client: AsyncClient, subscription: str = "q") -> list[int]:
    """The numbers of the messages that a new consumer still gets."""
    consumer = await client.subscribe_queue(TOPIC, subscription)
    found: list[Message[bytes]] = []
    while messages := await consumer.receive_many(COUNT, timeout=5):
        found += messages
    return sorted(int(message.data) for message in found)


@pytest.mark.parametrize("order", [range(COUNT), range(3, 9), (3, 9, 3, 6), (30, 3, 17, 3, 4, 31, 0)])
async def test_notes_in_any_order_and_twice_are_exact(brokers: Brokers, order: Sequence[int]) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", ack_group_time=LATE_S)
        messages = await take(brokers, consumer)
        for number in order:
            await consumer.acknowledge(messages[number])
        await consumer.close()
        assert await left(client) == sorted(set(range(COUNT)) - set(order))


async def test_notes_before_a_seek_do_not_count_after_it(brokers: Brokers) -> None:
    async with brokers.client() as client, brokers.client() as other:
        consumer = await client.subscribe_queue(TOPIC, "q", ack_group_time=LATE_S)
        for message in await take(brokers, consumer):
            await consumer.acknowledge(message)
        mover = await other.subscribe_queue(TOPIC, "q")
        await mover.seek("earliest")
        await consumer.close()
        await mover.close()
        assert await left(client) == list(range(COUNT))


async def test_a_message_is_acknowledged_for_the_subscription_of_each_consumer(brokers: Brokers) -> None:
    async with brokers.client() as client:
        first = await client.subscribe_queue(TOPIC, "q", ack_group_time=LATE_S)
        second = await client.subscribe_queue(TOPIC, "other", ack_group_time=LATE_S)
        for message in (await take(brokers, first))[:5]:
            await first.acknowledge(message)
            await second.acknowledge(message)
        await first.close()
        await second.close()
        assert await left(client) == list(range(5, COUNT))
        assert await left(client, "other") == list(range(5, COUNT))
