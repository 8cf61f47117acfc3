"""The clients of the benchmark `hot-key`: ours with a shared stream, and pulsar-client with Key_Shared.

Each message is an entry of its own, so that both clients let the broker hold the same number of entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from anabranch import AsyncClient, AsyncStreamConsumer
from benchmarks.client.hot_key_traffic import CANDIDATES, HOT, PROBE, Owners, Plan, Traffic

CONSUMERS: Final = 3
TICK_S: Final = 0.001
SETTLE_S: Final = 60.0
"""The longest time until every consumer has its share of the keys."""

SHARED_STREAM: Final = "topic://public/default/hot"
KEY_SHARED: Final = "persistent://public/default/hot"
SUBSCRIPTION: Final = "readers"


class _Stream:
    """Our client: consumers of one stream subscription that share one segment by buckets."""

    def __init__(self) -> None:
        self.owners = Owners()
        self.traffic: Traffic | None = None
        self._stuck: int | None = None
        self._free = asyncio.Event()

    async def run(self, url: str, plan: Plan) -> Traffic:
        async with AsyncClient(url) as client, contextlib.AsyncExitStack() as closing:
            producer = await client.create_producer(SHARED_STREAM, batching=False)
            readers: list[asyncio.Task[None]] = []
            for number in range(CONSUMERS):
                consumer = await client.subscribe_stream(SHARED_STREAM, SUBSCRIPTION, name=f"reader-{number}")
                readers.append(asyncio.create_task(self._read(consumer, number)))
                closing.callback(readers[-1].cancel)
            await self._settle(producer)
            traffic = self.traffic = Traffic(plan, self.owners.others(), time.perf_counter())
            await self._send(producer, traffic)
            self._free.set()
            await _until(lambda: traffic.complete, plan.drain_s)
            return traffic

    async def _settle(self, producer: Any) -> None:
        """Probe the keys until every consumer has some of them and two probes in a row agree."""
        until_s = time.perf_counter() + SETTLE_S
        before: dict[str, int] = {}
        while set(before.values()) != set(range(CONSUMERS)) or self.owners.of != before:
            if time.perf_counter() > until_s:
                raise TimeoutError("the consumers did not share the keys")
            before, self.owners.of = self.owners.of, {}
            for key in (HOT, *CANDIDATES):
                await producer.enqueue(PROBE, key=key)
            await _until(lambda: self.owners.complete, until_s - time.perf_counter())

    async def _send(self, producer: Any, traffic: Traffic) -> None:
        for number in range(traffic.plan.messages):
            if number == traffic.plan.stall_from:
                self._stuck = self.owners.of[HOT]
            wait_s = traffic.due_s(number) - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(max(wait_s, TICK_S))
            await producer.enqueue(traffic.value(number), key=traffic.key(number))
        await producer.flush()

    async def _read(self, consumer: AsyncStreamConsumer[bytes], number: int) -> None:
        while True:
            messages = await consumer.receive_many(100)
            if self._stuck == number:
                await self._free.wait()
            now_s = time.perf_counter()
            for message in messages:
                if self.traffic is None:
                    self.owners.of[message.key or ""] = number
                else:
                    self.traffic.note(message.data, now_s)
            await consumer.acknowledge_cumulative(messages[-1])


async def _until(done: Callable[[], bool], at_most_s: float) -> None:
    until_s = time.perf_counter() + at_most_s
    for _ in iter(done, True):
        if time.perf_counter() > until_s:
            return
        await asyncio.sleep(0.01)


def run_shared_stream(url: str, plan: Plan) -> Traffic:
    async def run() -> Traffic:
        return await _Stream().run(url, plan)

    return asyncio.run(run())


class _KeyShared:
    """pulsar-client: consumers of one Key_Shared subscription, each in a thread of its own."""

    def __init__(self) -> None:
        self.owners = Owners()
        self.traffic: Traffic | None = None
        self._stuck: int | None = None
        self._free = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def run(self, url: str, plan: Plan) -> Traffic:
        import pulsar

        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        consumers = [
            client.subscribe(KEY_SHARED, SUBSCRIPTION, pulsar.ConsumerType.KeyShared)
            for _ in range(CONSUMERS)
        ]
        threads = [
            threading.Thread(target=self._read, args=(consumer, number, pulsar.Timeout), daemon=True)
            for number, consumer in enumerate(consumers)
        ]
        try:
            for thread in threads:
                thread.start()
            producer = client.create_producer(KEY_SHARED, block_if_queue_full=True)
            self._settle(producer)
            traffic = self.traffic = Traffic(plan, self.owners.others(), time.perf_counter())
            self._send(producer, traffic)
            self._free.set()
            _wait(lambda: traffic.complete, plan.drain_s)
            return traffic
        finally:
            self._free.set()
            self._ended.set()
            for thread in threads:
                thread.join()
            client.close()

    def _settle(self, producer: Any) -> None:
        before: dict[str, int] = {}
        until_s = time.perf_counter() + SETTLE_S
        while not before or self.owners.of != before:
            before, self.owners.of = self.owners.of, {}
            for key in (HOT, *CANDIDATES):
                producer.send_async(PROBE, None, partition_key=key)
            if not _wait(lambda: self.owners.complete, until_s - time.perf_counter()):
                raise TimeoutError("the consumers did not share the keys")

    def _send(self, producer: Any, traffic: Traffic) -> None:
        for number in range(traffic.plan.messages):
            if number == traffic.plan.stall_from:
                self._stuck = self.owners.of[HOT]
            wait_s = traffic.due_s(number) - time.perf_counter()
            if wait_s > 0:
                time.sleep(max(wait_s, TICK_S))
            producer.send_async(traffic.value(number), None, partition_key=traffic.key(number))
        producer.flush()

    def _read(self, consumer: Any, number: int, timeout: type[Exception]) -> None:
        while not self._ended.is_set():
            try:
                message = consumer.receive(100)
            except timeout:
                continue
            if self._stuck == number:
                self._free.wait()
            now_s = time.perf_counter()
            with self._lock:
                if self.traffic is None:
                    self.owners.of[message.partition_key()] = number
                else:
                    self.traffic.note(message.data(), now_s)
            consumer.acknowledge(message)


def _wait(done: Callable[[], bool], at_most_s: float) -> bool:
    until_s = time.perf_counter() + at_most_s
    while not done() and time.perf_counter() < until_s:
        time.sleep(0.02)
    return done()


def run_key_shared(url: str, plan: Plan) -> Traffic:
    return _KeyShared().run(url, plan)
