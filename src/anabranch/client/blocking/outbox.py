"""Messages on their way from callers' threads to the loop's thread, and their outcomes on the way back.

A caller appends to the outbox without crossing threads; one task of the loop empties it. Each message that is
taken from the outbox has an outcome in the end, also if the producer is closed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from anabranch.client.blocking.portal import Portal
from anabranch.client.decide.batcher import Outgoing
from anabranch.client.net.closing import Deadline
from anabranch.client.produce.futures import BulkFuture, follow, message_id
from anabranch.client.produce.preparing import Prepared
from anabranch.client.produce.producer import AsyncProducer
from anabranch.errors import AlreadyClosedError

R = TypeVar("R")

TAKEN_MAX = 256
"""Messages that the loop's thread takes from the outbox before other tasks of the loop run."""


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

    def fail(self, error: BaseException) -> None:
        """Take the error that kept the twin from accepting the message."""
        if not isinstance(error, Exception):
            error = AlreadyClosedError("the producer was closed before the message was sent")
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


Item = tuple[SendOutcome[Any], Prepared] | tuple[SendOutcome[Any], Any, Any]
"""A future with one prepared message, or with a list of values and a list of keys."""


class Outbox:
    """The messages of one blocking producer that its twin has not accepted yet."""

    def __init__(self, portal: Portal, twin: AsyncProducer[Any]) -> None:
        self._portal = portal
        self._twin = twin
        self.items: deque[Item] = deque()
        self._emptying = False
        self._task: asyncio.Task[None] | None = None

    def put(self, item: Item) -> None:
        """Add a message, from any thread."""
        self.items.append(item)
        if not self._emptying:
            self._emptying = True
            self._portal.call_soon(self._start)
        if self._twin.closed:
            # The task that empties the outbox may have ended before it could see this message.
            self._fail_rest()

    async def emptied(self, deadline: Deadline) -> bool:
        """Return when the twin has taken all messages; False at the deadline."""
        while self.items or (self._task is not None and not self._task.done()):
            if self._task is None or self._task.done():
                self._start()
            assert self._task is not None
            if not await deadline.allow(asyncio.wait([self._task])):
                return False
        return True

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._twin.tasks.start(self._empty(), f"outbox of {self._twin.name}")

    async def _empty(self) -> None:
        items = self.items
        try:
            while items:
                if len(items[0]) == 2:
                    await self._send_singles()
                else:
                    await self._send_list(*items.popleft())
                if not items:
                    # A caller that saw the flag still set relies on the next look at the outbox.
                    self._emptying = False
                    self._emptying = bool(items)
        except asyncio.CancelledError:
            self._fail_rest()
            raise

    async def _send_singles(self) -> None:
        items, twin = self.items, self._twin
        for _ in range(TAKEN_MAX):
            if not items or len(items[0]) != 2:
                break
            outcome, row = cast(tuple[SendOutcome[Any], Prepared], items.popleft())
            try:
                if twin.memory.full or twin.closed:
                    await twin.admit()
                placed = twin.add_numbered(row)
            except BaseException as error:
                outcome.fail(error)
                if not isinstance(error, Exception):
                    raise
            else:
                follow(*placed, outcome)
        # Batches may have been closed; let the loop send them.
        await asyncio.sleep(0)

    async def _send_list(self, outcome: SendOutcome[None], datas: Any, keys: Any) -> None:
        try:
            sent = await self._twin.enqueue_many_prepared(datas, keys)
        except BaseException as error:
            outcome.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            sent.add_done_callback(outcome.settle_list)

    def _fail_rest(self) -> None:
        error = AlreadyClosedError("the producer was closed before the message was sent")
        while self.items:
            try:
                outcome = self.items.popleft()[0]
            except IndexError:
                return
            outcome.fail(error)
