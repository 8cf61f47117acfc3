"""`aiokafka` (pure asyncio) on a real Kafka; it commits consumed positions by itself, once a second."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.synchronize import Event
from typing import Any, ClassVar

from benchmarks.peers.confluent import ConfluentKafka
from benchmarks.peers.contender import (
    BATCH,
    KEYS,
    PAUSE_S,
    VALUES,
    WAIT_S,
    Contender,
    Stopwatch,
    ages,
    due,
    stamped,
)

COMMIT_MS = 1000
PARTITIONS = 1
KEY_BYTES = [key.encode() for key in KEYS]


class AioKafka(Contender):
    name: ClassVar[str] = "aiokafka"
    module: ClassVar[str] = "aiokafka"

    def prepare(self, topic: str) -> None:
        asyncio.run(self._prepare(topic))

    def fill(self, topic: str, count: int) -> None:
        """Fill the topic, with `confluent-kafka` if it is installed: aiokafka's producer takes minutes."""
        filling = ConfluentKafka if importlib.util.find_spec(ConfluentKafka.module) else AioKafka
        filling(self.address).publish_bulk(topic, count)

    def publish_each(self, topic: str, count: int) -> float:
        return asyncio.run(self._publish(topic, count))

    def publish_bulk(self, topic: str, count: int) -> float:
        return asyncio.run(self._publish(topic, count))

    def consume_each(self, topic: str, count: int) -> float:
        return asyncio.run(self._consume_each(topic, count))

    def consume_many(self, topic: str, count: int) -> float:
        return asyncio.run(self._consume_many(topic, count))

    def send_times(self, topic: str, count: int) -> list[float]:
        return asyncio.run(self._send_times(topic, count))

    def send_paced(self, topic: str, rate: int, seconds: float) -> None:
        asyncio.run(self._send_paced(topic, rate, seconds))

    def receive_stamped(self, topic: str, count: int, ready: Event) -> list[float]:
        return asyncio.run(self._receive_stamped(topic, count, ready))

    async def _prepare(self, topic: str) -> None:
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        finally:
            await admin.close()

    async def _publish(self, topic: str, count: int) -> float:
        async with self._producer(linger_ms=5) as producer:
            began = time.perf_counter()
            outcomes: deque[Any] = deque()
            for n in range(count):
                outcomes.append(await producer.send(topic, VALUES[n % BATCH], key=KEY_BYTES[n % BATCH]))
            await producer.flush()
            seconds = time.perf_counter() - began
            assert all(outcome.exception() is None for outcome in outcomes)
            return count / seconds

    async def _consume_each(self, topic: str, count: int) -> float:
        async with self._consumer(topic, "each") as consumer:
            watch, taken = Stopwatch(), 0
            async for message in consumer:
                if not taken:
                    watch.started()
                taken += len(message.value) > 0
                if taken == count:
                    break
            return watch.rate(count)

    async def _consume_many(self, topic: str, count: int) -> float:
        async with self._consumer(topic, "many") as consumer:
            watch, taken = Stopwatch(), 0
            while taken < count:
                messages = await _taken(consumer)
                if not taken:
                    watch.started(len(messages))
                taken += sum(len(message.value) > 0 for message in messages)
            return watch.rate(taken)

    async def _send_times(self, topic: str, count: int) -> list[float]:
        async with self._producer(linger_ms=0) as producer:
            times = []
            for n in range(count):
                began = time.perf_counter()
                await producer.send_and_wait(topic, VALUES[n % BATCH], key=KEY_BYTES[n % BATCH])
                times.append(time.perf_counter() - began)
                await asyncio.sleep(PAUSE_S)
            return times

    async def _send_paced(self, topic: str, rate: int, seconds: float) -> None:
        async with self._producer(linger_ms=0) as producer:
            sent = 0
            for pause_s, count in due(rate, seconds):
                if pause_s:
                    await asyncio.sleep(pause_s)
                for _ in range(count):
                    value, key = stamped(sent)
                    await producer.send(topic, value, key=key.encode())
                    sent += 1
            await producer.flush()

    async def _receive_stamped(self, topic: str, count: int, ready: Event) -> list[float]:
        async with self._consumer(topic, "stamped") as consumer:
            ready.set()
            found: list[float] = []
            while len(found) < count:
                found += ages([message.value for message in await _taken(consumer)])
            return found

    @asynccontextmanager
    async def _producer(self, **more: object) -> AsyncIterator[Any]:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=self.address, acks="all", **more)
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    @asynccontextmanager
    async def _consumer(self, topic: str, group: str) -> AsyncIterator[Any]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.address,
            group_id=f"aiokafka-{topic}-{group}",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=COMMIT_MS,
        )
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
            yield consumer
        finally:
            await consumer.stop()


async def _taken(consumer: Any) -> list[Any]:
    """The next messages, up to a thousand; raises TimeoutError if there are none in time."""
    found = await consumer.getmany(timeout_ms=int(WAIT_S * 1000), max_records=BATCH)
    if not found:
        raise TimeoutError(f"no message within {WAIT_S:g} s")
    return [message for part in found.values() for message in part]
