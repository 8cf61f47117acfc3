"""The consumers of a scenario, each in its own process: how they join, and what they do with messages."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from anabranch import AsyncClient, Backoff, Checkpoint, DeadLetter, Message
from anabranch.errors import AlreadyClosedError
from simulation.world.process import SimProcess

TOPIC_NAME = "topic://public/default/orders"
DEAD_LETTERS = "topic://public/default/orders-dead"
RETRY = Backoff(0.2, 0.2)
POLL_S = 0.1

Open = Callable[[AsyncClient, str], Awaitable[Any]]
"""Opens a consumer of a given name."""


class Noting(Protocol):
    """The part of a trace that a consumer writes to."""

    def note(self, text: str) -> None: ...


def stream(subscription: str, **more: Any) -> Open:
    return lambda client, name: client.subscribe_stream(
        TOPIC_NAME, subscription, name=name, initial_position="earliest", **more
    )


def queue(subscription: str, **more: Any) -> Open:
    return lambda client, name: client.subscribe_queue(
        TOPIC_NAME, subscription, name=name, initial_position="earliest", redelivery=RETRY, **more
    )


def checkpoint(start: Checkpoint, group: str | None = None) -> Open:
    return lambda client, name: client.create_checkpoint_consumer(
        TOPIC_NAME, start=start, group=group, name=name
    )


def dead_letters(redeliveries: int) -> DeadLetter:
    return DeadLetter(redeliveries, topic=DEAD_LETTERS)


@dataclass(slots=True)
class ScriptReader:
    """One consumer of a scenario and the messages it has received."""

    name: str
    process: SimProcess
    trace: Noting
    consumer: Any = None
    received: list[Message[bytes]] = field(default_factory=list)
    """The messages that are neither acknowledged nor refused, oldest first."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    hanging: dict[str, asyncio.Event] = field(default_factory=dict)
    """By key: the event that lets its handlers continue."""
    failures: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By key: how many more times its handlers fail."""

    def leave(self) -> None:
        self.leaving.set()
        for event in self.hanging.values():
            event.set()

    def say(self, what: str) -> None:
        self.trace.note(f"consumer {self.name} {what}")

    async def read(self, client: AsyncClient, opening: Open) -> None:
        """Receive until the consumer leaves, or is closed because it has unsubscribed."""
        async with client:
            self.consumer = await opening(client, self.name)
            with suppress(AlreadyClosedError):
                while not self.leaving.is_set():
                    for message in await self.consumer.receive_many(100, timeout=POLL_S):
                        self.received.append(message)
                        self.say(f"receives {describe(message)}")

    async def handle(self, client: AsyncClient, opening: Open) -> None:
        """Handle messages with `run`, which acknowledges them."""
        async with client:
            self.consumer = await opening(client, self.name)
            await self.consumer.run(self._handle, concurrency=10, retry=RETRY, stop=self.leaving)

    async def _handle(self, message: Message[bytes]) -> None:
        key = message.key or ""
        if key in self.hanging and not self.hanging[key].is_set():
            self.say(f"hangs in the handler of {describe(message)}")
            await self.hanging[key].wait()
        if self.failures[key]:
            self.failures[key] -= 1
            self.say(f"fails to handle {describe(message)}")
            raise ValueError("the handler fails")
        self.say(f"has handled {describe(message)}")

    async def acknowledge(self) -> None:
        """Acknowledge every message received so far, in the way of this kind of consumer."""
        taken, self.received = self.received, []
        assert taken, f"consumer {self.name} has no message to acknowledge"
        if hasattr(self.consumer, "acknowledge_cumulative"):
            await self.consumer.acknowledge_cumulative(taken[-1])
        else:
            await self.consumer.acknowledge(taken)

    async def acknowledge_key(self, key: str) -> None:
        for message in self._take(key):
            await self.consumer.acknowledge(message)

    async def refuse(self, key: str) -> None:
        for message in self._take(key):
            await self.consumer.negative_acknowledge(message)

    def _take(self, key: str) -> list[Message[bytes]]:
        """Return the messages of a key, and forget them."""
        taken = [message for message in self.received if message.key == key]
        assert taken, f"consumer {self.name} has no message of {key}"
        self.received = [message for message in self.received if message.key != key]
        return taken


def describe(message: Message[bytes]) -> str:
    return f"{message.key} {bytes(message.data).decode()!r} from segment {message.id.segment}"
