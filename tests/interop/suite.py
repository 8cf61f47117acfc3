"""Shared by the modules of the client suite: consumers of each kind, and readings that are checked."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from anabranch import AsyncClient, AsyncProducer, Checkpoint, Message

KEYS = 17
PATIENCE_S = 40.0
"""5.0.0-M1 looks once in a while whether the parents of a segment are read, after 2 seconds at first."""


async def opened(client: AsyncClient, kind: str, topic: str, **options: Any) -> Any:
    """A consumer of this kind that reads from the beginning."""
    if kind == "checkpoint":
        return await client.create_checkpoint_consumer(topic, start=Checkpoint.earliest())
    if kind == "stream":
        return await client.subscribe_stream(topic, kind, initial_position="earliest", **options)
    order: Any = "key" if kind == "keyed" else "none"
    return await client.subscribe_queue(topic, kind, initial_position="earliest", order=order, **options)


KINDS = ("stream", "queue", "keyed", "checkpoint")


class SuiteReading:
    """Reads and acknowledges everything; keeps the numbers of each key as they came."""

    def __init__(self, kind: str, consumer: Any) -> None:
        self.kind = kind
        self.consumer = consumer
        self.by_key: dict[str | None, list[int]] = defaultdict(list)
        self.count = 0

    async def until(self, count: int) -> None:
        """Read until this many messages came, or none came for the time that the slowest engine may take."""
        while self.count < count:
            messages = await self.consumer.receive_many(count - self.count, timeout=PATIENCE_S)
            if not messages:
                return
            await self._take(messages)

    async def _take(self, messages: list[Message[bytes]]) -> None:
        for message in messages:
            self.by_key[message.key].append(int(message.data))
            self.count += 1
            if self.kind in ("queue", "keyed"):
                await self.consumer.acknowledge(message)
        if self.kind == "stream":
            await self.consumer.acknowledge_cumulative(messages[-1])

    def check(self, count: int, *, in_order: bool = True) -> None:
        """Check that each message came once, and that the messages of a key came in order."""
        wanted = numbers_by_key(range(count))
        assert {key: sorted(found) for key, found in self.by_key.items()} == wanted, self.kind
        if in_order and self.kind != "queue":
            assert self.by_key == wanted, self.kind


def numbers_by_key(numbers: range) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = defaultdict(list)
    for number in numbers:
        found[f"key-{number % KEYS}"].append(number)
    return dict(found)


async def send(producer: AsyncProducer[bytes], numbers: range) -> None:
    for at in range(numbers.start, numbers.stop, 20):
        some = range(at, min(at + 20, numbers.stop))
        await producer.send_many([b"%d" % n for n in some], keys=[f"key-{n % KEYS}" for n in some])


async def reached(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - the client has no event for it
            await asyncio.sleep(0.02)
