"""Messages without an acknowledgement: given back to the broker, or sent to a dead letter topic."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from anabranch.aio import TaskRegistry
from anabranch.client.consume.alarm import Alarm
from anabranch.client.consume.segment_consumer import SegmentConsumer
from anabranch.client.decide.acknowledgements import LedgerEntry
from anabranch.client.message import Message, Received
from anabranch.client.net.closing import Deadline
from anabranch.client.options import DeadLetter
from anabranch.client.produce.producer import AsyncProducer
from anabranch.errors import MessageTooBigError
from anabranch.model.ids import MessageId

OpenDeadLetters = Callable[[str, str | None], Coroutine[Any, Any, AsyncProducer[bytes]]]
"""Opens a producer on a topic; the second argument is the first subscription to create there, if any."""


BAD_ENTRY = "BAD_ENTRY"
"""Property of a dead letter that is an entry as it was stored, `whole` or `cut` to its first half."""


ORIGIN_SEGMENT, REASON, ATTEMPTS = "ORIGIN_SEGMENT", "DEAD_LETTER_REASON", "DEAD_LETTER_ATTEMPTS"
"""Properties of a dead letter that Pulsar does not have: its segment, the last error, and the attempts."""

REASON_MAX = 1000
"""Characters of an error that a dead letter carries."""


class Redelivery:
    """The messages that one queue consumer gives back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._given_back: list[tuple[float, int, SegmentConsumer, LedgerEntry, int]] = []
        """A heap by the time when the broker is asked to deliver the messages again."""
        self._next_number = count().__next__
        self._alarm = Alarm(loop, self._redeliver)
        self._closed = False

    def close(self) -> None:
        """Give nothing back any more; after the consumer leaves the broker delivers all messages again."""
        self._closed = True
        self._alarm.cancel()

    def give_back(self, source: SegmentConsumer, place: LedgerEntry, bits: int, delay_s: float) -> None:
        """Ask the broker after `delay_s` for messages of an entry that are not acknowledged until then."""
        due_at = self._loop.time() + delay_s
        heapq.heappush(self._given_back, (due_at, self._next_number(), source, place, bits))
        self._schedule()

    def _schedule(self) -> None:
        if self._given_back and not self._closed:
            self._alarm.set(self._given_back[0][0])

    def _redeliver(self) -> None:
        now = self._loop.time()
        asked: dict[SegmentConsumer, dict[LedgerEntry, None]] = {}
        while self._given_back and self._given_back[0][0] <= now:
            _, _, source, place, bits = heapq.heappop(self._given_back)
            if source.held.get(place, 0) & bits:
                source.unhold(place, bits)
                asked.setdefault(source, {})[place] = None
        for source, places in asked.items():
            # The broker must not deliver acknowledged messages of the same entries again.
            source.flush_acks()
            source.redeliver(places)
        self._schedule()


class DeadLetters:
    """Forwards the dead letters of one subscription; the producer is opened for the first of them."""

    def __init__(
        self, policy: DeadLetter, open_producer: OpenDeadLetters, tasks: TaskRegistry, subscription: str
    ) -> None:
        self.policy = policy
        self._open_producer = open_producer
        self._tasks = tasks
        self._subscription = subscription
        self._opening: asyncio.Task[AsyncProducer[bytes]] | None = None

    async def forward(self, entry: Received, topic: str) -> None:
        """Send the messages of an entry of `topic`; returns when they are stored, else raises."""
        producer = await self._producer(topic)
        if entry.passed_over:
            place = MessageId(entry.source.segment_id, *entry.position)
            origin = {**self._origin(topic, entry), "ORIGIN_MESSAGE_ID": str(place)}
            await _forward_bad(producer, entry.data, origin)
            return
        for index in entry.wanted_indexes():
            await self.forward_one(Message(entry, index, 0), topic, "redelivered too often")

    async def forward_one(self, message: Message[Any], topic: str, reason: str) -> None:
        """Send one message of `topic`, and why its handling was given up; as `forward`."""
        producer = await self._producer(topic)
        properties = {
            **message.properties,
            **self._origin(topic, message._entry),
            "ORIGIN_MESSAGE_ID": str(message.id),
            REASON: reason[:REASON_MAX],
            ATTEMPTS: str(message.redelivery_count + 1),
        }
        await producer.send(
            message.data, key=message.key_bytes, properties=properties, event_time=message.event_time
        )

    def _origin(self, topic: str, entry: Received) -> dict[str, str]:
        return {
            "REAL_TOPIC": topic,
            "REAL_SUBSCRIPTION": self._subscription,
            ORIGIN_SEGMENT: str(entry.source.segment_id),
        }

    async def _producer(self, topic: str) -> AsyncProducer[bytes]:
        opening = self._opening
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            target = self.policy.topic or f"{topic}-DLQ"
            work = self._open_producer(target, self.policy.initial_subscription)
            opening = self._opening = self._tasks.start(work, f"dead letters to {target}", awaited=True)
        return await asyncio.shield(opening)

    async def close_by(self, deadline: Deadline) -> None:
        """Close the producer if it is open."""
        opening = self._opening
        if opening is not None and opening.done() and not opening.cancelled() and not opening.exception():
            await opening.result().close_by(deadline)


async def _forward_bad(producer: AsyncProducer[bytes], entry: bytes, origin: dict[str, str]) -> None:
    """Send an entry that cannot be decoded; a message has metadata of its own, so it may not fit."""
    try:
        await producer.send(entry, properties={**origin, BAD_ENTRY: "whole"})
    except MessageTooBigError:
        await producer.send(entry[: len(entry) // 2], properties={**origin, BAD_ENTRY: "cut"})
