"""Many led topics in one control process over a Pulsar in memory: their memory, their start, their records.

One child process makes the topics and stores records and simulated Pulsar in a file. Another child first
loads the file and then leads all topics, so that its memory grows by that of the control process alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from anabranch.aio import TaskRegistry
from anabranch.broker.broker import Broker
from anabranch.broker.cluster.endpoint import Endpoint
from anabranch.broker.environment import BrokerEnvironment
from anabranch.clock import SystemClock
from anabranch.config.broker import BrokerConfig
from anabranch.control.drain_polls import DrainPolls
from anabranch.control.homes import HomeLock
from anabranch.control.pulsar_engine import PulsarEngine
from anabranch.control.pulsar_segments import PulsarSegments
from anabranch.failpoints import NoFailpoints
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.model.names import TopicName
from anabranch.testing.seeded_secrets import SeededSecrets
from anabranch.transport.door import Door, Listener
from anabranch.transport.pump import Pump
from benchmarks.results import Row
from simulation.cluster.pulsar import SimPulsar

CHILD_S_MAX: Final = 600.0
WIDE: Final = 256
"""Segments of the topic whose record is measured."""


class WriteCountingStore(MemoryStore):
    """A metadata store in memory that counts the writes of its session."""

    writes = 0

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        self.writes += 1
        return await super().put(path, value, expected=expected, ephemeral=ephemeral)


class SimControl:
    """A control process over a Pulsar in memory, inside this process."""

    def __init__(self, tree: MemoryTree, pulsar: SimPulsar) -> None:
        self.tree = tree
        self.pulsar = pulsar
        self.store = WriteCountingStore(tree)
        self.calls = 0
        """Admin calls so far."""
        pulsar.before = self._count
        self._tasks = TaskRegistry()
        segments = PulsarSegments(pulsar, DrainPolls(self._tasks))
        rng = random.Random(1)
        environment = BrokerEnvironment(
            partial(HomeLock, self.store),
            self.store,
            SystemClock(),
            rng,
            NoFailpoints(),
            SeededSecrets(rng),
            engine=lambda parts: PulsarEngine(pulsar, segments, self._tasks),
        )
        endpoint = Endpoint("pulsar://control:6650", "http://control:8080", _nowhere)
        self.broker = Broker(BrokerConfig(auto_scale_interval_s=3600.0), environment, endpoint)

    async def _count(self) -> None:
        self.calls += 1

    async def stop(self) -> None:
        await self.broker.stop()
        await self._tasks.stop()
        await self.store.close()

    def cost(self) -> tuple[int, int]:
        """Admin calls and writes of records so far."""
        return self.calls, self.store.writes


async def _nowhere(door: Door[Pump]) -> Sequence[Listener]:
    return ()


def _name(number: int) -> TopicName:
    return TopicName.parse(f"topic://public/default/led-{number}")


def make(file: Path, count: int) -> dict[str, float]:
    """Make topics with one segment and one subscription each; returns the cost of operations."""
    tree, pulsar = MemoryTree(), SimPulsar()
    figures = asyncio.run(_make(tree, pulsar, count))
    file.write_bytes(pickle.dumps((tree, pulsar.found)))
    return figures


async def _make(tree: MemoryTree, pulsar: SimPulsar, count: int) -> dict[str, float]:
    control = SimControl(tree, pulsar)
    await control.broker.start()
    controllers = control.broker.controllers
    for number in range(count):
        await controllers.create_topic(_name(number))
        leader = await controllers.lead(_name(number))
        await leader.ensure_subscription("sub", "STREAM", "earliest")
    figures = await costs(control)
    await control.stop()
    return figures


async def costs(control: SimControl) -> dict[str, float]:
    """The admin calls and writes of operations on a topic with one subscription, and sizes of records."""
    controllers, name = control.broker.controllers, TopicName.parse("topic://public/default/wide")
    found: dict[str, float] = {}

    def note(what: str, before: tuple[int, int]) -> None:
        calls, writes = control.cost()
        found[f"{what}: calls"], found[f"{what}: writes"] = calls - before[0], writes - before[1]

    before = control.cost()
    await controllers.create_topic(name)
    note("create", before)
    leader = await controllers.lead(name)
    await leader.ensure_subscription("sub", "STREAM", "earliest")
    found["record of 1 segment"] = _record_bytes(control.tree, name)
    before = control.cost()
    await leader.split(0)
    note("split", before)
    before = control.cost()
    await leader.merge([1, 2])
    note("merge", before)
    many = TopicName.parse("topic://public/default/many")
    await controllers.create_topic(many, segments=WIDE)
    found[f"record of {WIDE} segments"] = _record_bytes(control.tree, many)
    return found


def _record_bytes(tree: MemoryTree, name: TopicName) -> int:
    """The size of the largest value whose path names the topic."""
    return max(len(found.value) for path, found in tree.values.items() if path.endswith(f"/{name.local}"))


def lead(file: Path, count: int) -> dict[str, float]:
    """Start a control process on these records and lead all topics."""
    tree, topics = pickle.loads(file.read_bytes())
    pulsar = SimPulsar()
    pulsar.found = topics
    return asyncio.run(_lead(tree, pulsar, count))


async def _lead(tree: MemoryTree, pulsar: SimPulsar, count: int) -> dict[str, float]:
    control = SimControl(tree, pulsar)
    gc.collect()
    empty, began_s, began_cpu_s = _memory_bytes(), time.perf_counter(), time.process_time()
    await control.broker.start()
    for number in range(count):
        await control.broker.controllers.lead(_name(number))
    figures = {"wall": time.perf_counter() - began_s, "CPU": time.process_time() - began_cpu_s}
    gc.collect()
    led = len(control.broker.controllers.layouts())
    assert led >= count, f"{led} of {count} topics are led"
    figures["memory"] = (_memory_bytes() - empty) / count
    calls, writes = control.cost()
    await control.stop()
    return {**figures, "calls": calls / count, "writes": writes / count}


def _memory_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def run(scratch: Path, count: int) -> list[Row]:
    file = scratch / "led.pickle"
    made, led = (_child(step, file, count) for step in ("make", "lead"))
    title = f"{count:,} led topics, simulated Pulsar"
    each = (made[f"record of {WIDE} segments"] - made["record of 1 segment"]) / (WIDE - 1)
    return [
        Row(f"{title}: memory of each", "bytes", led["memory"]),
        Row(f"{title}: start until all are led", "s", led["wall"], series={"CPU": led["CPU"]}),
        _costs_row("admin calls", "calls", made, led),
        _costs_row("writes of records", "writes", made, led),
        Row("record of a topic with one segment", "bytes", made["record of 1 segment"]),
        Row("record, each further segment", "bytes", each),
    ]


def _costs_row(what: str, unit: str, made: dict[str, float], led: dict[str, float]) -> Row:
    series = {name: made[f"{name}: {unit}"] for name in ("create", "split", "merge")}
    return Row(
        f"{what} of a split, one subscription", unit, series["split"], series={**series, "lead": led[unit]}
    )


def _child(step: str, file: Path, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.engine.leading", step, str(file), str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=CHILD_S_MAX)
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    steps = {"make": make, "lead": lead}
    print(json.dumps(steps[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))
