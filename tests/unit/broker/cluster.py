"""Several brokers on one virtual clock and one metadata tree, each with stores that outlive it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

from anabranch.broker.broker import Broker, BrokerEnvironment
from anabranch.config import BrokerConfig
from anabranch.failpoints import NoFailpoints
from anabranch.ledger.memory import MemoryStorage
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.model.names import TopicName
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.pump import dial
from tests.unit.broker.wire import PATIENCE_S, Client, LoopClock

PORT = 6650


class Brokers:
    """Brokers 0 to n - 1, on hosts of their own."""

    def __init__(self, count: int, **settings: Any) -> None:
        self.tree = MemoryTree()
        self.storages: dict[int, MemoryStorage] = {}
        self.living: dict[int, Broker] = {}
        self._stores: dict[int, MemoryStore] = {}
        self._config = dataclasses.replace(BrokerConfig(workers=count), **settings)

    def __getitem__(self, number: int) -> Broker:
        return self.living[number]

    async def start(self, number: int) -> Broker:
        store = self._stores[number] = MemoryStore(self.tree)
        config = dataclasses.replace(self._config, host=f"broker-{number}", port=PORT)
        broker = Broker(
            config,
            BrokerEnvironment(
                lambda n: self.storages.setdefault(n, MemoryStorage()),
                store,
                LoopClock(),
                random.Random(number),
                NoFailpoints(),
            ),
            id=number,
        )
        self.living[number] = broker
        await broker.start()
        return broker

    async def start_all(self) -> None:
        for number in range(self._config.workers):
            await self.start(number)
        for broker in self.living.values():
            await broker.directory.look()

    async def stop(self, number: int) -> None:
        await self.living.pop(number).stop()
        await self._stores.pop(number).close()

    async def client(self, number: int, version: str = "Anabranch-Test") -> Client:
        """A client that is connected to this broker."""
        loop = asyncio.get_running_loop()
        client = Client()
        await dial(
            f"broker-{number}",
            PORT,
            lambda: ClientMachine(version, now=loop.time()),
            client,
            timeout_s=PATIENCE_S,
        )
        await client.expect(pb.CommandConnected)
        return client

    async def stop_all(self) -> None:
        for number in sorted(self.living):
            await self.stop(number)

    def leader_of(self, name: TopicName) -> int:
        """The broker that leads a topic."""
        (number,) = (n for n, broker in self.living.items() if name in broker.controllers.layouts())
        return number
