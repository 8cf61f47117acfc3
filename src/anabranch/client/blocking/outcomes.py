"""Futures of concurrent.futures that cost little until a caller waits for them.

A program sends far more messages than it waits for. So a future only remembers the batch of its message and
the message's index there, and follows from them whether there is an outcome. It makes its lock, its lists of
callbacks and of waiters when the first caller needs one of them, and asks the loop's thread then to be told.

A future is not a subclass of `Future`, because the garbage collector would visit each of a million kept
futures again and again; it has the methods of one, and says that it is one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from anabranch.client.decide.producing.outgoing import FAILED, STORED, Outgoing
from anabranch.client.produce.futures import BulkFuture, follow, message_id
from anabranch.errors import AlreadyClosedError

R = TypeVar("R")

_PENDING, _CANCELLED, _FINISHED = "PENDING", "CANCELLED", "FINISHED"
_making = threading.Lock()
"""Held while a future makes its watch."""


class OutcomeWatch:
    """The parts of a future that only waiting callers need."""

    __slots__ = ("callbacks", "condition", "waiters")

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.callbacks: list[Callable[[Any], object]] = []
        self.waiters: list[Any] = []


class OutcomeFields(msgspec.Struct, Generic[R], eq=False, gc=False):
    """The state of a future."""

    _ask: Callable[[Any], object] | None = None
    """Asks the loop's thread to settle this future when its message has an outcome."""
    _batch: Outgoing | None = None
    """The batch that took the message first; None before."""
    _index: int = 0
    _bulk: BulkFuture | None = None
    """The outcome of a list."""
    _error: BaseException | None = None
    _ended_as: str | None = None
    _watch: OutcomeWatch | None = None


if TYPE_CHECKING:

    class FutureFields(OutcomeFields[R], Future[R]):
        """A future for type checkers."""

        def __init__(self, _ask: Callable[[Any], object] | None = None) -> None: ...
else:
    FutureFields = OutcomeFields


class SendOutcome(FutureFields[R]):
    """The outcome of one message or of a list; marks a failure as seen when a caller retrieves it."""

    if not TYPE_CHECKING:
        # The functions of concurrent.futures and of asyncio ask for the class of a future.
        __class__ = property(lambda self: Future)
        __repr__ = Future.__repr__
        _invoke_callbacks = Future._invoke_callbacks
        add_done_callback = Future.add_done_callback
        cancel = Future.cancel
        cancelled = Future.cancelled
        running = Future.running
        set_running_or_notify_cancel = Future.set_running_or_notify_cancel

    # Called in the loop's thread.

    def put(self, batch: Outgoing, index: int) -> None:
        """Take the place of the message in the first batch that holds it."""
        self._index = index
        self._batch = batch
        # A caller that begins to wait after this look finds the batch, and asks for its outcome itself.
        if self._watch is not None:
            follow(batch, index, self)

    def settle(self, batch: Outgoing, index: int) -> None:
        """Take the outcome of a single message."""
        self._index = index
        self._batch = batch
        if self._watch is not None:
            self._notify()

    def settle_list(self, bulk: BulkFuture) -> None:
        """Take the outcome of a list of messages."""
        self._error = bulk.peek()
        self._bulk = bulk
        if self._watch is not None:
            self._notify()

    def fail(self, error: BaseException) -> None:
        """Take the error that kept the twin from accepting the message."""
        if not isinstance(error, Exception):
            error = AlreadyClosedError("the producer was closed before the message was sent")
        self._error = error
        if self._watch is not None:
            self._notify()

    def _notify(self) -> None:
        """Wake callers; one that makes its watch after this look sees that the future is settled."""
        watch = self._made_watch()
        with watch.condition:
            if self._ended_as is not None:
                return
            self._ended_as = _FINISHED
            for waiter in watch.waiters:
                waiter.add_result(self) if self._exception is None else waiter.add_exception(self)
            watch.condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]
        # The collector does not see this future, so a callback that knows it would never be freed.
        watch.callbacks.clear()

    def placed(self) -> tuple[Outgoing, int] | None:
        """The batch that holds the message now, and the index there; None before the first batch."""
        batch, index = self._batch, self._index
        if batch is None:
            return None
        while batch.moved is not None:
            batch, index = batch.moved.of(index)
        return batch, index

    # The attributes that `Future`, `wait`, `as_completed` and `wrap_future` use.

    def _made_watch(self) -> OutcomeWatch:
        if self._watch is None:
            with _making:
                made = self._watch is None
                if made:
                    self._watch = OutcomeWatch()
            if made and self._ask is not None:
                self._ask(self)
        assert self._watch is not None
        return self._watch

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._made_watch().condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._made_watch().waiters

    @property
    def _done_callbacks(self) -> list[Callable[[Any], object]]:
        return self._made_watch().callbacks

    @property
    def _settled(self) -> bool:
        if self._error is not None or self._bulk is not None:
            return True
        found = self.placed()
        return found is not None and found[0].state in (STORED, FAILED)

    @property
    def _state(self) -> str:
        return self._ended_as or (_FINISHED if self._settled else _PENDING)

    @_state.setter
    def _state(self, state: str) -> None:
        self._ended_as = state

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        found = self.placed()
        return self._error if found is None else found[0].error

    @property
    def _result(self) -> R | None:  # type: ignore[override]
        found = self.placed()
        return None if found is None else cast(R, message_id(*found))

    # For callers.

    def done(self) -> bool:
        """Whether the message is stored or has failed, or the future was cancelled."""
        return self._ended_as is not None or self._settled

    def result(self, timeout: float | None = None) -> R:
        """Wait for the outcome; raises the error of a failed message, or TimeoutError."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return cast(R, self._result)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; returns the error of a failed message, None for a stored one."""
        # Most callers look at thousands of outcomes after a flush: none of them needs a watch.
        if self._ended_as == _CANCELLED or not self._settled:
            self._wait(timeout)
        if (found := self.placed()) is not None:
            found[0].seen = True
        if self._bulk is not None:
            self._bulk.mark_seen()
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        with self._condition:
            if not self.done():
                self._condition.wait(timeout)
            if self._ended_as == _CANCELLED:
                raise CancelledError
            if not self.done():
                raise TimeoutError
