"""A broker and its clients in one loop: real code on simulated disk, metadata, network and clocks.

The broker runs in a process of its own on one host; when it dies the host starts the next one, on the same
disk and metadata. Clients are processes too. What they do is a scenario's affair.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from anabranch.broker.broker import Broker
from anabranch.client.api import AsyncClient
from anabranch.config import BrokerConfig
from anabranch.controller.controller import TopicController
from anabranch.errors import AnabranchError
from anabranch.ledger.files import FileStorage
from anabranch.ledger.port import SegmentLog
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.records import TopicRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName
from anabranch.testing.checkers import History
from anabranch.testing.faults import SimClock, SimFailpoints, SimStore, StoreTrouble
from anabranch.testing.network import Link, SimNetwork
from anabranch.testing.simdisk import Platter, SimDisk
from anabranch.testing.simloop import SimLoop, SimProcess
from anabranch.testing.witness import WitnessedTree

T = TypeVar("T")

HOST = "broker"
PORT = 6650
URL = f"pulsar://{HOST}:{PORT}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a storage is given; small numbers make rare things common."""

    cache_bytes: int = 100_000
    journal_bytes_max: int = 20_000
    ledger_bytes_max: int = 10_000
    behind_bytes: int = 2_000


@dataclass(frozen=True, slots=True)
class Death:
    """How the next broker process is to die: at a named step, the first or a later time it is reached."""

    step: str
    times: int = 1
    machine: bool = False


@dataclass(slots=True)
class _Life:
    """One broker process."""

    process: SimProcess
    broker: Broker
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Cluster:
    """One broker host, its metadata, and any number of clients."""

    def __init__(
        self, loop: SimLoop, *, config: BrokerConfig | None = None, limits: Limits | None = None
    ) -> None:
        self.loop = loop
        self.network = SimNetwork(loop)
        self.platter = Platter(loop, HOST)
        self.tree = WitnessedTree()
        self.history = History()
        self.counts: Counter[str] = Counter()
        """What happened, and how often."""
        self.restart_delay_s = (0.01, 1.0)
        self.deaths: list[Death] = []
        """For each broker process to come; none left means that it lives until somebody kills it."""
        self.store_trouble = StoreTrouble()
        self._config = replace(config or BrokerConfig(), host=HOST, port=PORT)
        self._limits = limits or Limits()
        self._rng = loop.random("cluster")
        self._lives = 0
        self._life: _Life | None = None
        self._up = asyncio.Event()
        self._observer = TopicStore(MemoryStore(self.tree))

    # The broker.

    @property
    def process(self) -> SimProcess | None:
        """The broker process that runs now, if one does."""
        return None if self._life is None else self._life.process

    @property
    def broker(self) -> Broker | None:
        """The broker that is up now, to be looked at; None while there is none."""
        life = self._life
        return life.broker if life is not None and life.process.alive and self._up.is_set() else None

    async def keep_up(self) -> None:
        """Start the broker, and start it again whenever it died; runs until it is cancelled."""
        while True:
            life = self._start()
            await life.ended.wait()
            self._life = None
            self._up.clear()
            await asyncio.sleep(self._rng.uniform(*self.restart_delay_s))

    def _start(self) -> _Life:
        self._lives += 1
        self.loop.note(f"start broker {self._lives}")
        process = SimProcess(self.loop, HOST)
        death = self.deaths.pop(0) if self.deaths else None
        failpoints = SimFailpoints(
            process,
            death.step if death else None,
            times=death.times if death else 1,
            machine=death.machine if death else False,
            reached=self.counts,
        )
        clock = SimClock(self.loop)
        storage = FileStorage(
            SimDisk(self.platter, process),
            clock=clock,
            cache_bytes=self._limits.cache_bytes,
            journal_bytes_max=self._limits.journal_bytes_max,
            ledger_bytes_max=self._limits.ledger_bytes_max,
            behind_bytes=self._limits.behind_bytes,
        )
        store = SimStore(self.tree, process, trouble=self.store_trouble)
        rng = self.loop.random(f"broker {self._lives}")
        life = self._life = _Life(
            process, Broker(self._config, lambda _: storage, store, clock, rng, failpoints)
        )
        process.on_death.append(life.ended.set)
        process.spawn(self._serve(life), name="broker")
        return life

    async def _serve(self, life: _Life) -> None:
        try:
            await life.broker.start()
        except AnabranchError as error:
            # The process says why and leaves; whoever keeps it up starts the next one.
            self.counts["start failed"] += 1
            self.loop.note(f"broker did not start: {error}")
            life.process.kill()
            return
        self.loop.note("broker is up")
        self._up.set()

    def kill_broker(self, *, machine: bool = False) -> bool:
        """Kill it now; False when none runs."""
        if self._life is None or not self._life.process.alive:
            return False
        self.counts["machine lost" if machine else "process killed"] += 1
        self.counts["killed while starting"] += not self._up.is_set()
        self._life.process.kill(machine=machine)
        return True

    def pause_broker(self, for_s: float) -> None:
        """Stop the process for a while, as SIGSTOP and SIGCONT do."""
        if self._life is not None and self._life.process.alive:
            self.counts["broker paused"] += 1
            self._life.process.pause()
            self.loop.call_later(for_s, self._life.process.resume)

    async def in_broker(self, work: Callable[[Broker], Awaitable[T]]) -> T | None:
        """Do something inside the broker process once it is up; None when it died meanwhile."""
        await self._up.wait()
        life = self._life
        assert life is not None

        async def inside() -> T:
            return await work(life.broker)

        task = life.process.spawn(inside())
        ended = self.loop.create_task(life.ended.wait())
        await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        return task.result() if task.done() else None

    async def with_controller(
        self, name: TopicName, work: Callable[[TopicController], Awaitable[T]]
    ) -> T | None:
        """As `in_broker`, with the controller of a topic."""

        async def inside(broker: Broker) -> T:
            return await work(await broker.controllers.controller(name))

        return await self.in_broker(inside)

    async def stop_broker(self) -> None:
        """Stop it as SIGTERM would."""
        await self.in_broker(lambda broker: broker.stop())

    # Its metadata, seen from outside.

    async def record(self, name: TopicName) -> TopicRecord | None:
        return await self._observer.find(name)

    def log_of(self, name: str) -> SegmentLog | None:
        """A log at whoever serves it now; None while nobody does."""
        broker = self.broker
        return None if broker is None else broker.stores.get(name)

    # Clients.

    def client(self, process: SimProcess) -> AsyncClient:
        """A client to be used inside this process."""
        return AsyncClient(
            URL,
            operation_timeout=30.0,
            connect_timeout=5.0,
            keep_alive_interval=5.0,
            clock=SimClock(self.loop),
            rng=self.loop.random(f"client {process.name}"),
        )

    def link(self, process: SimProcess) -> Link:
        """The link between a client and the broker's host."""
        return self.network.link(process.name, HOST)
