"""The blocking producer: the caller's thread checks and encodes messages, then queues them for the loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Generic, cast

from anabranch.client.blocking.outbox import Item, MessageList, OneMessage, Outbox, fail_item
from anabranch.client.blocking.outcomes import SendOutcome
from anabranch.client.blocking.portal import Handle, Portal
from anabranch.client.decide.producing.batcher import BucketFill
from anabranch.client.figures import State
from anabranch.client.net.closing import Deadline
from anabranch.client.options import Seconds, optional_seconds
from anabranch.client.produce.preparing import KEY_TYPES
from anabranch.client.produce.producer import AsyncProducer, ProducerStats
from anabranch.client.schema import V
from anabranch.errors import AlreadyClosedError, AnabranchError, SendTimeoutError
from anabranch.model.ids import MessageId

QUEUED_SENDS_MAX = 2000
"""Messages that may wait for the loop's thread before a caller waits; with more, the two threads would only
compete for the interpreter."""

OUTCOME_S = 1.0
"""Longest time for an outcome to pass from the loop's thread to its caller."""


class Producer(Handle, Generic[V]):
    """Publishes to one topic; the blocking form of AsyncProducer.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client, client.create_producer("orders") as producer:
            futures = [producer.enqueue(b"one tea", key="alice") for _ in range(10)]
            producer.flush()
    """

    def __init__(self, portal: Portal, twin: AsyncProducer[V]) -> None:
        super().__init__(portal)
        self._twin = twin
        self._publisher = publisher = twin.publisher
        self._outbox = Outbox(portal, publisher)
        self.complete_by = self._outbox.close_by
        """Completes the messages of callers until a deadline, then ends; runs in the loop's thread."""
        self._tell = self._outbox.tell
        self._plain = None if publisher.intake.each_alone else publisher.preparing.plain
        """The type of values that need neither encoding nor a check of their sequence ids."""

    @property
    def topic(self) -> str:
        """The name the broker resolved."""
        return self._twin.topic

    @property
    def name(self) -> str:
        """The producer's name, never None."""
        return self._twin.name

    @property
    def last_sequence_id(self) -> int:
        """The sequence id of the last message; -1, or the initial one, before the first."""
        return self._twin.last_sequence_id

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the broker takes."""
        return self._twin.message_bytes_max

    @property
    def state(self) -> State:
        """Whether the producer is open or closed."""
        return self._twin.state

    @property
    def is_connected(self) -> bool:
        """Whether every segment in use has a connection."""
        return self._twin.is_connected

    @property
    def bucket_fills(self) -> dict[tuple[int, int], BucketFill]:
        """How full the batches were, by segment and bucket, of the segments in use (PIP-486)."""
        return self._twin.bucket_fills

    @property
    def stats(self) -> ProducerStats:
        """How long the producer has waited for credit of its brokers, and what waits now."""
        return self._twin.stats

    def send(
        self,
        value: V | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | None = None,
        sequence_id: int | None = None,
        deliver_after: Seconds | None = None,
        deliver_at: datetime | None = None,
    ) -> MessageId:
        """Publish one message and return its id when the broker has stored it.

        Raises SendTimeoutError after the producer's `send_timeout`.
        """
        self._portal.check("Producer.send")
        outcome = self.enqueue(
            value,
            key=key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_after=deliver_after,
            deliver_at=deliver_at,
        )
        timeout_s = self._publisher.options.send_timeout_s
        try:
            # The loop's thread ends a message in time; it needs a moment more to say so.
            return outcome.result(timeout_s + OUTCOME_S if timeout_s else None)
        except TimeoutError as error:
            if isinstance(error, AnabranchError):
                raise
            raise SendTimeoutError(f"not stored within {timeout_s:g} s; it may still be stored") from None

    def enqueue(
        self,
        value: V | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | None = None,
        sequence_id: int | None = None,
        deliver_after: Seconds | None = None,
        deliver_at: datetime | None = None,
    ) -> SendOutcome[MessageId]:
        """Give a message its place in the order and return a future for its id; waits for room only."""
        outcome: SendOutcome[MessageId] = SendOutcome(self._tell)
        if (
            type(value) is self._plain
            and type(key) in KEY_TYPES
            and (not isinstance(key, str) or key.isascii())
            and properties is None
            and event_time is None
            and sequence_id is None
            and deliver_after is None
            and deliver_at is None
        ):
            self._put("Producer.enqueue", (outcome, cast(bytes, value), key))
            return outcome
        row = self._publisher.preparing.one(
            value, key, properties, event_time, sequence_id, deliver_after, deliver_at
        )
        self._put("Producer.enqueue", OneMessage(outcome, row))
        return outcome

    def send_many(self, values: Sequence[V], keys: Sequence[str | bytes | None] | None = None) -> None:
        """Publish many messages, in order, and return when all are stored; raises the first failure."""
        self._portal.check("Producer.send_many")
        self.enqueue_many(values, keys).result()

    def enqueue_many(
        self, values: Sequence[V], keys: Sequence[str | bytes | None] | None = None
    ) -> SendOutcome[None]:
        """Give many messages their place in the order and return one future for all of them."""
        prepared = self._publisher.preparing.many(values, keys)
        outcome: SendOutcome[None] = SendOutcome()
        self._put("Producer.enqueue_many", MessageList(outcome, prepared))
        return outcome

    def flush(self, timeout: Seconds | None = None) -> None:
        """Send all batches and wait for every message enqueued before; raises failures not yet retrieved.

        Raises OperationTimeoutError if messages are still pending after `timeout`.
        """
        self._run("flush", lambda: self._flush(timeout))

    def close(self, timeout: Seconds | None = None) -> None:
        """Complete accepted messages, then disconnect, within `timeout`; by default the operation timeout.

        The futures of messages that were not stored raise, and failures that no caller has seen are logged.
        """
        with suppress(AlreadyClosedError):
            self._run("close", lambda: self._close(timeout))

    async def _flush(self, timeout: Seconds | None) -> None:
        limit = optional_seconds("timeout", timeout)
        deadline = Deadline(math.inf if limit is None else limit)
        await self._outbox.emptied(deadline)
        await self._twin.flush(timeout if limit is None else deadline.left_s)

    async def _close(self, timeout: Seconds | None) -> None:
        limit = optional_seconds("timeout", timeout)
        limit_s = self._publisher.parts.pool.operation_timeout_s if limit is None else limit
        await self._outbox.close_by(Deadline(limit_s))

    def _put(self, method: str, item: Item) -> None:
        try:
            self._portal.check(method)
            intake = self._publisher.intake
            if intake.closed:
                intake.check_open()
            if len(self._outbox.items) >= QUEUED_SENDS_MAX or not self._publisher.options.block_if_full:
                self._portal.run(method, self._wait_for_outbox)
        except BaseException as error:
            fail_item(item, error)
            raise
        self._outbox.put(item)

    async def _wait_for_outbox(self) -> None:
        timeout_s = self._publisher.options.send_timeout_s or math.inf
        if not await self._outbox.emptied(Deadline(timeout_s)):
            raise SendTimeoutError(f"earlier messages left no room within {timeout_s:g} s")
