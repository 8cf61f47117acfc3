"""Acknowledgements and look-ups on a connection whose producer publishes as fast as it can.

The broker may slow the producer down, by the speed of its disk or by a rate, but the other requests of the
connection must not wait for that.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch import AsyncClient
from anabranch.admin.client import AdminClient
from anabranch.client.produce.producer import AsyncProducer
from anabranch.model.names import TopicName
from benchmarks.results import Row, percentile_ms
from simulation.harness.process import BrokerProcess

FLOODED = TopicName.parse("topic://public/default/flooded")
ASIDE = "topic://public/default/aside"
VALUES = [b"x" * 100] * 1000
KEYS = [f"key-{n}" for n in range(1000)]
PAUSE_S = 0.01
FILL_S = 0.5
"""In this time the flood fills every buffer between the producer and the disk."""

GOAL_MS = 50.0
RATE_BYTES = 2 * 2**20


@dataclass(slots=True)
class Flood:
    """The seconds that each request took during a flood, and how many messages of the flood were stored."""

    acks_s: list[float] = field(default_factory=list)
    look_ups_s: list[float] = field(default_factory=list)
    messages: int = 0
    seconds: float = 0.0


async def measure(url: str, count: int) -> Flood:
    """Acknowledge and look up `count` times on one connection while a producer floods it."""
    found = Flood()
    async with AsyncClient(url) as client:
        consumer = await client.subscribe_queue(ASIDE, "aside", initial_position="earliest")
        aside = await client.create_producer(ASIDE)
        await aside.send_many(VALUES[:1] * count)
        producer = await client.create_producer(str(FLOODED), send_timeout=0)
        flood = asyncio.ensure_future(_flood(producer, found))
        await asyncio.sleep(FILL_S)
        began = time.perf_counter()
        before = found.messages
        for _ in range(count):
            await consumer.acknowledge(await consumer.receive(timeout=10))
            await _time(found.acks_s, consumer.flush_acks)
            await _time(found.look_ups_s, lambda: client.layout(ASIDE))
            await asyncio.sleep(PAUSE_S)
        found.seconds = time.perf_counter() - began
        found.messages -= before
        flood.cancel()
        await asyncio.wait([flood])
        # Sending the messages that the flood left in memory may take long; that time is not measured.
        await client.shutdown()
    return found


async def _flood(producer: AsyncProducer[bytes], found: Flood) -> None:
    waiting: deque[Any] = deque()
    while True:
        waiting.append(await producer.enqueue_many(VALUES, KEYS))
        while waiting and waiting[0].done():
            waiting.popleft()
            found.messages += len(VALUES)


async def _time(times_s: list[float], call: Callable[[], Awaitable[object]]) -> None:
    began = time.perf_counter()
    await call()
    times_s.append(time.perf_counter() - began)


def run(scratch: Path, fast: bool) -> list[Row]:
    count = 100 if fast else 500
    with BrokerProcess(scratch / "data") as broker:
        free = asyncio.run(measure(broker.url, count))
        rate = {"publishThrottlingRateInByte": RATE_BYTES}
        with AdminClient(broker.http_url) as admin:
            admin.set_quotas("public/default", {"publishRate": rate})
        limited = asyncio.run(measure(broker.url, count))
    return [*_rows("beside a flood", free), *_rows("beside a flood over its rate", limited)]


def _rows(where: str, flood: Flood) -> list[Row]:
    rows = []
    for what, times_s in (("acknowledgement", flood.acks_s), ("look-up", flood.look_ups_s)):
        p99_ms = percentile_ms(times_s, 99)
        row = Row(
            f"{what} {where}, p99",
            "ms",
            p99_ms,
            goal=f"at most {GOAL_MS:g} ms",
            series={"p50": percentile_ms(times_s, 50), "most": max(times_s) * 1e3},
            met=p99_ms <= GOAL_MS,
        )
        rows.append(row)
    rows.append(Row(f"messages {where}", "msg/s", flood.messages / flood.seconds))
    return rows
