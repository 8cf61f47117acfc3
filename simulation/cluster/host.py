"""The host of one simulated broker: it restarts the broker process whenever that dies.

Must not know what a broker serves.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anabranch.broker.broker import Broker
from simulation.world.faults import SimClock, SimStore
from simulation.world.process import SimProcess

if TYPE_CHECKING:
    from simulation.cluster.cluster import Cluster


@dataclass(slots=True)
class BrokerLife:
    """One broker process."""

    process: SimProcess
    broker: Broker
    store: SimStore
    clock: SimClock
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class HostFailpoints:
    """The failpoints of one process; the cluster decides which process dies at a step."""

    def __init__(self, cluster: Cluster, process: SimProcess) -> None:
        self._cluster = cluster
        self._process = process

    async def reach(self, name: str) -> None:
        self._process.loop.note(f"failpoint {name}")
        self._cluster.counts[name] += 1
        if self._cluster.strike(name, self._process):
            # Nothing wakes a dead process, so this step is its last.
            await self._process.loop.create_future()


class Host:
    """Keeps one broker running."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.number = number
        self.name = f"broker-{number}"
        self.life: BrokerLife | None = None
        self.up = asyncio.Event()
        self._cluster = cluster
        self._lives = 0

    @property
    def process(self) -> SimProcess | None:
        """The running process; None between two lives."""
        return self.life.process if self.life is not None and self.life.process.alive else None

    @property
    def broker(self) -> Broker | None:
        """The broker of the running process, also while it starts."""
        return self.life.broker if self.life is not None and self.life.process.alive else None

    async def keep_up(self) -> None:
        """Start the broker, and restart it whenever it dies; runs until it is cancelled."""
        cluster = self._cluster
        while True:
            self._lives += 1
            life = self.life = cluster.start(self, self._lives)
            await life.ended.wait()
            cluster.counts["log unloaded"] += life.broker.logs.unloaded
            cluster.counts["log loaded again"] += life.broker.logs.resumed
            self.life = None
            self.up.clear()
            await asyncio.sleep(cluster.rng.uniform(*cluster.restart_delay_s))
