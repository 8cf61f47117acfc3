"""The blocking producer: the caller's thread checks and encodes messages, then queues them for the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

from anabranch.client.blocking.portal import Handle, Portal
from anabranch.client.decide.batcher import BucketFill, Outgoing
from anabranch.client.options import Seconds
from anabranch.client.produce.futures import BulkFuture, message_id
from anabranch.client.produce.preparing import Prepared
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.schema import V
from anabranch.model.ids import MessageId

R = TypeVar("R")

QUEUED_SENDS_MAX = 500
"""Messages that may wait for the loop's thread before a caller waits; with more, the two threads would only
compete for the interpreter."""

TAKEN_MAX = 256
"""Messages that the loop's thread takes from the queue at a time."""


class Producer(Handle, Generic[V]):
    """Publishes to one topic; the blocking form of AsyncProducer."""

    def __init__(self, portal: Portal, twin: AsyncProducer[V]) -> None:
        super().__init__(portal)
        self._twin = twin
        self._outbox: deque[_Item] = deque()
        self._emptying = False
        self._turn = asyncio.Lock()

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
    def is_connected(self) -> bool:
        """Whether every segment in use has a connection."""
        return self._twin.is_connected

    @property
    def bucket_fills(self) -> dict[tuple[int, int], BucketFill]:
        """How full the batches were, by segment and bucket, of the segments in use (PIP-486)."""
        return self._twin.bucket_fills

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
        """Publish one message and return its id when the broker has stored it."""
        self._portal.check("Producer.send")
        return self.enqueue(
            value,
            key=key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_after=deliver_after,
            deliver_at=deliver_at,
        ).result()

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
        data, extras = self._twin.preparing.one(
            value, key, properties, event_time, sequence_id, deliver_after, deliver_at
        )
        outcome: SendOutcome[MessageId] = SendOutcome()
        self._put("enqueue", (outcome, (data, key, extras, sequence_id)))
        return outcome

    def send_many(self, values: Sequence[V], keys: Sequence[str | bytes | None] | None = None) -> None:
        """Publish many messages, in order, and return when all are stored; raises the first failure."""
        self._portal.check("Producer.send_many")
        self.enqueue_many(values, keys).result()

    def enqueue_many(
        self, values: Sequence[V], keys: Sequence[str | bytes | None] | None = None
    ) -> SendOutcome[None]:
        """Give many messages their place in the order and return one future for all of them."""
        datas = self._twin.preparing.many(values, keys)
        outcome: SendOutcome[None] = SendOutcome()
        self._put("enqueue_many", (outcome, datas, keys))
        return outcome

    def flush(self, timeout: Seconds | None = None) -> None:
        """Send all batches and wait for every message enqueued before; raises failures not yet retrieved.

        Raises OperationTimeoutError if messages are still pending after `timeout`.
        """
        self._run("flush", lambda: self._flush(timeout))

    def close(self, timeout: Seconds | None = None) -> None:
        """Complete accepted messages, then disconnect; messages not stored within `timeout` fail."""
        self._run("close", lambda: self._close(timeout))

    async def _flush(self, timeout: Seconds | None) -> None:
        await self._empty_outbox()
        await self._twin.flush(timeout)

    async def _close(self, timeout: Seconds | None) -> None:
        await self._empty_outbox()
        await self._twin.close(timeout)

    def _put(self, method: str, item: _Item) -> None:
        loop = self._portal.check(f"Producer.{method}")
        self._twin.check_open()
        if len(self._outbox) >= QUEUED_SENDS_MAX or not self._twin.options.block_if_full:
            self._run(method, self._empty_outbox)
        self._outbox.append(item)
        if not self._emptying:
            self._emptying = True
            loop.call_soon_threadsafe(self._start_emptying)

    def _start_emptying(self) -> None:
        self._twin.tasks.start(self._empty_outbox(), f"outbox of {self._twin.name}")

    async def _empty_outbox(self) -> None:
        outbox = self._outbox
        async with self._turn:
            while outbox:
                if len(outbox[0]) == 2:
                    await self._send_singles()
                else:
                    await self._send_list(*outbox.popleft())
            # A caller that saw the flag still set relies on this check for its message.
            self._emptying = False
            if outbox:
                self._emptying = True
                self._start_emptying()

    async def _send_singles(self) -> None:
        outbox = self._outbox
        rows: list[Prepared] = []
        outcomes: list[SendOutcome[Any]] = []
        while outbox and len(outbox[0]) == 2 and len(rows) < TAKEN_MAX:
            outcome, row = cast(tuple[SendOutcome[Any], Prepared], outbox.popleft())
            outcomes.append(outcome)
            rows.append(row)
        try:
            await self._twin.enqueue_prepared(rows, outcomes)
        except Exception as error:
            for outcome in outcomes:
                # Messages that the twin accepted before the error keep their own outcome.
                outcome.fail(error)

    async def _send_list(self, outcome: SendOutcome[None], datas: Any, keys: Any) -> None:
        try:
            sent = await self._twin.enqueue_many_prepared(datas, keys)
        except Exception as error:
            outcome.fail(error)
        else:
            sent.add_done_callback(outcome.settle_list)


class SendOutcome(Future[R]):
    """A future of concurrent.futures that marks a failure as seen when a caller retrieves it."""

    def __init__(self) -> None:
        super().__init__()
        self._bulk: BulkFuture | None = None
        self._batch: Outgoing | None = None
        self._index = 0

    def settle(self, batch: Outgoing, index: int) -> None:
        """Take the outcome of a single message."""
        self._batch, self._index = batch, index
        self._finish(batch.error)

    def settle_list(self, bulk: BulkFuture) -> None:
        """Take the outcome of a list of messages."""
        self._bulk = bulk
        self._finish(bulk.peek())

    def fail(self, error: Exception) -> None:
        """Take the error that kept the twin from accepting the message."""
        if self._batch is None and not self.done():
            self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        if self.set_running_or_notify_cancel():
            if error is None:
                # `result` makes the id of a single message.
                self.set_result(cast(R, None))
            else:
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the outcome; raises the error of a failed message, or TimeoutError."""
        try:
            result = super().result(timeout)
        finally:
            self._mark_seen()
        return result if self._batch is None else cast(R, message_id(self._batch, self._index))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; returns the error of a failed message, None for a stored one."""
        try:
            return super().exception(timeout)
        finally:
            self._mark_seen()

    def _mark_seen(self) -> None:
        if self.done():
            if self._batch is not None:
                self._batch.seen = True
            if self._bulk is not None:
                self._bulk.mark_seen()


_Item = tuple[SendOutcome[Any], Prepared] | tuple[SendOutcome[Any], Any, Any]
"""A future with one prepared message, or with a list of values and a list of keys."""
