"""Consume messages as fast as they come, and acknowledge them.

The rate counts from the first message on: opening a subscription says nothing about reading it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anabranch import AsyncClient, Checkpoint, Message
from anabranch.bench.run import BenchRun, now, together
from anabranch.client.options import InitialPosition
from anabranch.errors import AnabranchError, TopicNotFoundError

ConsumerKind = Literal["stream", "queue", "key-ordered", "checkpoint"]

CHUNK = 1000
POLL_S = 0.2
"""How often a consumer without messages looks whether the run has ended."""


@dataclass(frozen=True, slots=True)
class BenchReading:
    """How messages are read."""

    consumers: int
    kind: ConsumerKind
    subscription: str | None
    """None makes a subscription for the run, which is deleted at its end."""
    start: InitialPosition
    idle_s: float | None
    """The run ends when no message has come for so long; None waits on."""


class BenchConsumers:
    """The consumers of a run, of one subscription or without one."""

    def __init__(self, run: BenchRun, client: AsyncClient, topic: str, reading: BenchReading) -> None:
        self._run = run
        self._client = client
        self._topic = topic
        self.reading = reading
        self._name = reading.subscription or f"bench-{secrets.token_hex(4)}"
        self.consumers: list[Any] = []

    async def open(self) -> None:
        for _ in range(self.reading.consumers):
            self.consumers.append(await self._open_one())

    async def _open_one(self) -> Any:
        reading, client = self.reading, self._client
        if reading.kind == "checkpoint":
            start = Checkpoint.earliest() if reading.start == "earliest" else Checkpoint.latest()
            group = self._name if reading.consumers > 1 else None
            return await client.create_checkpoint_consumer(self._topic, start=start, group=group)
        if reading.kind == "stream":
            return await client.subscribe_stream(self._topic, self._name, initial_position=reading.start)
        order: Literal["key", "none"] = "key" if reading.kind == "key-ordered" else "none"
        return await client.subscribe_queue(
            self._topic, self._name, initial_position=reading.start, order=order
        )

    async def acknowledge(self, consumer: Any, messages: Sequence[Message[bytes]]) -> None:
        """Acknowledge what one consumer received last; a checkpoint consumer has nothing to acknowledge."""
        if self.reading.kind == "stream":
            await consumer.acknowledge_cumulative(messages[-1])
        elif self.reading.kind != "checkpoint":
            await consumer.acknowledge(messages)

    async def close(self) -> None:
        """Close all consumers, and delete the subscription that this run made."""
        for consumer in self.consumers[1:]:
            await consumer.close()
        for consumer in self.consumers[:1]:
            if self.reading.kind != "checkpoint" and self.reading.subscription is None:
                await self._delete(consumer)
                continue
            await consumer.close()
            if self.reading.kind != "checkpoint" or self.reading.consumers > 1:
                self._run.left.append(f"the subscription {self._name} of {self._topic}")

    async def _delete(self, consumer: Any) -> None:
        try:
            await consumer.unsubscribe()
        except AnabranchError as error:
            self._run.left.append(
                f"the subscription {self._name} of {self._topic}; deleting it failed: {error}"
            )


async def consume(run: BenchRun, client: AsyncClient, topic: str, reading: BenchReading) -> None:
    """Consume from a topic until the run has ended; raises TopicNotFoundError if it does not exist."""
    try:
        await client.layout(topic)
    except TopicNotFoundError as error:
        raise TopicNotFoundError(f"{error}; `anabranch bench publish` creates and fills it") from None
    consumers = BenchConsumers(run, client, topic, reading)
    try:
        await consumers.open()
        run.start()
        await together(*(_read(run, consumers, consumer) for consumer in consumers.consumers))
    finally:
        await consumers.close()


async def _read(run: BenchRun, consumers: BenchConsumers, consumer: Any) -> None:
    while room := run.room(CHUNK):
        asked_at = now()
        messages = await consumer.receive_many(room, timeout=POLL_S)
        if messages:
            run.received.start(asked_at)
            run.received.add(now(), len(messages), sum(message.size for message in messages))
            run.move(len(messages))
            await consumers.acknowledge(consumer, messages)
        elif consumers.reading.idle_s is not None and run.idle_s() >= consumers.reading.idle_s:
            run.end()
