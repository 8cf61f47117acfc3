"""Control processes over a simulated Pulsar, in one loop, with real code on both sides.

Anabranch brokers that serve only classic topics play Pulsar and report Pulsar's version. The admin
API is a port whose calls take time, fail, or take effect late, when their caller has given up or is dead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from anabranch.aio import TaskRegistry, mark_retrieved
from anabranch.broker.broker import Broker
from anabranch.broker.cluster.endpoint import Endpoint
from anabranch.broker.environment import BrokerEnvironment
from anabranch.config.broker import BrokerConfig
from anabranch.control.homes import HomeLock
from anabranch.control.lease import SessionLease
from anabranch.control.node import ControlParts
from anabranch.control.sweeping import Sweeper
from anabranch.control.topic_marks import NewTopics
from anabranch.errors import AnabranchError, ConnectError
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.storage import SegmentLog
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.metadata.topics import TopicStore
from anabranch.model.log_names.pulsar_names import pulsar_topic
from anabranch.model.names import TopicName
from anabranch.model.policies.of_topics import topic_key, topic_policies
from anabranch.testing.seeded_secrets import SeededSecrets
from anabranch.transport.door import Door
from anabranch.transport.pump import Pump
from simulation.cluster import session
from simulation.cluster.admin import SimAdmin
from simulation.cluster.calls import AdminTrouble
from simulation.cluster.cluster import PORT, SERVICE, SMALL_STORAGE, Cluster
from simulation.cluster.foreign import Foreign, ForeignTopics
from simulation.cluster.host import BrokerLife, Host, HostFailpoints
from simulation.cluster.session import SimSession
from simulation.world.disk import SimDisk
from simulation.world.faults import SimClock, SimStore
from simulation.world.loop import SimLoop
from simulation.world.platter import Platter
from simulation.world.process import SimProcess
from simulation.world.transport import SimLink

T = TypeVar("T")

PULSAR = "pulsar"
SWEEP_S = (0.2, 2.0)
"""Seconds between two looks for strays."""
INSTALLATION = "ours"


class ControlFailpoints(HostFailpoints):
    """Failpoints of a control process, at which it may also be paused."""

    def __init__(self, cluster: ControlCluster, process: SimProcess) -> None:
        super().__init__(cluster, process)
        self._pauses = cluster.pauses_at
        self._pause = partial(cluster.pause_at, process)

    async def reach(self, name: str) -> None:
        await super().reach(name)
        if name in self._pauses:
            self._pause(name)
            # The pause begins here.
            await asyncio.sleep(0)


class ControlCluster(Cluster):
    """Control processes on hosts of their own, and the brokers of one Pulsar, which share their stores."""

    def __init__(self, loop: SimLoop, *, config: BrokerConfig, pulsar_brokers: int = 1) -> None:
        super().__init__(loop, config=config)
        self.pulsars = [Host(self, number) for number in range(pulsar_brokers)]
        for host in self.pulsars:
            host.name = f"{PULSAR}-{host.number}"
        self.admin_trouble = AdminTrouble()
        self.trouble_until_s = 0.0
        """The time by which late admin calls have arrived, and paused processes know what they have lost."""
        self.pauses_at: dict[str, float] = {}
        """By step: how long the next leader that reaches it is paused there, in seconds."""
        self.sought: Callable[[str], None] = lambda subscription: None
        """Called when a subscription is about to be moved back on one of Pulsar's topics."""
        self.foreign = ForeignTopics(loop.random("foreign topics"))
        self._pulsar_tree = MemoryTree()
        self._pulsar_records = TopicStore(MemoryStore(self._pulsar_tree))
        self._pulsar_platters: dict[int, Platter] = {}
        self._pulsar_secrets = SeededSecrets(loop.random("pulsar secrets"))

    async def keep_up(self) -> None:
        await asyncio.gather(*(host.keep_up() for host in self.pulsars), super().keep_up())

    def links(self, process: SimProcess) -> list[SimLink]:
        pulsars = [self.network.link(process.name, host.name) for host in self.pulsars]
        return [*super().links(process), *pulsars]

    def log_of(self, name: str) -> SegmentLog | None:
        """The log of a segment at the broker of Pulsar that serves it."""
        topic = str(pulsar_topic(TopicName.parse(name)))
        logs = (host.broker.stores.get(topic) for host in self.pulsars if host.broker is not None)
        return next((log for log in logs if log is not None), None)

    def kill_pulsar(self, host: Host) -> None:
        """Kill a broker of Pulsar; its open topics go on in new ledgers."""
        if host.broker is not None:
            self.foreign.recover(host.broker)
        self.kill_broker(host)

    def pause_at(self, process: SimProcess, step: str) -> None:
        """Pause a process that reached a step."""
        self.counts["paused at a step"] += 1
        for_s = self.pauses_at.pop(step)
        self.expect_trouble(for_s + max(session.RECONNECT_S))
        process.pause()
        self.loop.outside(self.loop.call_later, for_s, process.resume)

    def pause_broker(self, host: Host, for_s: float) -> None:
        super().pause_broker(host, for_s)
        self.expect_trouble(for_s + max(session.RECONNECT_S))

    def expect_trouble(self, for_s: float) -> None:
        """Note that a fault has consequences for this long."""
        self.trouble_until_s = max(self.trouble_until_s, self.loop.time() + for_s)

    def start(self, host: Host, life: int) -> BrokerLife:
        return self._start_pulsar(host, life) if host in self.pulsars else self._start_control(host, life)

    def _start_pulsar(self, host: Host, life: int) -> BrokerLife:
        process = SimProcess(self.loop, host.name)
        clock = SimClock(self.loop)

        async def listen(door: Door[Pump]) -> Sequence[asyncio.AbstractServer]:
            def foreign() -> Pump | None:
                pump = door.open()
                if pump is not None:
                    pump.handler = Foreign(pump.handler, broker, self.foreign)
                return pump

            return [await self.loop.create_server(foreign, host.name, PORT)]

        def storage_of(number: int) -> FileStorage:
            if number not in self._pulsar_platters:
                self._pulsar_platters[number] = Platter(self.loop, f"{PULSAR} {number}")
            disk = SimDisk(self._pulsar_platters[number], process)
            return FileStorage(disk, clock=clock, limits=SMALL_STORAGE)

        store = SimStore(self._pulsar_tree, process, lease_s=self.config.lease_s)
        environment = BrokerEnvironment(
            storage_of,
            store,
            clock,
            self.loop.random(f"{host.name} {life}"),
            HostFailpoints(self, process),
            self._pulsar_secrets,
        )
        # Without policies of its own, a topic neither retains acknowledged messages nor detects duplicates.
        config = replace(
            self.config,
            host=host.name,
            port=PORT,
            workers=len(self.pulsars),
            auto_create_topics=False,
            deduplication=False,
            segment_retention_s=0.0,
        )
        broker = Broker(config, environment, self._endpoint(host, listen), id=host.number)
        return self.begin(host, BrokerLife(process, broker, store, clock))

    @staticmethod
    def _endpoint(
        host: Host, listen: Callable[[Door[Pump]], Awaitable[Sequence[asyncio.AbstractServer]]]
    ) -> Endpoint:
        return Endpoint(f"pulsar://{host.name}:{PORT}", "", listen)

    def _start_control(self, host: Host, life: int) -> BrokerLife:
        process = SimProcess(self.loop, host.name)
        clock = SimClock(self.loop)
        tasks = TaskRegistry()

        async def listen(door: Door[Pump]) -> Sequence[asyncio.AbstractServer]:
            own = await self.loop.create_server(door.open, host.name, PORT)
            return [own, await self.loop.create_server(door.open, SERVICE, PORT, reuse_port=True)]

        store = SimSession(self.tree, process, trouble=self.store_trouble, lease_s=self.config.lease_s)
        lost = asyncio.Event()
        admin = SimAdmin(self, self.loop.random(f"admin {host.name} {life}"))
        parts = ControlParts(admin, SessionLease(store, lost), tasks, NewTopics(INSTALLATION))
        environment = BrokerEnvironment(
            partial(HomeLock, store, quiet=parts.quiet),
            store,
            clock,
            self.loop.random(f"{host.name} {life}"),
            ControlFailpoints(self, process),
            self.secrets,
            engine=lambda made: parts.engine,
        )
        config = replace(self.config, host=host.name, port=PORT)
        broker = Broker(config, environment, self._endpoint(host, listen), id=host.number)

        def end() -> None:
            lost.set()
            broker.failed.set()

        store.lost = end
        sweeper = parts.sweeper(broker.records, broker.stores.is_open)
        process.spawn(self._sweep(sweeper, self.loop.random(f"sweep {host.name} {life}")), name="sweep")
        return self.begin(host, BrokerLife(process, broker, store, clock))

    async def _sweep(self, sweeper: Sweeper, rng: random.Random) -> None:
        """As `Sweeper.run`, more often."""
        while True:
            await asyncio.sleep(rng.uniform(*SWEEP_S))
            with suppress(AnabranchError, TimeoutError):
                self.counts["stray swept"] += len(await sweeper.sweep())

    async def pulsar_topics(self) -> list[TopicName]:
        """The topics of Pulsar in the default namespace."""
        return [name async for name, _ in self._pulsar_records.walk_classic("public/default", "persistent")]

    async def pulsar_policies(self, topic: TopicName) -> dict[str, object]:
        """The policies of one topic of Pulsar."""
        record = await self._pulsar_records.namespaces.load_namespace(topic.namespace_name)
        return topic_policies(record.policies).get(topic_key(topic), {})

    async def owner_of(self, topic: TopicName) -> Host | None:
        """The broker that serves a topic of Pulsar, any one for an absent topic; None while there is none."""
        up = [host for host in self.pulsars if host.up.is_set() and host.broker is not None]
        record = await self._pulsar_records.find_classic(topic)
        if record is not None:
            up = [host for host in up if host.broker and record.store() in host.broker.stores.opened]
        return self.rng.choice(up) if up else None

    async def in_pulsar(self, topic: TopicName, work: Callable[[Broker], Awaitable[T]]) -> T:
        """Run `work` at the owner of a topic; ConnectError without one, or if it dies meanwhile."""
        host = await self.owner_of(topic)
        life = None if host is None else host.life
        if life is None:
            raise ConnectError(f"no broker of Pulsar has {topic}")
        broker = life.broker

        async def inside() -> T:
            return await work(broker)

        task = life.process.spawn(inside())
        # A caller that gives up does not read the error any more.
        task.add_done_callback(mark_retrieved)
        ended = self.loop.create_task(life.ended.wait())
        await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not task.done():
            raise ConnectError("Pulsar died during the call")
        return task.result()
