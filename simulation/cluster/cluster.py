"""Brokers and their clients in one loop: real code on simulated disks, metadata, network and clocks.

The brokers are the workers of one machine: each is a process that its host restarts, on the same stores and
metadata. Clients are processes too; a test decides what they do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from anabranch.aio import mark_retrieved
from anabranch.broker.broker import Broker
from anabranch.broker.cluster.endpoint import Endpoint
from anabranch.broker.environment import BrokerEnvironment
from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.config.broker import BrokerConfig
from anabranch.controller.ports.leader import TopicLeader
from anabranch.errors import AlreadyClosedError, AnabranchError
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.storage import SegmentLog, SegmentStorage
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.records import TopicRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName
from anabranch.protocol.connection import ClientMachine
from anabranch.testing.seeded_secrets import SeededSecrets
from anabranch.transport.door import Door
from anabranch.transport.pump import Pump
from simulation.cluster.guard import SimGuard, gate_of
from simulation.cluster.host import BrokerLife, Host, HostFailpoints
from simulation.judges.checkers import ClientHistory
from simulation.judges.metadata_witness import WitnessedTree
from simulation.world.disk import SimDisk
from simulation.world.faults import SimClock, SimStore, StoreTrouble
from simulation.world.loop import SimLoop
from simulation.world.network import SimNetwork
from simulation.world.platter import Platter
from simulation.world.process import SimProcess, State
from simulation.world.transport import SimLink

T = TypeVar("T")

SERVICE = "service"
"""The host name at which every broker accepts connections, besides its own address."""
PORT = 6650
URL = f"pulsar://{SERVICE}:{PORT}"

SMALL_STORAGE = StorageLimits(
    cache_bytes=100_000, journal_bytes_max=20_000, ledger_bytes_max=10_000, behind_bytes=2_000
)
"""Small numbers make rare events common."""


@dataclass(frozen=True, slots=True)
class Death:
    """The next broker that reaches a named step dies there, alone or with the whole machine."""

    step: str
    machine: bool = False


class Cluster:
    """The brokers of one machine, their metadata, and any number of clients."""

    def __init__(
        self, loop: SimLoop, *, config: BrokerConfig | None = None, limits: StorageLimits = SMALL_STORAGE
    ) -> None:
        self.loop = loop
        self.network = SimNetwork(loop)
        self.platters: dict[int, Platter] = {}
        self.tree = WitnessedTree()
        self.history = ClientHistory()
        self.counts: Counter[str] = Counter()
        self._client_counts: Counter[str] = Counter()
        self.restart_delay_s = (0.01, 1.0)
        self.deaths: list[Death] = []
        """Each death is armed after the death before it."""
        self.store_trouble = StoreTrouble()
        self.clock_offsets_ms = (0, 0)
        """The range of the error of a new process's wall clock."""
        self.guard: SimGuard | None = None
        """Issues the credentials of clients, if brokers ask for them."""
        self.config = config or BrokerConfig()
        self.rng = loop.random("cluster")
        self.hosts = [Host(self, number) for number in range(self.config.workers)]
        self._limits = limits
        self.secrets = SeededSecrets(loop.random("secrets"))
        self._observer = TopicStore(MemoryStore(self.tree))

    async def keep_up(self) -> None:
        """Keep all brokers running until this is cancelled."""
        await asyncio.gather(*(host.keep_up() for host in self.hosts))

    @property
    def running(self) -> list[Host]:
        """The hosts whose broker process is alive, even if paused."""
        return [host for host in self.hosts if host.process is not None]

    def start(self, host: Host, life: int) -> BrokerLife:
        """Start one more broker process on a host."""
        self.loop.note(f"start {host.name} {life}")
        process = SimProcess(self.loop, host.name)
        clock = SimClock(self.loop, offset_ms=self.rng.randint(*self.clock_offsets_ms))

        def storage_of(store: int) -> SegmentStorage:
            if store not in self.platters:
                self.platters[store] = Platter(self.loop, f"store {store}")
            return FileStorage(SimDisk(self.platters[store], process), clock=clock, limits=self._limits)

        async def listen(door: Door[Pump]) -> Sequence[asyncio.AbstractServer]:
            own = await self.loop.create_server(door.open, host.name, PORT)
            return [own, await self.loop.create_server(door.open, SERVICE, PORT, reuse_port=True)]

        rng = self.loop.random(f"{host.name} {life}")
        store = SimStore(self.tree, process, trouble=self.store_trouble, lease_s=self.config.lease_s)
        broker = Broker(
            replace(self.config, host=host.name, port=PORT),
            BrokerEnvironment(
                storage_of,
                store,
                clock,
                rng,
                HostFailpoints(self, process),
                self.secrets,
                gate=gate_of(self.config, clock),
            ),
            Endpoint(f"pulsar://{host.name}:{PORT}", "", listen),
            id=host.number,
        )
        return self.begin(host, BrokerLife(process, broker, store, clock))

    def begin(self, host: Host, life: BrokerLife) -> BrokerLife:
        """Run a broker that was just made in its process."""
        life.process.on_death.append(life.ended.set)
        life.process.spawn(self._serve(host, life), name=host.name)
        return life

    async def _serve(self, host: Host, life: BrokerLife) -> None:
        """Run the broker like `node.serve`, without signals and HTTP."""
        broker = life.broker
        failed = self.loop.create_task(broker.failed.wait())
        starting = self.loop.create_task(broker.start())
        await asyncio.wait((starting, failed), return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and starting.exception() is None:
            self.loop.note(f"{host.name} is up")
            host.up.set()
            await failed
        elif not starting.done():
            starting.cancel()
        else:
            # The host restarts a process that could not start.
            self.counts["start failed"] += 1
            self.loop.note(f"{host.name} did not start: {starting.exception()}")
            life.process.kill()
            if not isinstance(starting.exception(), AnabranchError | OSError):
                starting.result()
            return
        self.counts["ended after a disk error"] += 1
        host.up.clear()
        await broker.stop()
        life.process.kill()

    def strike(self, step: str, process: SimProcess) -> bool:
        """Kill a process that reached this step, if a death is armed for it; return whether it was killed."""
        if not self.deaths or self.deaths[0].step != step:
            return False
        death = self.deaths.pop(0)
        self.counts[f"died at {step}"] += 1
        self.loop.outside(self.lose_machine if death.machine else process.kill)
        return True

    def kill_broker(self, host: Host) -> None:
        """Kill one broker process."""
        if host.process is not None:
            self.counts["process killed"] += 1
            self.counts["killed while starting"] += not host.up.is_set()
            host.process.kill()

    async def stop_broker(self, host: Host) -> None:
        """Stop one broker as SIGTERM would; its host restarts it."""
        life = host.life
        if life is not None and life.process.alive and host.up.is_set():
            self.counts["broker stopped"] += 1
            host.up.clear()
            stopping = life.process.spawn(life.broker.stop())
            stopping.add_done_callback(lambda _: life.process.kill())
            await life.ended.wait()

    def lose_machine(self) -> None:
        """Fail the power: every broker dies, and bytes that no sync made durable may be lost."""
        self.counts["machine lost"] += 1
        for host in self.running:
            self.counts["killed while starting"] += not host.up.is_set()
            assert host.process is not None
            host.process.kill(machine=True)
        for platter in self.platters.values():
            platter.lose_power()

    def pause_broker(self, host: Host, for_s: float) -> None:
        """Pause one process for a while, as SIGSTOP and SIGCONT do."""
        process = host.process
        if process is not None and process.state is State.RUNNING:
            self.counts["broker paused"] += 1
            process.pause()
            self.loop.call_later(for_s, self._wake, process)

    def _wake(self, process: SimProcess) -> None:
        self.counts["paused broker was ended"] += not process.alive
        process.resume()

    async def in_broker(self, work: Callable[[Broker], Awaitable[T]], host: Host | None = None) -> T | None:
        """Run `work` inside a running broker, any by default; None when the broker died meanwhile."""
        while host is None:
            up = [one for one in self.hosts if one.up.is_set() and one.process is not None]
            host = self.rng.choice(up) if up else None
            if host is None:
                await asyncio.sleep(0.01)
        await host.up.wait()
        life = host.life
        assert life is not None

        async def inside() -> T | None:
            try:
                return await work(life.broker)
            except AlreadyClosedError:
                return None

        task = life.process.spawn(inside())
        # A caller that gives up does not read the error any more.
        task.add_done_callback(mark_retrieved)
        ended = self.loop.create_task(life.ended.wait())
        await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        return task.result() if task.done() else None

    async def with_controller(self, name: TopicName, work: Callable[[TopicLeader], Awaitable[T]]) -> T | None:
        """Run `work` inside a broker, with the leader of a topic as that broker reaches it."""

        async def inside(broker: Broker) -> T:
            return await work(await broker.controllers.controller(name))

        return await self.in_broker(inside)

    async def stop(self) -> None:
        """Stop all brokers as SIGTERM would."""
        for host in self.hosts:
            await self.in_broker(lambda broker: broker.stop(), host)

    async def record(self, name: TopicName) -> TopicRecord | None:
        return await self._observer.find(name)

    def log_of(self, name: str) -> SegmentLog | None:
        """Return a log at the broker that serves it; None while no broker does."""
        logs = (host.broker.stores.get(name) for host in self.running if host.broker is not None)
        return next((log for log in logs if log is not None), None)

    def leads(self, process: SimProcess | None, name: TopicName) -> bool:
        """Whether a process is the broker that leads a topic."""
        return any(
            host.broker is not None and host.process is process and name in host.broker.controllers.layouts()
            for host in self.running
        )

    def client(self, process: SimProcess, role: str = "") -> BulkClient:
        """Return a client for use inside this process, with the credentials of a role if brokers ask."""
        return BulkClient(
            URL,
            operation_timeout=30.0,
            connect_timeout=5.0,
            keep_alive_interval=5.0,
            authentication=self.guard.authentication(role) if self.guard is not None else None,
            clock=SimClock(self.loop),
            rng=self.loop.random(f"client {process.name}{self._life_of(process)}"),
        )

    def _life_of(self, process: SimProcess) -> str:
        """A word that differs for each client of processes with one name; they must not draw the same ids."""
        self._client_counts[process.name] += 1
        count = self._client_counts[process.name]
        return f" {count}" if count > 1 else ""

    def machine(self, version: str, role: str) -> ClientMachine:
        """Return the machine of a connection that speaks the protocol itself."""
        shown = {} if self.guard is None else self.guard.shown(role)
        return ClientMachine(version, now=self.loop.time(), **shown)

    def links(self, process: SimProcess) -> list[SimLink]:
        """Return the links between a process and every other broker."""
        others = [host.name for host in self.hosts if host.name != process.name]
        return [self.network.link(process.name, other) for other in others]
