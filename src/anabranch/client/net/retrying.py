"""The background tasks of one handle: kept alive, named, ended with it, and never failing in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from anabranch.client.options import Backoff
from anabranch.errors import AnabranchError, OperationTimeoutError

log = logging.getLogger("anabranch.client")

T = TypeVar("T")


class Tasks:
    """Tasks that end with their owner."""

    def __init__(self) -> None:
        # A dict, because a set has no order and a simulated run must be repeatable.
        self._running: dict[asyncio.Task[Any], None] = {}

    def start(
        self, work: Coroutine[Any, Any, object], name: str, *, awaited: bool = False
    ) -> asyncio.Task[Any]:
        """Run `work` in the background; an error it lets out is logged, unless somebody awaits the task."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended_awaited if awaited else self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %s failed", task.get_name(), exc_info=error)

    def _ended_awaited(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled():
            # Those who waited may all have been cancelled; that is no reason for a warning.
            task.exception()

    async def cancel(self) -> None:
        """End all tasks and wait until they are gone; the caller's own task is left alone."""
        current = asyncio.current_task()
        ending = [task for task in self._running if task is not current]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.gather(*ending, return_exceptions=True)


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later: a refused connection, a restart, a full queue."""
    return isinstance(error, AnabranchError) and error.retryable


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    what: str,
    within_s: float,
    backoff: Backoff,
    rng: Random,
    transient: Callable[[BaseException], bool] = is_transient,
) -> T:
    """Call until it succeeds, fails for good, or the time is over; then the last error is the cause."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    failures = 0
    while True:
        left = deadline - loop.time()
        try:
            async with asyncio.timeout(max(left, 0)):
                return await attempt()
        except TimeoutError as error:
            if isinstance(error, AnabranchError) and not isinstance(error, OperationTimeoutError):
                raise
            last: Exception = error
        except AnabranchError as error:
            if not transient(error):
                raise
            last = error
        delay = backoff.delay(failures, rng)
        failures += 1
        if loop.time() + delay >= deadline:
            if isinstance(last, AnabranchError):
                raise last
            raise OperationTimeoutError(f"{what} was not done within {within_s:g} s") from last
        await asyncio.sleep(delay)


def is_bare_timeout(error: BaseException) -> bool:
    """Whether a time limit of ours ran out, rather than a call that says itself what it waited for."""
    return isinstance(error, TimeoutError) and not isinstance(error, AnabranchError)
