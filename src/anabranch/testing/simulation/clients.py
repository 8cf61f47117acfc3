"""The client processes of a cluster run: senders, and consumers that die, pause, leave and are replaced.

Must not know which faults a run plans, nor judge what clients receive.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from anabranch.testing.cluster import Cluster
from anabranch.testing.simprocess import SimProcess
from anabranch.testing.simulation.readers import CHECKPOINT, Readers

LEAVE_S = 60.0
"""A consumer that closes must have closed within this time."""


class Clients:
    """All client processes of one run."""

    def __init__(self, cluster: Cluster, readers: Readers, rng: random.Random) -> None:
        self.cluster = cluster
        self.readers = readers
        self.rng = rng
        self.counts: Counter[str] = cluster.counts
        self.processes: list[SimProcess] = []
        self.heirs = 0
        """Consumers that are about to replace one that left or was killed."""
        self._loop = cluster.loop
        self._living: dict[str, tuple[str, SimProcess]] = {}
        """Consumers by name: their kind and their process."""
        self._reading: dict[str, asyncio.Task[None]] = {}

    def process(self, name: str) -> SimProcess:
        process = SimProcess(self._loop, name)
        self.processes.append(process)
        latency_s = self.rng.choice(((0.0001, 0.001), (0.001, 0.02), (0.0, 0.1)))
        for link in self.cluster.links(process):
            link.latency_s = latency_s
            link.pieces = self.rng.choice((0.0, 0.2))
        return process

    def start_consumer(self, kind: str, name: str) -> None:
        process = self.process(name)
        self._living[name] = kind, process
        rng = self._loop.random(f"{name} {len(self.processes)}")
        self._reading[name] = process.spawn(self.readers.read(kind, process, rng))

    def pause_consumer(self) -> None:
        if self._living:
            _, process = self._living[self.rng.choice(sorted(self._living))]
            self.counts["consumer paused"] += 1
            process.pause()
            self._loop.call_later(self.rng.uniform(0.1, 8.0), process.resume)

    def kill_consumer(self) -> None:
        if not self._living:
            return
        name = self.rng.choice(sorted(self._living))
        kind, process = self._living.pop(name)
        process.kill(machine=self.rng.random() < 0.3)
        self.counts["consumer killed"] += 1
        heir = name if self.rng.random() < 0.5 else f"{name}+"
        self.heirs += 1
        self._loop.call_later(self.rng.uniform(0.01, 2.0), self._start_heir, kind, heir)

    def let_consumer_leave(self) -> None:
        if self._living:
            name = self.rng.choice(sorted(self._living))
            kind, process = self._living.pop(name)
            self.heirs += 1
            self._loop.create_task(self._leave(name, kind, process))

    async def _leave(self, name: str, kind: str, process: SimProcess) -> None:
        """Close a consumer and start its heir, with the same name or another, maybe before it has closed."""
        self.readers.leaving.add(process)
        leaving = self._reading[name]
        if kind == CHECKPOINT or self.rng.random() < 0.7:
            await asyncio.wait((leaving,), timeout=LEAVE_S)
        else:
            name = f"{name}!"
        await asyncio.sleep(self.rng.uniform(0.0, 0.5))
        self.counts["consumer left"] += leaving.done()
        self._start_heir(kind, name)

    def _start_heir(self, kind: str, name: str) -> None:
        self.heirs -= 1
        self.start_consumer(kind, name)

    def forget_consumers(self) -> None:
        """Count none of the consumers so far as living."""
        self._living.clear()

    async def end_consumers(self, found: list[str]) -> None:
        """Close all consumers, and report those that cannot close; no delivery is under way afterwards."""
        self.readers.over = True
        for name in self._living:
            try:
                await asyncio.wait_for(asyncio.shield(self._reading[name]), LEAVE_S)
            except TimeoutError:
                found.append(f"{name} could not close within {LEAVE_S:g} s")
        self.readers.over = False
        for subscription in self.readers.subscriptions:
            self.cluster.history.note_quiet(subscription)
