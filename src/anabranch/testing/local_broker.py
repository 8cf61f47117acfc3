"""A broker inside the process of a test: real code on a real port, with memory in place of disks.

It runs in a thread with an event loop of its own, so tests may use the asynchronous and the blocking client.
A crash loses everything that a killed process loses, and keeps everything that it had acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

from anabranch.aio import new_event_loop
from anabranch.broker.broker import Broker
from anabranch.broker.cluster.endpoint import Endpoint
from anabranch.broker.environment import BrokerEnvironment
from anabranch.clock import SystemClock
from anabranch.config.files import load_config
from anabranch.errors import InvalidConfigurationError
from anabranch.failpoints import NoFailpoints
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.model.names import TopicName
from anabranch.server.listening import listen
from anabranch.testing.seeded_secrets import SeededSecrets
from anabranch.testing.slow_keys import HoldingStorage, SlowKey, SlowKeys
from anabranch.transport.accepting import Acceptor
from anabranch.transport.door import Door
from anabranch.transport.pump import Pump

T = TypeVar("T")

HOST = "127.0.0.1"
CALL_S = 30.0
"""Longest time for a start, a stop or a change of a layout."""


class LocalBroker:
    """One broker for tests; use it with `with`, or start and stop it yourself.

    The settings are those of `anabranch serve --set`. Topics split and merge only when the test says so,
    unless `scalableTopicAutoScaleEnabled=True` is among the settings.

    Example:
        with LocalBroker() as broker, Client(broker.url) as client:
            client.create_producer("orders").send(b"one tea", key="alice")
            broker.split("orders")
            broker.crash()
            consumer = client.subscribe_stream("orders", "billing", initial_position="earliest")
            assert consumer.receive(timeout=10).value == b"one tea"
    """

    def __init__(self, **settings: object) -> None:
        given = {"scalableTopicAutoScaleEnabled": False, **settings, "host": HOST}
        self._config = load_config(sets=[f"{name}={_text(value)}" for name, value in given.items()])
        self._port = 0
        self._tree = MemoryTree()
        self._slow_keys = SlowKeys()
        self._storages: dict[int, HoldingStorage] = {}
        self._secrets = SeededSecrets(random.Random())
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="anabranch broker", daemon=True)
        self._life: _Life | None = None

    @property
    def url(self) -> str:
        """The address for clients, the same before and after a crash."""
        return f"pulsar://{HOST}:{self._port}"

    def start(self) -> Self:
        """Start serving; returns when clients can connect."""
        self._thread.start()
        self._run(self._begin())
        return self

    def stop(self) -> None:
        """Stop cleanly, and forget all data; a second call does nothing."""
        if self._thread.is_alive():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_S)

    def crash(self) -> None:
        """Kill the broker as SIGKILL would, and start it again on the stored data, at the same address."""
        self._run(self._crash())

    def create_topic(self, topic: str, *, segments: int = 1) -> None:
        """Create a scalable topic; a bare name is one of public/default."""
        self._run(self._create_topic(_name(topic), segments))

    def segments(self, topic: str) -> list[int]:
        """Return the ids of the active segments, in the order of their hash ranges."""
        return self._run(self._segments(topic))

    def split(self, topic: str, segment: int | None = None, *, points: Sequence[int] = ()) -> list[int]:
        """Split a segment, the first active one by default, in the middle or at these slots.

        Returns the ids of the active segments afterwards.
        """
        return self._run(self._split(topic, segment, points))

    def merge(self, topic: str, *segments: int) -> list[int]:
        """Merge neighbouring segments, all active ones by default; returns the ids of the active segments."""
        return self._run(self._merge(topic, segments))

    def slow_key(self, topic: str, key: str, seconds: float) -> AbstractContextManager[None]:
        """Deliver messages of a key, published inside the `with` block, this long after they were stored.

        Queues deliver other messages meanwhile. A stream delivers each segment in order: messages behind a
        slow one in its segment wait, those of other segments do not. A batch waits as a whole.
        """
        return self._slow_keys.slow(SlowKey(_name(topic), key.encode(), round(seconds * 1000)))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    # In the thread of the broker.

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise InvalidConfigurationError("the broker does not run; start it, or use it inside `with`")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    @property
    def _broker(self) -> Broker:
        assert self._life is not None, "start the broker first"
        return self._life.broker

    async def _begin(self) -> None:
        listener = listen(HOST, self._port, "port")
        self._port = listener.getsockname()[1]
        store = MemoryStore(self._tree)
        acceptors: list[Acceptor[Pump]] = []

        async def accept(door: Door[Pump]) -> list[Acceptor[Pump]]:
            acceptors.append(Acceptor(listener, door))
            return acceptors

        environment = BrokerEnvironment(
            self._storage_of,
            store,
            SystemClock(),
            random.Random(),
            NoFailpoints(),
            self._secrets,
            ordered_delays=True,
        )
        broker = Broker(self._config, environment, Endpoint(self.url, "", accept))
        self._life = _Life(broker, store, acceptors)
        await broker.start()

    def _storage_of(self, number: int) -> HoldingStorage:
        return self._storages.setdefault(number, HoldingStorage(self._slow_keys))

    async def _end(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            await life.broker.stop()
            await life.store.close()

    async def _crash(self) -> None:
        life, self._life = self._life, None
        assert life is not None, "start the broker first"
        life.store.expire()
        for acceptor in life.acceptors:
            acceptor.close()
        for connection in list(life.broker.connections):
            if connection.pauses.pump is not None:
                connection.pauses.pump.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for storage in self._storages.values():
            await storage.close()
        await self._begin()

    async def _create_topic(self, name: TopicName, segments: int) -> None:
        await self._broker.controllers.create_topic(name, segments)

    async def _segments(self, topic: str) -> list[int]:
        record = await self._broker.records.load(_name(topic))
        found = [segment for segment in record.segments.values() if segment.state == "ACTIVE"]
        return [segment.segment_id for segment in sorted(found, key=lambda each: each.hash_range.start)]

    async def _split(self, topic: str, segment: int | None, points: Sequence[int]) -> list[int]:
        leader = await self._broker.controllers.controller(_name(topic))
        chosen = (await self._segments(topic))[0] if segment is None else segment
        await leader.split(chosen, list(points) or None)
        return await self._segments(topic)

    async def _merge(self, topic: str, segments: Sequence[int]) -> list[int]:
        leader = await self._broker.controllers.controller(_name(topic))
        await leader.merge(list(segments) or await self._segments(topic))
        return await self._segments(topic)


class _Life:
    """The broker between two crashes."""

    def __init__(self, broker: Broker, store: MemoryStore, acceptors: list[Acceptor[Pump]]) -> None:
        self.broker, self.store, self.acceptors = broker, store, acceptors


def _name(topic: str) -> TopicName:
    return TopicName.parse(topic, default_domain="topic")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
