"""Messages that were delivered too often, forwarded to a dead letter topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from anabranch.aio import TaskRegistry
from anabranch.client.message import Message, Received
from anabranch.client.options import DeadLetter
from anabranch.client.produce.producer import AsyncProducer

OpenDeadLetters = Callable[[str, str | None], Awaitable[AsyncProducer[bytes]]]
"""Opens a producer on a topic; the second argument is the first subscription to create there, if any."""


class DeadLetters:
    """Forwards the dead letters of one subscription; the producer is opened for the first of them."""

    def __init__(
        self, policy: DeadLetter, open_producer: OpenDeadLetters, tasks: TaskRegistry, subscription: str
    ) -> None:
        self.max_redeliveries = policy.max_redeliveries
        self._policy = policy
        self._open_producer = open_producer
        self._tasks = tasks
        self._subscription = subscription
        self._opening: asyncio.Task[AsyncProducer[bytes]] | None = None

    async def forward(self, entry: Received, topic: str) -> None:
        """Send the messages of an entry of `topic`; returns when they are stored, else raises."""
        producer = await asyncio.shield(self._producer(self._policy.topic or f"{topic}-DLQ"))
        for index in entry.wanted_indexes():
            message: Message[Any] = Message(entry, index, 0)
            properties = {
                **message.properties,
                "REAL_TOPIC": topic,
                "REAL_SUBSCRIPTION": self._subscription,
                "ORIGIN_MESSAGE_ID": str(message.id),
            }
            await producer.send(
                message.data, key=message.key_bytes, properties=properties, event_time=message.event_time
            )

    async def close(self) -> None:
        """Close the producer if it is open."""
        opening = self._opening
        if opening is not None and opening.done() and not opening.exception():
            await opening.result().close()

    def _producer(self, topic: str) -> asyncio.Task[AsyncProducer[bytes]]:
        opening = self._opening
        if opening is None or (opening.done() and opening.exception() is not None):
            opening = self._tasks.start(self._open(topic), f"dead letters to {topic}", awaited=True)
            self._opening = opening
        return opening

    async def _open(self, topic: str) -> AsyncProducer[bytes]:
        return await self._open_producer(topic, self._policy.initial_subscription)
