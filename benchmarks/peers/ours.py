"""Our asyncio client in the comparison."""

from __future__ import annotations

import asyncio
import time
from multiprocessing.synchronize import Event
from typing import ClassVar, Unpack

from anabranch import AsyncClient, Batching
from anabranch.transport.tls_arguments import TlsArguments
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

SUBSCRIPTION = "bench"

AT_ONCE = Batching(max_delay=0)
"""Paced sends of all clients do without lingering."""


async def publish_each(url: str, topic: str, count: int, **tls: Unpack[TlsArguments]) -> float:
    """Messages per second with a future for each of them."""
    async with AsyncClient(url, **tls) as client:
        producer = await client.create_producer(topic)
        for n in range(2 * BATCH):
            await producer.enqueue(VALUES[n % BATCH], key=KEYS[n % BATCH])
        await producer.flush()
        began = time.perf_counter()
        outcomes = [await producer.enqueue(VALUES[n % BATCH], key=KEYS[n % BATCH]) for n in range(count)]
        await producer.flush()
        seconds = time.perf_counter() - began
        assert all(outcome.exception() is None for outcome in outcomes)
        await producer.close()
        return count / seconds


async def publish_bulk(url: str, topic: str, count: int, **tls: Unpack[TlsArguments]) -> float:
    """Messages per second with one future for each thousand."""
    async with AsyncClient(url, **tls) as client:
        producer = await client.create_producer(topic)
        await producer.send_many(VALUES, keys=KEYS)
        began = time.perf_counter()
        waiting = [await producer.enqueue_many(VALUES, keys=KEYS) for _ in range(count // BATCH)]
        await asyncio.gather(*waiting)
        seconds = time.perf_counter() - began
        await producer.close()
        return count / seconds


class OursAsync(Contender):
    name: ClassVar[str] = "anabranch, async"
    module: ClassVar[str] = "anabranch"
    is_ours: ClassVar[bool] = True
    has_queues: ClassVar[bool] = True

    def publish_each(self, topic: str, count: int) -> float:
        return asyncio.run(publish_each(self.address, topic, count))

    def publish_bulk(self, topic: str, count: int) -> float:
        return asyncio.run(publish_bulk(self.address, topic, count))

    def consume_each(self, topic: str, count: int) -> float:
        return asyncio.run(self._consume_each(topic, count))

    def consume_many(self, topic: str, count: int) -> float:
        return asyncio.run(self._consume_many(topic, count))

    def consume_queue(self, topic: str, count: int) -> float:
        return asyncio.run(self._consume_queue(topic, count))

    def send_times(self, topic: str, count: int) -> list[float]:
        return asyncio.run(self._send_times(topic, count))

    def send_paced(self, topic: str, rate: int, seconds: float) -> None:
        asyncio.run(self._send_paced(topic, rate, seconds))

    def receive_stamped(self, topic: str, count: int, ready: Event) -> list[float]:
        return asyncio.run(self._receive_stamped(topic, count, ready))

    async def _consume_each(self, topic: str, count: int) -> float:
        async with AsyncClient(self.address) as client:
            consumer = await client.subscribe_stream(
                topic, f"{SUBSCRIPTION}-each", initial_position="earliest"
            )
            watch, taken = Stopwatch(), 0
            async for message in consumer:
                if not taken:
                    watch.started()
                taken += len(message.data) > 0
                await consumer.acknowledge_cumulative(message)
                if taken == count:
                    break
            return watch.rate(count)

    async def _consume_many(self, topic: str, count: int) -> float:
        async with AsyncClient(self.address) as client:
            consumer = await client.subscribe_stream(
                topic, f"{SUBSCRIPTION}-many", initial_position="earliest"
            )
            watch, taken = Stopwatch(), 0
            while taken < count:
                messages = await consumer.receive_many(min(BATCH, count - taken), timeout=WAIT_S)
                if not taken:
                    watch.started(len(messages))
                taken += sum(len(message.data) > 0 for message in messages)
                await consumer.acknowledge_cumulative(messages[-1])
            return watch.rate(taken)

    async def _consume_queue(self, topic: str, count: int) -> float:
        async with AsyncClient(self.address) as client:
            consumer = await client.subscribe_queue(
                topic, f"{SUBSCRIPTION}-queue", initial_position="earliest"
            )
            watch, taken = Stopwatch(), 0
            async for message in consumer:
                if not taken:
                    watch.started()
                taken += len(message.data) > 0
                await consumer.acknowledge(message)
                if taken == count:
                    break
            return watch.rate(count)

    async def _send_times(self, topic: str, count: int) -> list[float]:
        async with AsyncClient(self.address) as client:
            producer = await client.create_producer(topic)
            times = []
            for n in range(count):
                began = time.perf_counter()
                await producer.send(VALUES[n % BATCH], key=KEYS[n % BATCH])
                times.append(time.perf_counter() - began)
                await asyncio.sleep(PAUSE_S)
            return times

    async def _send_paced(self, topic: str, rate: int, seconds: float) -> None:
        async with AsyncClient(self.address) as client:
            producer = await client.create_producer(topic, batching=AT_ONCE)
            sent = 0
            for pause_s, count in due(rate, seconds):
                if pause_s:
                    await asyncio.sleep(pause_s)
                for _ in range(count):
                    value, key = stamped(sent)
                    await producer.enqueue(value, key=key)
                    sent += 1
            await producer.flush()

    async def _receive_stamped(self, topic: str, count: int, ready: Event) -> list[float]:
        async with AsyncClient(self.address) as client:
            consumer = await client.subscribe_stream(topic, SUBSCRIPTION, initial_position="earliest")
            ready.set()
            found: list[float] = []
            while len(found) < count:
                messages = await consumer.receive_many(BATCH, timeout=WAIT_S)
                found += ages([message.data for message in messages])
                await consumer.acknowledge_cumulative(messages[-1])
            return found
