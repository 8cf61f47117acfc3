"""The longest wait of producers and consumers when one of two workers is killed or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from anabranch import AsyncClient, Batching
from anabranch.admin.client import AdminClient
from anabranch.client.produce.futures import SendFuture
from anabranch.model.names import TopicName
from benchmarks.results import Row
from simulation.harness.process import BrokerProcess

TOPIC = TopicName.parse("topic://public/default/takeover")
LEASE_S = 2.0
BEYOND_S = 2.0
"""The time that a takeover may take after the end of the lease."""

KEYS = 64
EVERY_S = 0.005
QUIET_S = 1.0


def run(scratch: Path, fast: bool) -> list[Row]:
    rounds = 1 if fast else 3
    settings = {"workers": 2, "lease_s": LEASE_S, "scalableTopicAutoScaleEnabled": "false"}
    with BrokerProcess(scratch / "data", settings) as broker:
        with AdminClient(broker.http_url) as admin:
            admin.create_topic(TOPIC, 4)
        killed = [asyncio.run(_wait(broker, n % 2, signal.SIGKILL)) for n in range(rounds)]
        paused = [asyncio.run(_wait(broker, n % 2, signal.SIGSTOP)) for n in range(rounds)]
    return [
        _row("a worker is killed: longest wait of a message", max(killed)),
        _row("a worker stands still: longest wait of a message", max(paused)),
    ]


def _row(name: str, wait_s: float) -> Row:
    goal = f"at most {LEASE_S + BEYOND_S:g} s, lease + {BEYOND_S:g}"
    return Row(name, "s", wait_s, goal=goal, met=wait_s <= LEASE_S + BEYOND_S)


async def _wait(broker: BrokerProcess, worker: int, how: signal.Signals) -> float:
    """Return the longest time from `enqueue` of a message until a stream consumer receives it."""
    victim = broker.worker(worker)
    # Let the worker run for a while, so that its start does not count.
    await asyncio.sleep(2 * QUIET_S)
    async with AsyncClient(broker.url) as client:
        consumer = await client.subscribe_stream(str(TOPIC), "readers", initial_position="earliest")
        producer = await client.create_producer(str(TOPIC), batching=Batching(max_delay=0.001))
        sent = time.monotonic()
        ends = sent + QUIET_S + LEASE_S + BEYOND_S + QUIET_S
        hit = False
        futures: list[SendFuture] = []
        waits: list[float] = []

        async def read() -> None:
            while len(waits) < len(futures) or time.monotonic() < ends:
                for message in await consumer.receive_many(100, timeout=0.2):
                    waits.append(time.monotonic() - float(message.data))
                    await consumer.acknowledge_cumulative(message)

        reading = asyncio.create_task(read())
        while (sent := time.monotonic()) < ends:
            if not hit and sent > ends - (LEASE_S + BEYOND_S + QUIET_S):
                hit = True
                os.kill(victim, how)
            futures.append(await producer.enqueue(b"%.6f" % sent, key=f"key-{len(futures) % KEYS}"))
            await asyncio.sleep(EVERY_S)
        for future in futures:
            await future
        await reading
    return max(waits)
