"""Futures of sent messages, which cost next to nothing until a caller uses them.

A message's future only remembers its batch and its index there, so storing a batch completes a thousand
futures at once. asyncio accepts them like its own. Cancelling a future stops the waiting, not the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from contextvars import Context, copy_context
from typing import Any, Generic, Protocol, TypeVar

from anabranch.client.decide.producing.outgoing import FAILED, MOVED, OPEN, STORED, Outgoing, Places
from anabranch.model.ids import MessageId
from anabranch.speedups import SendPlace

R = TypeVar("R")

Waiter = tuple[Any, Callable[..., object], Context]
"""A future, and a callback to call in a context when the future is done."""


class OutcomeFuture(Generic[R]):
    """The protocol of asyncio's futures, for the outcome of one message or of many."""

    __slots__ = ()

    # Slots or attributes of the subclasses.
    _asyncio_future_blocking: bool
    _cancelled: bool
    _loop: asyncio.AbstractEventLoop

    def done(self) -> bool:
        """Return whether every message is stored or has failed, or the future was cancelled."""
        raise NotImplementedError

    def cancelled(self) -> bool:
        return self._cancelled

    def result(self) -> R:
        """Return the outcome; raises the first failure, or InvalidStateError while a message is pending."""
        raise NotImplementedError

    def exception(self) -> Exception | None:
        """Return the first failure; None when every message is stored."""
        error = self.peek()
        if error is not None:
            self.mark_seen()
        return error

    def peek(self) -> Exception | None:
        """As `exception`, without marking the error as seen."""
        raise NotImplementedError

    def mark_seen(self) -> None:
        """Note that the caller knows the outcome, so that a flush does not raise it."""
        raise NotImplementedError

    def add_done_callback(self, callback: Callable[..., object], *, context: Context | None = None) -> None:
        """Call back from the loop when done; in the loop's next turn if that is the case already."""
        context = context or copy_context()
        if self.done():
            self._loop.call_soon(callback, self, context=context)
        else:
            self._waiters().append((self, callback, context))

    def remove_done_callback(self, callback: Callable[..., object]) -> int:
        """Forget a callback; return how often it was registered."""
        return 0 if self.done() else len(self._take_waiters(callback))

    def cancel(self, msg: Any = None) -> bool:
        """Stop waiting; the messages are sent all the same."""
        if self.done():
            return False
        self._cancelled = True  # type: ignore[misc]
        _notify(self._take_waiters())
        return True

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def __await__(self) -> Generator[Any, None, R]:
        if not self.done():
            self._asyncio_future_blocking = True  # type: ignore[misc]
            yield self
        return self.result()

    __iter__ = __await__

    def _take_waiters(self, callback: Callable[..., object] | None = None) -> list[Waiter]:
        """Remove and return the waiters of this future: those with `callback`, or all."""
        waiters = self._waiters()
        taken = [one for one in waiters if one[0] is self and callback in (None, one[1])]
        for one in taken:
            waiters.remove(one)
        return taken

    def _waiters(self) -> list[Waiter]:
        """Return the list of callbacks to call when the future is done."""
        raise NotImplementedError


class SendFuture(OutcomeFuture[MessageId], SendPlace):
    """The outcome of one message: a MessageId once it is stored."""

    __slots__ = ()
    _batch: Outgoing

    def done(self) -> bool:
        return self._cancelled or self._settled().state != OPEN

    def result(self) -> MessageId:
        error = self.exception()
        if error is not None:
            raise error
        return message_id(self._settled(), self._index)

    def peek(self) -> Exception | None:
        if self._cancelled:
            raise asyncio.CancelledError
        batch = self._settled()
        if batch.state == OPEN:
            raise asyncio.InvalidStateError("the message is still pending; await its future")
        return batch.error

    def mark_seen(self) -> None:
        self._settled().seen = True

    def _waiters(self) -> list[Waiter]:
        if self._batch.waiters is None:
            self._batch.waiters = []
        return self._batch.waiters

    def follow(self, waiter: Waiter) -> None:
        """Let a waiter of this future, whose message has moved, wait for the batch that took it over."""
        assert self._batch.moved is not None
        self._batch, self._index = self._batch.moved.of(self._index)
        if self._batch.state == OPEN:
            self._waiters().append(waiter)
        else:
            self.add_done_callback(waiter[1], context=waiter[2])

    def _settled(self) -> Outgoing:
        """Return the batch that holds the message now; a message moves when its segment is sealed."""
        batch = self._batch
        while batch.moved is not None:
            self._batch, self._index = batch.moved.of(self._index)
            batch = self._batch
        return batch


class BulkFuture(OutcomeFuture[None]):
    """The outcome of many messages."""

    # asyncio recognises a future by this attribute of its class.
    _asyncio_future_blocking = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.after = -1
        """The messages that are being added to open batches have higher sequence ids than this."""
        self._cancelled = False
        self._pending = 1
        self._failed: list[Outgoing] = []
        self._waiting: list[Waiter] = []

    def join(self, batch: Outgoing) -> None:
        """Wait for this batch too."""
        if batch.trackers is None:
            batch.trackers = []
        elif batch.trackers and batch.trackers[-1] is self:
            return
        batch.trackers.append(self)
        self._pending += 1

    def arm(self) -> None:
        """Note that no more batches will join; until then the future is not done."""
        self._pending -= 1
        if not self._pending:
            _notify(self._take_waiters())

    @property
    def has_failed(self) -> bool:
        """Whether a message has failed; others may still be pending."""
        return bool(self._failed)

    def finished(self, batch: Outgoing) -> None:
        """Take the outcome of a batch; if its messages moved, their new batches have joined before."""
        if batch.state == FAILED:
            self._failed.append(batch)
        self.arm()

    def done(self) -> bool:
        return self._cancelled or not self._pending

    def result(self) -> None:
        error = self.exception()
        if error is not None:
            raise error

    def peek(self) -> Exception | None:
        if self._cancelled:
            raise asyncio.CancelledError
        if self._pending:
            raise asyncio.InvalidStateError("messages are still pending; await their future")
        return self._failed[0].error if self._failed else None

    def mark_seen(self) -> None:
        for batch in self._failed:
            batch.seen = True

    def _waiters(self) -> list[Waiter]:
        return self._waiting


class OutcomeListener(Protocol):
    """A holder of one message, notified of the message's outcome."""

    def settle(self, batch: Outgoing, index: int) -> None:
        """Take the outcome of message `index` of a batch that is stored or has failed."""

    def fail(self, error: BaseException) -> None:
        """Take the error that kept the message from being added."""


class Follower:
    """Notifies the listeners of single messages in a batch; cheaper than a future for each."""

    def __init__(self) -> None:
        self.followed: list[tuple[int, OutcomeListener]] = []

    def join(self, batch: Outgoing) -> None:
        """Messages that move are followed one by one, in `finished`."""

    def finished(self, batch: Outgoing) -> None:
        """Notify the listeners, or follow the messages to the batches that took them over."""
        for index, listener in self.followed:
            if batch.moved is not None:
                follow(*batch.moved.of(index), listener)
            else:
                listener.settle(batch, index)


def follow(batch: Outgoing, index: int, listener: OutcomeListener) -> None:
    """Notify `listener` of the outcome of a message, at once if the batch has it already."""
    if batch.state in (STORED, FAILED):
        listener.settle(batch, index)
        return
    if batch.trackers is None:
        batch.trackers = []
    if not batch.trackers or type(batch.trackers[-1]) is not Follower:
        batch.trackers.append(Follower())
    batch.trackers[-1].followed.append((index, listener))


def message_id(batch: Outgoing, index: int) -> MessageId:
    """Return the id of a message in a stored batch."""
    segment, ledger, entry = batch.place
    if batch.batched:
        return MessageId(segment, ledger, entry, index, batch.count)
    return MessageId(segment, ledger, entry)


def complete(batch: Outgoing) -> None:
    """Notify the waiting futures of a batch that is stored or has failed."""
    waiters, batch.waiters = batch.waiters, None
    _notify(waiters or ())
    trackers, batch.trackers = batch.trackers, None
    for tracker in trackers or ():
        tracker.finished(batch)


def move(batch: Outgoing, places: Places) -> None:
    """Let the waiting futures of a batch wait for the batches that took its messages over."""
    batch.state = MOVED
    batch.moved = places
    for tracker in batch.trackers or ():
        for successor in dict.fromkeys(places.batches):
            tracker.join(successor)
        tracker.finished(batch)
    batch.trackers = None
    waiters, batch.waiters = batch.waiters, None
    for waiter in waiters or ():
        waiter[0].follow(waiter)


def _notify(waiters: Iterable[Waiter]) -> None:
    for future, callback, context in waiters:
        future.get_loop().call_soon(callback, future, context=context)
