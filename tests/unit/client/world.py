"""A broker and clients of ours on a virtual clock, with everything that may go wrong between them."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import defaultdict
from typing import Any, TypeVar

from anabranch import AsyncClient, AsyncStreamConsumer, Message
from anabranch.broker.broker import Broker, BrokerEnvironment
from anabranch.config import BrokerConfig
from anabranch.controller.topic.controller import TopicController
from anabranch.failpoints import NoFailpoints
from anabranch.ledger.memory import MemoryStorage
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.testing.network import Mode, SimNetwork
from anabranch.testing.simloop import SimLoop, SimProcess

T = TypeVar("T")

TOPIC = "topic://public/default/orders"
HOST = "broker"
PORT = 6650


class LoopClock:
    """Wall time that follows the virtual clock."""

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000)


class World:
    """One broker that can be killed and started again on the same storage, and the links to it."""

    def __init__(self, loop: SimLoop, **settings: Any) -> None:
        self.loop = loop
        self.network = SimNetwork(loop)
        self.rng = loop.random("test")
        self.storage = MemoryStorage()
        self.tree = MemoryTree()
        quiet = dataclasses.replace(BrokerConfig().auto_scale, enabled=False)
        settings = {"auto_scale": quiet, **settings}
        self.config = BrokerConfig(host=HOST, port=PORT, advertised_host=HOST, **settings)
        self.process: SimProcess | None = None
        self.broker: Broker | None = None
        self._store: MemoryStore | None = None
        self._clients = 0

    async def start(self) -> Broker:
        """Start the broker in a process of its own."""
        self.process = SimProcess(self.loop, HOST)
        self._store = MemoryStore(self.tree)
        broker = Broker(
            self.config,
            BrokerEnvironment(
                lambda _: self.storage,
                self._store,
                LoopClock(),
                self.loop.random("broker"),
                NoFailpoints(),
            ),
        )
        await self.process.spawn(broker.start())
        self.broker = broker
        return broker

    def kill(self) -> None:
        """SIGKILL: nothing of the broker runs any more, its connections break."""
        assert self.process is not None
        assert self._store is not None
        self.process.kill()
        self._store.expire()
        self.broker = None

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

    def client(self, **options: Any) -> AsyncClient:
        self._clients += 1
        return AsyncClient(
            f"pulsar://{HOST}:{PORT}",
            clock=LoopClock(),
            rng=self.loop.random(f"client {self._clients}"),
            **options,
        )

    async def controller(self, topic: str = TOPIC) -> TopicController:
        assert self.broker is not None
        return await self.broker.controllers.lead(TopicName.parse(topic))

    async def change_layout(self, rng: random.Random, topic: str = TOPIC) -> Layout:
        """Split or merge something, as the dice say."""
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

    async def trouble(
        self,
        over: asyncio.Event,
        *,
        changes: float = 0.7,
        interrupted: float = 0.0,
        resets: float = 0.15,
        pause_s_max: float = 0.03,
    ) -> None:
        """Change the layout, break connections or kill the broker, with these shares, until it is over."""
        rng = self.rng
        while not over.is_set():
            await asyncio.sleep(rng.uniform(0.001, pause_s_max))
            dice = rng.random()
            if dice < changes:
                await self.change_layout(rng)
            elif dice < changes + interrupted:
                # In the middle of a change, when both the answer and the layout are on their way.
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


async def drain(consumer: AsyncStreamConsumer[bytes], timeout: float = 1.0) -> list[Message[bytes]]:
    """Receive and acknowledge until nothing comes any more."""
    found: list[Message[bytes]] = []
    while messages := await consumer.receive_many(100, timeout=timeout):
        found += messages
        await consumer.acknowledge_cumulative(messages[-1])
    return found


class Orders:
    """Checks what consumers get: each key's numbers rise without a gap."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.total = 0

    def take(self, messages: list[Message[bytes]]) -> None:
        for message in messages:
            assert message.key is not None
            self.seen[message.key].append(int(message.value))
        self.total += len(messages)

    def check(self, keys: int, per_key: int) -> None:
        assert sorted(self.seen) == sorted(f"key-{n}" for n in range(keys))
        for key, numbers in self.seen.items():
            assert numbers == list(range(per_key)), f"{key}: {numbers[:40]}"
