"""Doing things one after the other, or side by side.

A `JobQueue` is one task that does a topic's changes in turn. A caller that is cancelled does not cancel its
job: half a split helps nobody. Must not know what a job does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from anabranch.errors import NotLeaderError, TooManyRequestsError

T = TypeVar("T")


@dataclass(slots=True)
class _Job(Generic[T]):
    work: Callable[[], Awaitable[T]]
    answer: asyncio.Future[T] | None
    orphaned: Callable[[T], None] | None = None
    key: object = None


class JobQueue:
    """Runs jobs in the order they came; `limit` bounds those that callers wait for."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._jobs: deque[_Job[Any]] = deque()
        self._posted: set[object] = set()
        """The keys of what was posted and waits."""
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._refusal: Callable[[], Exception] | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def closed(self) -> bool:
        return self._refusal is not None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._serve(), name=f"jobs {self._name}")

    async def run(
        self, work: Callable[[], Awaitable[T]], *, orphaned: Callable[[T], None] | None = None
    ) -> T:
        """Do `work` in turn and return its result.

        If the caller is gone when the result is there, `orphaned` gets it instead.
        """
        if self._refusal is not None:
            raise self._refusal()
        waiting = len(self._jobs) - len(self._posted)
        if waiting >= self._limit:
            raise TooManyRequestsError(f"{waiting} changes of {self._name} wait already")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._push(_Job(work, answer, orphaned))
        return await answer

    def post(self, work: Callable[[], Awaitable[None]], key: object) -> None:
        """Do `work` in turn, unless something of the same key waits; it must deal with its own failures."""
        if self._refusal is None and key not in self._posted:
            self._posted.add(key)
            self._push(_Job(work, None, key=key))

    async def stop(self) -> None:
        """Cancel the running job; those that wait are told to look for another leader."""
        self.close()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def close(self, refusal: Callable[[], Exception] | None = None) -> None:
        """Take no more jobs, and refuse those that wait, with this error if it is given."""
        if self._refusal is None:
            self._refusal = refusal or self._not_led
        while self._jobs:
            self._refuse(self._jobs.popleft())

    def _not_led(self) -> Exception:
        return NotLeaderError(f"{self._name} is not led here any more")

    def _refuse(self, job: _Job[Any]) -> None:
        if job.answer is not None and not job.answer.done():
            job.answer.set_exception((self._refusal or self._not_led)())

    def _push(self, job: _Job[Any]) -> None:
        self._jobs.append(job)
        self._arrived.set()

    async def _serve(self) -> None:
        while True:
            while not self._jobs:
                self._arrived.clear()
                await self._arrived.wait()
            job = self._jobs.popleft()
            if job.answer is None:
                self._posted.discard(job.key)
            elif job.answer.cancelled():
                continue
            try:
                result = await job.work()
            except asyncio.CancelledError:
                self._refuse(job)
                raise
            except Exception as error:
                if job.answer is None:
                    raise
                if not job.answer.done():
                    job.answer.set_exception(error)
            else:
                _answer(job, result)


def _answer(job: _Job[T], result: T) -> None:
    if job.answer is None:
        return
    if not job.answer.done():
        job.answer.set_result(result)
    elif job.orphaned is not None:
        job.orphaned(result)
