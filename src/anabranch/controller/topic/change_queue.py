"""The one queue of a topic's changes: a task that runs them one after the other.

A cancelled caller does not cancel its change once it has begun: half a split is worse than a whole one. Must
not know what a change does, nor what follows from its failure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from anabranch.errors import NotLeaderError, TooManyRequestsError, TopicNotFoundError

T = TypeVar("T")

Change = Callable[[], Awaitable[T]]


@dataclass(slots=True)
class _Waiting(Generic[T]):
    change: Change[T]
    answer: asyncio.Future[T] | None = None
    orphaned: Callable[[T], None] | None = None
    key: object = None


class ChangeQueue:
    """Runs changes in the order of their arrival; `limit` bounds those that callers wait for."""

    def __init__(self, limit: int, name: str) -> None:
        self.closed = False
        self._limit = limit
        self._name = name
        self._deleted = False
        self._waiting: deque[_Waiting[Any]] = deque()
        self._posted: set[object] = set()
        """The keys of posted changes that have not begun."""
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._serve(), name=f"changes {self._name}")

    async def run(self, change: Change[T], *, orphaned: Callable[[T], None] | None = None) -> T:
        """Run `change` in turn; `orphaned` gets the result if the caller was cancelled meanwhile."""
        if self.closed:
            raise self._refusal()
        waiting = len(self._waiting) - len(self._posted)
        if waiting >= self._limit:
            raise TooManyRequestsError(f"{waiting} changes of {self._name} wait already")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._push(_Waiting(change, answer, orphaned))
        try:
            return await answer
        except asyncio.CancelledError:
            # The caller may be cancelled between the end of the change and its own turn.
            ended = answer.done() and not answer.cancelled()
            if orphaned is not None and ended and answer.exception() is None:
                orphaned(answer.result())
            raise

    def post(self, change: Change[None], key: object) -> None:
        """Run `change` in turn unless one with the same key waits; the change must not raise."""
        if not self.closed and key not in self._posted:
            self._posted.add(key)
            self._push(_Waiting(change, key=key))

    async def stop(self) -> None:
        """Cancel the running change; waiting callers get NotLeaderError."""
        self.close()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def close(self, *, deleted: bool = False) -> None:
        """Refuse waiting and later changes with NotLeaderError, or TopicNotFoundError of a deleted topic."""
        if not self.closed:
            self.closed, self._deleted = True, deleted
        while self._waiting:
            self._refuse(self._waiting.popleft())

    def _refusal(self) -> Exception:
        if self._deleted:
            return TopicNotFoundError(f"{self._name} was deleted")
        return NotLeaderError(f"{self._name} is not led here any more")

    def _refuse(self, waiting: _Waiting[Any]) -> None:
        if waiting.answer is not None and not waiting.answer.done():
            waiting.answer.set_exception(self._refusal())

    def _push(self, waiting: _Waiting[Any]) -> None:
        self._waiting.append(waiting)
        self._arrived.set()

    async def _serve(self) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            waiting = self._waiting.popleft()
            if waiting.answer is None:
                self._posted.discard(waiting.key)
                await waiting.change()
            elif not waiting.answer.cancelled():
                await self._answer(waiting, waiting.answer)

    async def _answer(self, waiting: _Waiting[T], answer: asyncio.Future[T]) -> None:
        try:
            result = await waiting.change()
        except asyncio.CancelledError:
            self._refuse(waiting)
            raise
        except Exception as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)
            elif waiting.orphaned is not None:
                waiting.orphaned(result)
