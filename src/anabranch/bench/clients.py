"""Publish and consume from Python, compared with the official client on the same broker in the same run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from anabranch import AsyncClient
from anabranch.bench.results import Row, percentile_ms
from anabranch.testing.process import BrokerProcess
from anabranch.transport.tls_arguments import TlsArguments

VALUE = b"x" * 100
KEYS = [f"key-{n}" for n in range(1000)]
OURS = "topic://public/default/bench"
THEIRS = "persistent://public/default/bench-official"


async def publish_each(url: str, count: int, **tls: Unpack[TlsArguments]) -> float:
    async with AsyncClient(url, **tls) as client:
        producer = await client.create_producer(OURS)
        for n in range(2000):
            await producer.enqueue(VALUE, key=KEYS[n % 1000])
        await producer.flush()
        began = time.perf_counter()
        outcomes = [await producer.enqueue(VALUE, key=KEYS[n % 1000]) for n in range(count)]
        await producer.flush()
        seconds = time.perf_counter() - began
        assert all(outcome.done() for outcome in outcomes)
        await producer.close()
        return count / seconds


async def publish_bulk(url: str, count: int, **tls: Unpack[TlsArguments]) -> float:
    async with AsyncClient(url, **tls) as client:
        producer = await client.create_producer(OURS)
        values, keys = [VALUE] * 1000, KEYS
        await producer.send_many(values, keys=keys)
        began = time.perf_counter()
        waiting = [await producer.enqueue_many(values, keys=keys) for _ in range(count // 1000)]
        await asyncio.gather(*waiting)
        seconds = time.perf_counter() - began
        await producer.close()
        return count / seconds


def _official(url: str) -> Any:
    import pulsar

    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def _publish_official(url: str, count: int, with_outcome: bool) -> float:
    client = _official(url)
    producer = client.create_producer(
        THEIRS, batching_enabled=True, block_if_queue_full=True, max_pending_messages=10_000
    )
    done = threading.Semaphore(0)
    callback: Callable[..., None] | None = (lambda result, _id: done.release()) if with_outcome else None
    began = time.perf_counter()
    for n in range(count):
        producer.send_async(VALUE, callback, partition_key=KEYS[n % 1000])
    producer.flush()
    if with_outcome:
        for _ in range(count):
            done.acquire()
    seconds = time.perf_counter() - began
    client.close()
    return count / seconds


def run_publish(scratch: Path, fast: bool) -> list[Row]:
    count = 100_000 if fast else 500_000
    with BrokerProcess(scratch / "data") as broker:
        each = asyncio.run(publish_each(broker.url, count))
        bulk = asyncio.run(publish_bulk(broker.url, count))
        with_outcome = _publish_official(broker.url, count // 5, True)
        without = _publish_official(broker.url, count, False)
    peer = "pulsar-client, callbacks"
    return [
        Row("publish, each outcome known", "msg/s", each, peer, with_outcome, "ratio at least 10"),
        Row("publish in bulk", "msg/s", bulk, "pulsar-client, no callbacks", without, "ratio above 1.5"),
    ]


async def _consume_each(url: str, count: int) -> float:
    async with AsyncClient(url) as client:
        consumer = await client.subscribe_stream(OURS, "each", initial_position="earliest")
        began = time.perf_counter()
        taken = 0
        async for message in consumer:
            taken += len(message.data) > 0
            if taken % 1000 == 0:
                await consumer.acknowledge_cumulative(message)
            if taken == count:
                break
        seconds = time.perf_counter() - began
        await consumer.close()
        return count / seconds


async def _consume_many(url: str, count: int) -> float:
    async with AsyncClient(url) as client:
        consumer = await client.subscribe_stream(OURS, "many", initial_position="earliest")
        began = time.perf_counter()
        taken = 0
        while taken < count:
            messages = await consumer.receive_many(1000, timeout=10)
            taken += sum(len(message.data) > 0 for message in messages)
            await consumer.acknowledge_cumulative(messages[-1])
        seconds = time.perf_counter() - began
        await consumer.close()
        return count / seconds


def _consume_official(url: str, count: int) -> float:
    import pulsar

    client = _official(url)
    consumer = client.subscribe(
        THEIRS, "each", receiver_queue_size=10_000, initial_position=pulsar.InitialPosition.Earliest
    )
    began = time.perf_counter()
    for n in range(count):
        message = consumer.receive(10_000)
        assert message.data()
        if n % 1000 == 999:
            consumer.acknowledge_cumulative(message)
    seconds = time.perf_counter() - began
    client.close()
    return count / seconds


def run_consume(scratch: Path, fast: bool) -> list[Row]:
    count = 100_000 if fast else 500_000
    with BrokerProcess(scratch / "data") as broker:
        asyncio.run(publish_bulk(broker.url, count))
        _publish_official(broker.url, count, False)
        each = asyncio.run(_consume_each(broker.url, count))
        many = asyncio.run(_consume_many(broker.url, count))
        official = _consume_official(broker.url, count)
    return [
        Row("consume, async for", "msg/s", each, "pulsar-client, receive", official),
        Row("consume by thousands", "msg/s", many, "pulsar-client, receive", official, "ratio above 1.5"),
    ]


async def _latencies(url: str, count: int) -> list[float]:
    async with AsyncClient(url) as client:
        producer = await client.create_producer(OURS)
        times = []
        for n in range(count):
            began = time.perf_counter()
            await producer.send(VALUE, key=KEYS[n % 1000])
            times.append(time.perf_counter() - began)
            await asyncio.sleep(0.002)
        return times


def _latencies_official(url: str, count: int) -> list[float]:
    client = _official(url)
    producer = client.create_producer(THEIRS)
    times = []
    for n in range(count):
        began = time.perf_counter()
        producer.send(VALUE, partition_key=KEYS[n % 1000])
        times.append(time.perf_counter() - began)
        time.sleep(0.002)
    client.close()
    return times


def run_latency(scratch: Path, fast: bool) -> list[Row]:
    count = 300 if fast else 2000
    with BrokerProcess(scratch / "data") as broker:
        ours = asyncio.run(_latencies(broker.url, count))
        theirs = _latencies_official(broker.url, count)
    return [
        Row(
            f"send one at a time, p{at}",
            "ms",
            percentile_ms(ours, at),
            "pulsar-client",
            percentile_ms(theirs, at),
            goal,
        )
        for at, goal in ((50, "1 ms"), (99, "5 ms"))
    ]
