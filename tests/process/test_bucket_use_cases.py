"""The three use cases of PIP-486 with real brokers: a backlog, many consumers at low load, a full topic."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from anabranch import AsyncClient
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.model.names import TopicName
from tests.process.conftest import MakeBroker

TOPIC = TopicName.parse("topic://public/default/orders")
PATIENCE_S = 25.0


class ReaderGroup:
    """Consumers of one stream subscription; checks the order of every key over all of them."""

    def __init__(self) -> None:
        self.consumers: list[Any] = []
        self.received = 0
        self.by_consumer: dict[int, int] = defaultdict(int)
        self.by_segment: dict[int, set[int]] = defaultdict(set)
        """The consumers that received messages of each segment."""
        self.pause_s = 0.0
        """Work per message."""
        self._last: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self, clients: Sequence[AsyncClient], count: int) -> None:
        opened = (
            clients[number % len(clients)].subscribe_stream(
                str(TOPIC), "s", initial_position="earliest", receiver_queue_size=20, ack_group_time=0.01
            )
            for number in range(count)
        )
        for consumer in await asyncio.gather(*opened):
            number = len(self.consumers)
            self.consumers.append(consumer)
            self._tasks.append(asyncio.create_task(self._read(number, consumer)))

    async def _read(self, number: int, consumer: Any) -> None:
        while True:
            message = await consumer.receive()
            key, count = message.key, int(message.value)
            assert self._last.get(key, -1) == count - 1, f"{key}: {count} after {self._last.get(key)}"
            self._last[key] = count
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
            await consumer.acknowledge_cumulative(message)
            self.received += 1
            self.by_consumer[number] += 1
            self.by_segment[message.id.segment].add(number)

    async def until(self, done: Callable[[], object]) -> None:
        """Wait, and fail with the first error of a reader."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.result()
            assert time.monotonic() < deadline, f"{self.received} received, by {dict(self.by_consumer)}"
            await asyncio.sleep(0.05)

    async def leave(self, count: int) -> None:
        """Close the last consumers."""
        for task in self._tasks[-count:]:
            task.cancel()
        await asyncio.gather(*self._tasks[-count:], return_exceptions=True)
        await asyncio.gather(*(consumer.close() for consumer in self.consumers[-count:]))
        del self._tasks[-count:], self.consumers[-count:]


class RoundSender:
    """Sends messages of many keys, each with the next number of its key."""

    def __init__(self, producer: Any, keys: int) -> None:
        self.sent = 0
        self._producer = producer
        self._keys = [f"key-{number}" for number in range(keys)]
        self._round = 0

    async def send(self, rounds: int) -> None:
        for _ in range(rounds):
            await self._producer.send_many([b"%d" % self._round] * len(self._keys), keys=self._keys)
            self._round += 1
            self.sent += len(self._keys)


@asynccontextmanager
async def opened(
    url: str, clients: int, keys: int
) -> AsyncIterator[tuple[list[AsyncClient], RoundSender, ReaderGroup]]:
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(AsyncClient(url)) for _ in range(clients)]
        producer = await stack.enter_async_context(await made[0].create_producer(str(TOPIC)))
        readers = ReaderGroup()
        try:
            yield made, RoundSender(producer, keys), readers
        finally:
            if readers.consumers:
                await readers.leave(len(readers.consumers))


def active_segments(admin: AdminClient) -> dict[int, int]:
    """The number of buckets of each active segment."""
    segments = plain(admin.topic_stats(TOPIC))["segments"]
    return {int(id_): one["bucketCount"] for id_, one in segments.items() if one["state"] == "ACTIVE"}


async def test_a_sealed_backlog_is_drained_by_many_consumers_and_then_each_has_a_segment(
    make_broker: MakeBroker,
) -> None:
    settings = {"auto_scale.enabled": "false", "bucket_budget": 8}
    with make_broker(workers=2, **settings) as process, AdminClient(process.http_url) as admin:
        admin.create_topic(TOPIC, 1)
        async with opened(process.url, 2, 400) as (clients, sender, readers):
            readers.pause_s = 0.01
            await readers.join(clients, 1)
            await sender.send(5)
            await readers.join(clients, 7)
            await asyncio.to_thread(admin.split, TOPIC, 0, parts=8)
            await sender.send(2)
            await readers.until(lambda: readers.received == sender.sent)
            assert readers.by_segment[0] == set(range(8)), "each of 8 consumers drained a bucket"
            held = [consumer.assignment for consumer in readers.consumers]
            assert sorted(map(len, held)) == [1] * 8
            assert len(set(held)) == 8
            readers.pause_s = 0.0
            await readers.leave(7)
            await sender.send(2)
            await readers.until(lambda: readers.received == sender.sent)
            assert len(readers.consumers[0].assignment) == 8


async def test_many_consumers_at_low_load_share_one_segment(make_broker: MakeBroker) -> None:
    with make_broker(workers=2) as process, AdminClient(process.http_url) as admin:
        admin.create_topic(TOPIC, 1)
        async with opened(process.url, 2, 1000) as (clients, sender, readers):
            await readers.join(clients, 32)
            await sender.send(1)

            async def rebucketed() -> bool:
                return (await asyncio.to_thread(active_segments, admin)).popitem()[1] >= 32

            while not await rebucketed():
                await asyncio.sleep(0.2)
            await sender.send(2)
            await readers.until(lambda: readers.received == sender.sent)
            await readers.until(lambda: len(readers.by_consumer) == 32)
            assert list((await asyncio.to_thread(active_segments, admin)).values()) == [32]


async def test_two_hundred_consumers_all_read_a_topic_of_sixty_four_segments(make_broker: MakeBroker) -> None:
    with make_broker(workers=2) as process, AdminClient(process.http_url) as admin:
        admin.create_topic(TOPIC, 64)
        async with opened(process.url, 4, 5000) as (clients, sender, readers):
            await readers.join(clients, 200)
            await sender.send(1)

            async def rebucketed() -> bool:
                buckets = await asyncio.to_thread(active_segments, admin)
                assert len(buckets) == 64
                return sum(buckets.values()) >= 200

            while not await rebucketed():
                await asyncio.sleep(0.5)
            # The layout shows new buckets before their last readers are assigned: one round may miss some.
            while len(readers.by_consumer) < 200:
                await sender.send(1)
                await readers.until(lambda: readers.received == sender.sent)
