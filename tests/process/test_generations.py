"""Backlog of several layout generations, read while brokers die: each key in strict order."""

from __future__ import annotations

import asyncio

import pytest

from anabranch import AsyncClient, AsyncStreamConsumer
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess

from .conftest import MakeBroker
from .stored import keys_over_the_ring

NAME = TopicName.parse("topic://public/default/orders")
KEYS = keys_over_the_ring(64)
ROUND = 20
"""Messages of each key in a generation."""
GENERATIONS = 3


class Seen:
    """The messages of all consumers, in the order in which they were received."""

    def __init__(self) -> None:
        self.newest = dict.fromkeys(KEYS, -1)
        self.last = dict.fromkeys(KEYS, -1)
        self.count = 0
        self.changed = asyncio.Condition()

    async def take(self, key: str, number: int) -> None:
        """Numbers of a key rise; unacknowledged numbers come again after a broker died."""
        assert number <= self.last[key] + 1, f"{key}: {number} came after {self.last[key]}"
        self.last[key] = number
        if number > self.newest[key]:
            self.newest[key] = number
            async with self.changed:
                self.count += 1
                self.changed.notify_all()

    async def until(self, part: float) -> None:
        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(lambda: self.count >= part * GENERATIONS * ROUND * len(KEYS))


async def publish(client: AsyncClient, generation: int) -> None:
    producer = await client.create_producer(str(NAME))
    for number in range(generation * ROUND, (generation + 1) * ROUND):
        await producer.send_many([str(number).encode()] * len(KEYS), keys=KEYS)
    await producer.close()


async def read(consumer: AsyncStreamConsumer[bytes], seen: Seen, pause_s: float) -> None:
    """Read at a different pace, so that the parents of the merged segment are drained one after the other."""
    while True:
        messages = await consumer.receive_many(50, timeout=0.2)
        for message in messages:
            await seen.take(message.key or "", int(message.data))
        if messages:
            await consumer.acknowledge_cumulative(messages[-1])
        await asyncio.sleep(pause_s)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_late_reader_and_a_killed_leader_change_the_order_of_no_key(
    make_broker: MakeBroker, workers: int
) -> None:
    broker: BrokerProcess = make_broker(scalableTopicAutoScaleEnabled="false", workers=workers).start()
    with AdminClient(broker.http_url) as admin:
        admin.create_topic(NAME)
        admin.create_subscription(NAME, "stream")
        async with AsyncClient(broker.url) as client:
            await publish(client, 0)
            admin.split(NAME, 0, parts=3)
            await publish(client, 1)
            admin.merge(NAME, [1, 2, 3])
            await publish(client, 2)
    await read_with_three(broker)


def kill_leader(broker: BrokerProcess) -> None:
    """SIGKILL to the process that leads the topic."""
    with AdminClient(broker.http_url) as admin:
        home = plain(admin.topic_metadata(NAME))["store"]
    broker.kill_owner(home)


async def read_with_three(broker: BrokerProcess) -> None:
    seen = Seen()
    async with AsyncClient(broker.url) as client, asyncio.TaskGroup() as tasks:
        readers: list[asyncio.Task[None]] = []

        async def join(name: str, pause_s: float) -> None:
            consumer = await client.subscribe_stream(str(NAME), "stream", name=name)
            readers.append(tasks.create_task(read(consumer, seen, pause_s)))

        await join("first", 0.01)
        await join("second", 0.1)
        await seen.until(0.2)
        await join("late", 0.03)
        await seen.until(0.4)
        kill_leader(broker)
        await seen.until(1.0)
        for reader in readers:
            reader.cancel()
