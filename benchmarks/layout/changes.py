"""The cost of splits and merges for producers and consumers, and the storage and memory they leave behind."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from anabranch import AsyncClient, AsyncStreamConsumer
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from benchmarks.layout.sending import (
    KEYS,
    NAME,
    active_segments,
    change_layout,
    measure_client,
    measure_wire,
)
from benchmarks.results import Row, percentile_ms
from simulation.harness.process import BrokerProcess

VALUE = b"x" * 100
SETTLE_S_MAX = 10.0
BY_HAND: dict[str, object] = {"scalableTopicAutoScaleEnabled": "false"}
PRUNING = {"segment_retention_s": 0, "auto_scale_interval_s": 0.2}
"""Settings that let segments go as soon as they are drained."""


def run(scratch: Path, fast: bool) -> list[Row]:
    rows: list[Row] = []
    parts = {
        "wire": measure_wire,
        "stall": measure_client,
        "follow": _follow,
        "wide": _wide,
        "cycles": _cycles,
    }
    for name, part in parts.items():
        print(f"    {name}", file=sys.stderr, flush=True)
        settings = {**BY_HAND, **PRUNING} if part is _cycles else BY_HAND
        with BrokerProcess(scratch / name, settings) as broker, AdminClient(broker.http_url) as admin:
            rows += part(broker, admin, fast)
    return rows


async def _read_over(consumer: AsyncStreamConsumer[bytes], parents: Sequence[int], count: int) -> float:
    """Read and acknowledge; return seconds from the parents' last ack to the first message of a child."""
    drained_at = first_at = 0.0
    for _ in range(count):
        message = await consumer.receive(timeout=20)
        if message.id.segment in parents:
            drained_at = time.perf_counter()
        elif not first_at:
            first_at = time.perf_counter()
        await consumer.acknowledge_cumulative(message)
    return first_at - drained_at


async def _run_follow(broker: BrokerProcess, admin: AdminClient, splits: int) -> list[float]:
    keys = KEYS[:20]
    waits: list[float] = []
    async with AsyncClient(broker.url) as client:
        producer = await client.create_producer(str(NAME))
        consumer = await client.subscribe_stream(str(NAME), "follow", initial_position="earliest")
        for number in range(2 * splits):
            parents = await asyncio.to_thread(active_segments, admin)
            await producer.send_many([VALUE] * len(keys), keys=keys)
            await asyncio.to_thread(change_layout, admin, number)
            await producer.send_many([VALUE] * len(keys), keys=keys)
            wait = await _read_over(consumer, parents, 2 * len(keys))
            if number % 2 == 0:
                waits.append(wait)
    return waits


def _follow(broker: BrokerProcess, admin: AdminClient, fast: bool) -> list[Row]:
    admin.create_topic(NAME)
    waits = asyncio.run(_run_follow(broker, admin, 20 if fast else 100))
    name, p99 = "parent acknowledged to a child's first message", percentile_ms(waits, 99)
    return [
        Row(f"{name}, p50", "ms", percentile_ms(waits, 50)),
        Row(f"{name}, p99", "ms", p99, goal="p99 50 ms", met=p99 <= 50),
    ]


def _wide(broker: BrokerProcess, admin: AdminClient, fast: bool) -> list[Row]:
    seconds: list[float] = []
    for _ in range(3 if fast else 7):
        admin.create_topic(NAME)
        for number in range(4):
            admin.create_subscription(NAME, f"sub-{number}", "STREAM" if number % 2 else "QUEUE")
        (segment,) = active_segments(admin)
        began = time.perf_counter()
        admin.split(NAME, segment, parts=64)
        seconds.append(time.perf_counter() - began)
        assert len(active_segments(admin)) == 64
        admin.delete_topic(NAME, force=True)
    name, slowest = "1 to 64 segments at once, 4 subscriptions", max(seconds)
    return [Row(name, "s", slowest, goal="under 5 s", met=slowest < 5)]


class _Footprint:
    """Bytes of the topic's record, number of files and resident memory, after all pruning."""

    def __init__(self, broker: BrokerProcess, admin: AdminClient) -> None:
        deadline = time.monotonic() + SETTLE_S_MAX
        record = plain(admin.topic_metadata(NAME))
        while time.monotonic() < deadline and (len(record["segments"]) > 1 or record["garbage"]):
            time.sleep(0.05)
            record = plain(admin.topic_metadata(NAME))
        self.record_bytes = len(json.dumps(record, separators=(",", ":")))
        self.files = sum(1 for _ in broker.data.rglob("*"))
        self.memory_bytes = broker.memory_bytes()


async def _run_cycles(broker: BrokerProcess, admin: AdminClient, marks: Sequence[int]) -> list[_Footprint]:
    """Split and merge repeatedly; return a footprint at each of these numbers of cycles."""
    footprints: list[_Footprint] = []
    async with AsyncClient(broker.url) as client:
        producer = await client.create_producer(str(NAME))
        consumer = await client.subscribe_stream(str(NAME), "follow", initial_position="earliest")
        for cycle in range(marks[-1] + 1):
            if cycle in marks:
                footprints.append(await asyncio.to_thread(_Footprint, broker, admin))
            for number in range(2):
                await producer.send_many([VALUE] * 100, keys=KEYS[:100])
                await asyncio.to_thread(change_layout, admin, number)
                taken = 0
                while taken < 100:
                    messages = await consumer.receive_many(100, timeout=20)
                    taken += len(messages)
                    await consumer.acknowledge_cumulative(messages[-1])
    return footprints


def _flat_row(what: str, unit: str, marks: Sequence[int], figures: Sequence[float], slack: float) -> Row:
    """Compare the last figure with the one at the first mark; flat means growth by at most `slack`."""
    warm, last = figures[1], figures[-1]
    return Row(
        f"{marks[-1]} split/merge cycles: {what}",
        unit,
        last,
        f"after {marks[1]}",
        warm,
        "flat",
        series={str(mark): figure for mark, figure in zip(marks, figures, strict=True)},
        met=max(figures[1:]) <= warm + slack,
    )


def _cycles(broker: BrokerProcess, admin: AdminClient, fast: bool) -> list[Row]:
    # After 86 cycles the record is full: it keeps the last 256 pruned segments.
    marks = range(0, 181, 90) if fast else range(0, 501, 100)
    admin.create_topic(NAME)
    prints = asyncio.run(_run_cycles(broker, admin, marks))
    record = [float(each.record_bytes) for each in prints]
    files = [float(each.files) for each in prints]
    memory = [each.memory_bytes / 1e6 for each in prints]
    return [
        # Slack for longer ids, of which a pruned segment has up to four, for journal files and memory pages.
        _flat_row("record", "bytes", marks, record, 0.15 * record[1]),
        _flat_row("files", "files", marks, files, 4),
        _flat_row("memory", "MB", marks, memory, 4),
    ]
