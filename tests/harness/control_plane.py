"""Control processes over a Pulsar cluster in memory, on virtual time."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from functools import partial

from anabranch.aio import TaskRegistry
from anabranch.broker.environment import BrokerEnvironment
from anabranch.control.drain_polls import DrainPolls
from anabranch.control.homes import HomeLock
from anabranch.control.pulsar_engine import PulsarEngine
from anabranch.control.pulsar_segments import PulsarSegments
from anabranch.metadata.memory import MemoryStore
from simulation.cluster.pulsar import SimPulsar
from simulation.world.loop import SimLoop
from tests.harness.cluster import Brokers


class ControlProcesses(Brokers):
    """Brokers 0 to n - 1 without logs; `pulsar` holds their segments and outlives them."""

    def __init__(self, loop: SimLoop, count: int = 1) -> None:
        super().__init__(loop, count=count)
        self.pulsar = SimPulsar()
        self.tasks = TaskRegistry()
        self.check_right: Callable[[], None] = lambda: None
        """Raises if a process may not answer for the topics that it leads."""

    def environment(self, number: int, store: MemoryStore, rng: random.Random) -> BrokerEnvironment:
        segments = PulsarSegments(self.pulsar, DrainPolls(self.tasks))
        return dataclasses.replace(
            super().environment(number, store, rng),
            storage_of=partial(HomeLock, store),
            engine=lambda parts: PulsarEngine(
                self.pulsar, segments, self.tasks, check_right=lambda: self.check_right()
            ),
        )

    async def stop_all(self) -> None:
        await super().stop_all()
        await self.tasks.stop()
