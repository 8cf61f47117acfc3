"""Handlers of `run`: how close their throughput comes to the ideal of handlers that only sleep."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from anabranch import AsyncClient, Message
from anabranch.aio import new_event_loop
from benchmarks.results import Row
from simulation.harness.process import BrokerProcess

TOPIC = "topic://public/default/bench-run"
KEYS = 200
SLEEP_S = 0.010
IDEAL = KEYS / SLEEP_S


async def handled_per_second(url: str, count: int) -> float:
    """Messages per second that 200 handlers of 10 ms handle, one for each of 200 keys."""
    async with AsyncClient(url) as client:
        consumer = await client.subscribe_stream(TOPIC, "bench", initial_position="earliest")
        producer = await client.create_producer(TOPIC)
        keys = [f"key-{n % KEYS}" for n in range(10 * KEYS)]
        for _ in range(count // len(keys)):
            await producer.send_many([b"x" * 100] * len(keys), keys=keys)
        await producer.close()
        done = asyncio.Event()
        handled = 0

        async def handle(message: Message[bytes]) -> None:
            nonlocal handled
            await asyncio.sleep(SLEEP_S)
            handled += 1
            if handled == count:
                done.set()

        began = time.perf_counter()
        await consumer.run(handle, concurrency=KEYS, stop=done)
        return count / (time.perf_counter() - began)


async def slept_per_second(count: int) -> float:
    """Sleeps per second of as many bare tasks, without a consumer."""
    slept = 0

    async def sleep() -> None:
        nonlocal slept
        while slept < count:
            await asyncio.sleep(SLEEP_S)
            slept += 1

    began = time.perf_counter()
    await asyncio.gather(*(sleep() for _ in range(KEYS)))
    return slept / (time.perf_counter() - began)


def run(scratch: Path, fast: bool) -> list[Row]:
    count = 40_000 if fast else 200_000
    with BrokerProcess(scratch / "data") as broker, asyncio.Runner(loop_factory=new_event_loop) as runner:
        rate = runner.run(handled_per_second(broker.url, count))
        bare = runner.run(slept_per_second(count))
    return [
        Row(
            "run: 200 keys, handlers of 10 ms, concurrency 200",
            "msg/s",
            rate,
            "bare tasks",
            bare,
            goal=f"{0.8 * IDEAL:,.0f}, 80 % of the ideal",
            met=rate >= 0.8 * IDEAL,
        )
    ]
