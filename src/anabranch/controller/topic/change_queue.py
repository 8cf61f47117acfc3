"""The single queue of a topic's changes, and the runner that finishes earlier changes before each new one.

Changes never overlap: a split that planned its children while another one reserved ids would work on a layout
that no longer exists. Cancelling a caller does not cancel its change once it has begun, because half a split
leaves a key range that accepts no messages. This module does not know what a change does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from anabranch.controller.decide.after_change import NextStep, after_failure
from anabranch.controller.topic.leadership import Happened, Leadership, Notify
from anabranch.errors import (
    NotLeaderError,
    StaleTermError,
    TooManyRequestsError,
    TopicNotFoundError,
    in_words,
)

T = TypeVar("T")

Change = Callable[[], Awaitable[T]]


@dataclass(slots=True)
class _Waiting(Generic[T]):
    change: Change[T]
    answer: asyncio.Future[T] | None = None
    orphaned: Callable[[T], None] | None = None
    key: object = None


class ChangeQueue:
    """Runs changes in the order of their arrival. `limit` bounds the changes that callers wait for.

    A broker may lead many idle topics, so a queue without changes has no task.
    """

    def __init__(self, limit: int, name: str) -> None:
        self.closed = False
        self._limit = limit
        self._name = name
        self._deleted = False
        self._waiting: list[_Waiting[Any]] = []
        self._posted: set[object] = set()
        """The keys of posted changes that have not begun."""
        self._started = False
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        """Run the changes that wait, and all later ones."""
        self._started = True
        self._serve_soon()

    async def run(self, change: Change[T], *, orphaned: Callable[[T], None] | None = None) -> T:
        """Run `change` in turn; `orphaned` gets the result if the caller was cancelled in the meantime."""
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
        """Run `change` in turn, unless one with the same key is waiting. The change must not raise."""
        if not self.closed and key not in self._posted:
            self._posted.add(key)
            self._push(_Waiting(change, key=key))

    async def stop(self) -> None:
        """Cancel the running change. Waiting callers get NotLeaderError."""
        self.close()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            # The traceback of a cancelled task refers to this object, which would create a reference cycle.
            self._task = None

    def close(self, *, deleted: bool = False) -> None:
        """Refuse waiting and later changes.

        They get NotLeaderError, or TopicNotFoundError if the topic was deleted.
        """
        if not self.closed:
            self.closed, self._deleted = True, deleted
        while self._waiting:
            self._refuse(self._waiting.pop(0))

    def _refusal(self) -> Exception:
        if self._deleted:
            return TopicNotFoundError(f"{self._name} was deleted")
        return NotLeaderError(f"{self._name} is not led here any more")

    def _refuse(self, waiting: _Waiting[Any]) -> None:
        if waiting.answer is not None and not waiting.answer.done():
            waiting.answer.set_exception(self._refusal())

    def _push(self, waiting: _Waiting[Any]) -> None:
        self._waiting.append(waiting)
        self._serve_soon()

    def _serve_soon(self) -> None:
        if self._started and self._waiting and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve(), name=f"changes {self._name}")

    async def _serve(self) -> None:
        while self._waiting:
            waiting = self._waiting.pop(0)
            if waiting.answer is None:
                self._posted.discard(waiting.key)
                await waiting.change()
            elif not waiting.answer.cancelled():
                await self._answer(waiting, waiting.answer)
        self._task = None

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


class Settling(Protocol):
    """Brings the topic into a finished state. Both steps may be repeated."""

    @property
    def unfinished(self) -> bool:
        """Whether a recorded change is not finished."""

    async def read_again(self) -> None:
        """Read all records, after a write whose outcome is unknown."""

    async def finish(self) -> bool:
        """Finish earlier changes and let all parts follow the layout. Returns False if some cannot yet."""


class ChangeRunner:
    """Runs the changes of the topic that `lead` leads."""

    def __init__(self, lead: Leadership, settling: Settling, notify: Notify) -> None:
        self.troubles: dict[str, str] = {}
        """The last errors of settling and of changes without a caller."""
        self._lead = lead
        self._settling = settling
        self._notify = notify
        self.queue = ChangeQueue(lead.context.settings.waiting_changes_max, str(lead.name))
        self._must_read = False
        self._delays_s = lead.context.delays_s()
        self._retry_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Finish the changes of earlier leaders, now or later. Raises if this broker no longer leads."""
        self.queue.start()
        try:
            await self.settled()
        except Exception as error:
            if self.queue.closed:
                raise
            self.troubles["settle"] = in_words(error)

    async def stop(self) -> None:
        """Cancel the running change. Waiting callers get NotLeaderError."""
        await self.queue.stop()
        if self._retry_timer is not None:
            self._retry_timer.cancel()

    async def run(
        self, change: Change[T], *, settle: bool = True, orphaned: Callable[[T], None] | None = None
    ) -> T:
        """Run `change` in turn, as `ChangeQueue.run` does. With `settle`, finish earlier changes first."""
        try:
            return await self.queue.run(lambda: self._run(change, settle), orphaned=orphaned)
        except StaleTermError as error:
            raise NotLeaderError(f"another broker leads {self._lead.name} now") from error

    def post(self, change: Change[None], key: object) -> None:
        """Run `change` in turn, without a caller, unless one with the same key is waiting."""

        async def in_background() -> None:
            try:
                await self._run(change, settle=True)
                self.troubles.pop("background", None)
            except Exception as error:
                self.troubles["background"] = in_words(error)

        self.queue.post(in_background, key)

    async def settled(self) -> None:
        """Return once no earlier change is unfinished. Raises the error that prevents it."""
        await self.run(_no_change)

    async def _run(self, change: Change[T], settle: bool) -> T:
        if settle:
            await self._settle()
        try:
            result = await change()
        except Exception as error:
            self._take(after_failure(error, unfinished=self._settling.unfinished))
            raise
        if settle:
            # The change is committed, so its caller gets the result. Failed consequences are retried later.
            try:
                await self._settle()
            except Exception as error:
                self.troubles["settle"] = in_words(error)
        return result

    async def _settle(self) -> None:
        try:
            if self._must_read:
                await self._settling.read_again()
                self._must_read = False
            complete = await self._settling.finish()
        except Exception as error:
            self._take(after_failure(error, unfinished=True))
            raise
        if complete:
            self._delays_s = self._lead.context.delays_s()
            self.troubles.pop("settle", None)
        else:
            self._retry_later()

    def _take(self, step: NextStep) -> None:
        match step:
            case NextStep.CONTINUE:
                return
            case NextStep.READ_AGAIN:
                self._must_read = True
                self._retry_later()
            case NextStep.STEP_DOWN | NextStep.TOPIC_GONE:
                self.queue.close(deleted=step is NextStep.TOPIC_GONE)
                self._notify(Happened.LEADERSHIP_LOST)

    def _retry_later(self) -> None:
        if self._retry_timer is None and not self.queue.closed:
            self._retry_timer = asyncio.get_running_loop().call_later(next(self._delays_s), self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self.post(_no_change, _no_change)


async def _no_change() -> None:
    return None
