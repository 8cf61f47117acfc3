"""Consumers that seek, pause, and read several topics, while brokers are killed and topics split."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from anabranch import AsyncClient
from anabranch.admin.client import AdminClient

from .conftest import MakeBroker

COUNT = 200
PATIENCE_S = 20.0


async def publish(client: AsyncClient, topic: str, first: int = 0) -> None:
    producer = await client.create_producer(topic)
    numbers = range(first, first + COUNT)
    await producer.send_many(
        [b"%s %d" % (topic.encode(), n) for n in numbers], [f"k{n % 10}" for n in numbers]
    )
    await producer.close()


async def take(consumer: Any, count: int) -> dict[str, list[int]]:
    """Receive until `count` different messages came; return the numbers of each key of each topic, once."""
    found: dict[str, list[int]] = {}
    while sum(map(len, found.values())) < count:
        messages = await consumer.receive_many(count, timeout=PATIENCE_S)
        assert messages, f"only {sum(map(len, found.values()))} of {count} messages came"
        for message in messages:
            topic, number = message.data.decode().split()
            numbers = found.setdefault(f"{topic} {message.key}", [])
            if int(number) not in numbers:
                numbers.append(int(number))
        if hasattr(consumer, "topics"):
            await consumer.acknowledge(messages)
        else:
            await consumer.acknowledge_cumulative(messages[-1])
    return found


def in_order(topic: str, first: int = 0) -> dict[str, list[int]]:
    """The numbers of each key in the order they were sent."""
    return {f"{topic} k{key}": list(range(first + key, first + COUNT, 10)) for key in range(10)}


async def test_a_seek_and_a_pause_survive_a_split_and_a_kill(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    async with AsyncClient(broker.url) as client:
        consumer = await client.subscribe_stream("orders", "s", initial_position="earliest")
        await publish(client, "orders")
        assert await take(consumer, COUNT) == in_order("orders")
        with AdminClient(broker.http_url) as admin:
            await asyncio.to_thread(admin.split, "topic://public/default/orders", 0)
        await consumer.seek("earliest")
        assert await take(consumer, COUNT) == in_order("orders"), "the seek reaches the sealed parent"
        await consumer.flush_acks()
        await consumer.seek("earliest")
        consumer.pause()
        broker.kill()
        broker.start()
        assert await consumer.receive_many(10, timeout=0.5) == [], "it stays paused"
        consumer.resume()
        assert await take(consumer, COUNT) == in_order("orders"), "the seek is durable"
        await consumer.flush_acks()
        await publish(client, "orders", COUNT)
        assert await take(consumer, COUNT) == in_order("orders", COUNT)


async def test_several_topics_are_read_on_after_a_kill_and_a_split(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    async with AsyncClient(broker.url) as client:
        for topic in ("orders-tea", "orders-milk"):
            await client.layout(topic, create=True)
        consumer = await client.subscribe_topics(
            re.compile("orders-.*"), "audit", initial_position="earliest"
        )
        assert len(consumer.topics) == 2
        consumer.pause()
        await publish(client, "orders-tea")
        broker.kill()
        broker.start()
        with AdminClient(broker.http_url) as admin:
            await asyncio.to_thread(admin.split, "topic://public/default/orders-milk", 0)
        await publish(client, "orders-milk")
        await publish(client, "orders-late")
        assert await consumer.receive_many(10, timeout=0.5) == [], "it stays paused"
        consumer.resume()
        found = await take(consumer, 3 * COUNT)
        wanted = {**in_order("orders-tea"), **in_order("orders-milk"), **in_order("orders-late")}
        assert {key: sorted(numbers) for key, numbers in found.items()} == wanted
        assert len(consumer.topics) == 3, "a topic that comes later is read from its first message"
