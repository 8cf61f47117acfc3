"""The cluster harness: brokers, clients and the links between them, on virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from anabranch import AsyncClient, AsyncProducer, AsyncStreamConsumer, Checkpoint, Message
from anabranch.broker.broker import Broker
from anabranch.broker.cluster.endpoint import Accept, Endpoint
from anabranch.broker.environment import BrokerEnvironment
from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.client.bulk.segment_reader import RawEntry, SegmentReader
from anabranch.config.broker import BrokerConfig
from anabranch.config.fields import OFF
from anabranch.controller.topic.controller import TopicController
from anabranch.failpoints import NoFailpoints
from anabranch.ledger.memory import MemoryStorage
from anabranch.ledger.storage import SegmentStorage
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Command
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.security.configured import make_gate
from anabranch.testing.seeded_secrets import SeededSecrets
from anabranch.transport.dialing import listen
from anabranch.transport.door import Door
from anabranch.transport.pump import Pump, PumpHandler
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.network import SimNetwork
from simulation.world.process import SimProcess
from simulation.world.transport import Mode
from tests.harness.security import OUTSIDE, KeptAudit
from tests.harness.wire import WireClient

TOPIC = "topic://public/default/orders"
PORT = 6650


def host_of(number: int) -> str:
    return f"broker-{number}"


HOST = host_of(0)


def _endpoint(config: BrokerConfig, accept: Accept) -> Endpoint:
    """The addresses of all ports; the simulated network serves the plain one alone."""
    ports = {
        "pulsar": config.port,
        "http": config.http_port,
        "pulsar+ssl": config.tls_port,
        "https": config.https_port,
    }
    urls = {scheme: "" if port == OFF else config.url_of(scheme, port) for scheme, port in ports.items()}
    return Endpoint(
        urls["pulsar"], urls["http"], accept, url_tls=urls["pulsar+ssl"], http_url_tls=urls["https"]
    )


class Brokers:
    """Brokers 0 to n - 1, each a process on a host of its own; storage and metadata outlive them.

    The fixture `brokers` starts one and stops it. The marker `brokers` changes their number (`count`), the
    factory of their storages (`storage`), and any setting of `BrokerConfig`. Auto scaling is off unless the
    marker turns it on.
    """

    def __init__(
        self,
        loop: SimLoop,
        *,
        count: int = 1,
        storage: Callable[[], SegmentStorage] = MemoryStorage,
        **settings: Any,
    ) -> None:
        self.loop = loop
        self.network = SimNetwork(loop)
        self.clock = SimClock(loop)
        self.rng = loop.random("test")
        self.tree = MemoryTree()
        self.secrets = SeededSecrets(loop.random("secrets"))
        self.audit = KeptAudit()
        self.storages: dict[int, SegmentStorage] = {}
        self.stores: dict[int, MemoryStore] = {}
        self.processes: dict[int, SimProcess] = {}
        self.living: dict[int, Broker] = {}
        quiet = dataclasses.replace(BrokerConfig().auto_scale, enabled=False)
        self.config = BrokerConfig(**{"workers": count, "port": PORT, "auto_scale": quiet, **settings})
        self.silent = False
        """Whether brokers answer CONNECT and PING but ignore every other command."""
        self.ignored: frozenset[type] = frozenset()
        """Commands that brokers ignore, in any case."""
        self._make_storage = storage
        self._clients = 0

    def __getitem__(self, number: int) -> Broker:
        return self.living[number]

    def _storage_of(self, store: int) -> SegmentStorage:
        if store not in self.storages:
            self.storages[store] = self._make_storage()
        return self.storages[store]

    async def start(self, number: int = 0) -> Broker:
        """Start a broker in a new process."""
        process = self.processes[number] = SimProcess(self.loop, host_of(number))
        store = self.stores[number] = MemoryStore(self.tree)
        config = dataclasses.replace(self.config, host=host_of(number))
        rng = self.loop.random(host_of(number))

        async def accept(door: Door[Pump]) -> list[asyncio.Server]:
            def muffled() -> Pump | None:
                pump = door.open()
                if pump is not None:
                    pump.handler = Muffler(self, pump.handler)
                return pump

            return [await listen(config.host, config.port, muffled)]

        environment = self.environment(number, store, rng)
        broker = Broker(config, environment, _endpoint(config, accept), id=number)
        self.living[number] = broker
        await process.spawn(broker.start())
        return broker

    def environment(self, number: int, store: MemoryStore, rng: random.Random) -> BrokerEnvironment:
        """The outside world of one broker."""
        gate = make_gate(self.config, self.clock, self.audit, OUTSIDE)
        return BrokerEnvironment(
            self._storage_of, store, self.clock, rng, NoFailpoints(), self.secrets, gate=gate
        )

    async def start_all(self) -> None:
        for number in range(self.config.workers):
            await self.start(number)
        for broker in self.living.values():
            await broker.directory.look()

    async def stop(self, number: int = 0) -> None:
        """Stop a broker as SIGTERM does."""
        await self.living.pop(number).stop()
        await self.stores.pop(number).close()

    async def stop_all(self) -> None:
        for number in sorted(self.living):
            await self.stop(number)

    async def restart(self, number: int = 0) -> None:
        await self.stop(number)
        await self.start(number)

    def kill(self, number: int = 0) -> None:
        """End a broker as SIGKILL does: none of its code runs any more, and its connections break."""
        self.processes[number].kill()
        self.stores.pop(number).expire()
        del self.living[number]

    def reset_links(self) -> None:
        """Break all connections; both ends notice."""
        for link in self.network.links():
            self.network.reset(link)

    def hold_links(self) -> None:
        for link in self.network.links():
            self.network.set_mode(link, Mode.HELD)

    def open_links(self) -> None:
        for link in self.network.links():
            self.network.set_mode(link, Mode.OPEN)

    async def connect(
        self, number: int = 0, version: str = "Anabranch-Test", **credentials: Any
    ) -> WireClient:
        """Return a client that sends single commands to this broker, with `token` or other credentials."""
        if token := credentials.pop("token", ""):
            credentials |= {"auth_method": "token", "auth_data": token.encode()}
        return await WireClient.dial(host_of(number), PORT, version, **credentials)

    def client(self, *numbers: int, **options: Any) -> BulkClient:
        """Return an Anabranch client that knows the addresses of these brokers, or of all brokers by default.

        The client has the calls of bulk writers too.
        """
        self._clients += 1
        hosts = ",".join(f"{host_of(n)}:{PORT}" for n in numbers or range(self.config.workers))
        rng = self.loop.random(f"client {self._clients}")
        return BulkClient(f"pulsar://{hosts}", **{"clock": self.clock, "rng": rng, **options})

    def leader_of(self, name: TopicName) -> int:
        """Return the number of the broker that leads a topic."""
        (number,) = (n for n, broker in self.living.items() if name in broker.controllers.layouts())
        return number

    async def controller(self, topic: str = TOPIC) -> TopicController:
        return await self.living[0].controllers.lead(TopicName.parse(topic))

    async def change_layout(self, rng: random.Random, topic: str = TOPIC) -> Layout:
        """Split or merge segments that `rng` picks."""
        controller = await self.controller(topic)
        active = controller.layout.active
        if len(active) > 1 and (len(active) > 4 or rng.random() < 0.45):
            at = rng.randrange(len(active) - 1)
            return await controller.merge([active[at].id, active[at + 1].id])
        segment = rng.choice(active)
        points = None
        if segment.range.width > 8 and rng.random() < 0.5:
            points = sorted(rng.sample(range(segment.range.start + 1, segment.range.end), 2))
        return await controller.split(segment.id, points)

    async def publish(self, keys: int, rounds: int, first: int = 0) -> None:
        """Send each key its next numbers, one round after the other."""
        async with self.client() as client:
            producer = await client.create_producer(TOPIC)
            for number in range(first, first + rounds):
                await producer.send_many([b"%d" % number] * keys, keys=[f"key-{key}" for key in range(keys)])

    async def publish_in_trouble(self, producer: AsyncProducer[bytes]) -> None:
        """Publish 80 numbers of each of 10 keys, with pauses, while the cluster is in trouble."""
        async with self.trouble():
            for number in range(80):
                await producer.enqueue_many([b"%d" % number] * 10, keys=[f"key-{key}" for key in range(10)])
                await asyncio.sleep(self.rng.uniform(0.0, 0.004))

    @asynccontextmanager
    async def trouble(self, **shares: float) -> AsyncIterator[None]:
        """Change the layout, break connections and kill the broker while the block runs."""
        over = asyncio.Event()
        troubling = asyncio.ensure_future(self._trouble(over, **shares))
        yield
        over.set()
        await troubling

    async def _trouble(
        self,
        over: asyncio.Event,
        *,
        changes: float = 0.7,
        interrupted: float = 0.0,
        resets: float = 0.15,
        pause_s_max: float = 0.03,
    ) -> None:
        rng = self.rng
        while not over.is_set():
            await asyncio.sleep(rng.uniform(0.001, pause_s_max))
            dice = rng.random()
            if dice < changes:
                await self.change_layout(rng)
            elif dice < changes + interrupted:
                # The links break during a change, when both its answer and the new layout are on their way.
                changing = asyncio.ensure_future(self.change_layout(rng))
                await asyncio.sleep(rng.uniform(0.0, 0.004))
                self.reset_links()
                await changing
            elif dice < changes + interrupted + resets:
                self.reset_links()
            else:
                self.kill()
                await asyncio.sleep(rng.uniform(0.0, 0.1))
                await self.start()


class Muffler:
    """Stands between a pump and its broker, and drops commands while the brokers are silent."""

    def __init__(self, brokers: Brokers, handler: PumpHandler) -> None:
        self._brokers = brokers
        self._handler = handler

    def connected(self, pump: Pump) -> None:
        self._handler.connected(pump)

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        heard = [command for command in commands if type(command) not in self._brokers.ignored]
        if self._brokers.silent:
            heard = [command for command in heard if isinstance(command, pb.CommandConnect)]
        if heard:
            self._handler.commands(pump, heard)

    def closed(self, pump: Pump, error: Exception | None) -> None:
        self._handler.closed(pump, error)


async def read_all(reader: SegmentReader) -> list[RawEntry]:
    """All entries that a bulk reader returns."""
    found: list[RawEntry] = []
    while entries := await reader.read():
        found += entries
    return found


async def drain(consumer: AsyncStreamConsumer[bytes], timeout: float = 1.0) -> list[Message[bytes]]:
    """Receive and acknowledge until no message arrives for `timeout` seconds."""
    found: list[Message[bytes]] = []
    while messages := await consumer.receive_many(100, timeout=timeout):
        found += messages
        await consumer.acknowledge_cumulative(messages[-1])
    return found


async def stored_messages(
    client: AsyncClient, count: int | None = None, topic: str = TOPIC
) -> list[Message[bytes]]:
    """All messages of a topic in reading order; fails unless there are `count`, where it is given."""
    consumer = await client.create_checkpoint_consumer(topic, start=Checkpoint.earliest())
    found: list[Message[bytes]] = []
    while messages := await consumer.receive_many(1000, timeout=2.0):
        found += messages
    await consumer.close()
    assert count is None or len(found) == count
    return found


async def enqueue_numbers(producer: AsyncProducer[bytes], keys: int, per_key: int) -> list[object]:
    """Enqueue the numbers below `per_key` for each key."""
    return [
        await producer.enqueue(b"%d" % number, key=f"key-{key}")
        for number in range(per_key)
        for key in range(keys)
    ]


class Orders:
    """Checks the messages that consumers receive: each key's numbers rise without a gap."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.total = 0

    def take(self, messages: list[Message[bytes]]) -> None:
        for message in messages:
            assert message.key is not None
            self.seen[message.key].append(int(message.data))
        self.total += len(messages)

    def check(self, keys: int, per_key: int) -> None:
        assert sorted(self.seen) == sorted(f"key-{n}" for n in range(keys))
        for key, numbers in self.seen.items():
            assert numbers == list(range(per_key)), f"{key}: {numbers[:40]}"
