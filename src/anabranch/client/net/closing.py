"""Deadlines of calls, and the closing of clients, producers and consumers within them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from anabranch.errors import OperationTimeoutError, UnreachableError

FAREWELL_S = 5.0
"""Longest wait for the answer of a broker that a producer or consumer leaves."""


class Deadline:
    """A moment by which the waits of one call end, one after the other; it can be brought forward."""

    def __init__(self, within_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + within_s
        self._limits: dict[asyncio.Timeout, None] = {}

    @property
    def left_s(self) -> float:
        return max(self._at - self._loop.time(), 0.0)

    def bring_forward(self, within_s: float) -> None:
        """End the waits within this time from now, unless they end sooner anyway."""
        at = self._loop.time() + within_s
        if at < self._at:
            self._at = at
            for limit in self._limits:
                when = limit.when()
                if not limit.expired() and (when is None or when > at):
                    limit.reschedule(at)

    async def allow(self, work: Awaitable[object], most_s: float = math.inf) -> bool:
        """Do `work` until the deadline, or for `most_s`; return whether it was done in time.

        A caller that is cancelled brings the deadline forward to this moment, so that its clean-up does not
        wait.
        """
        at = min(self._at, self._loop.time() + most_s)
        limit = asyncio.timeout_at(None if at == math.inf else at)
        try:
            async with limit:
                self._limits[limit] = None
                try:
                    await work
                finally:
                    del self._limits[limit]
            return True
        except TimeoutError:
            if not limit.expired():
                raise
            return False
        except asyncio.CancelledError:
            self.bring_forward(0.0)
            raise


CloseBy = Callable[[Deadline], Awaitable[None]]
"""Completes what a producer or consumer has to do until a deadline, then ends it."""


async def close_all(closes: Iterable[CloseBy], deadline: Deadline) -> None:
    """Close producers or consumers side by side."""
    await asyncio.gather(*(close_by(deadline) for close_by in closes))


class Closing:
    """Closes an object once; a later caller waits for the same work, and may bring its deadline forward."""

    def __init__(self) -> None:
        self._deadline: Deadline | None = None
        self._ended = asyncio.Event()

    async def run(self, deadline: Deadline, work: Callable[[Deadline], Awaitable[None]]) -> None:
        """Do `work`, which ends by the deadline, or wait until it has ended."""
        if self._deadline is not None:
            self._deadline.bring_forward(deadline.left_s)
            await self._ended.wait()
            return
        self._deadline = deadline
        try:
            await work(deadline)
        finally:
            self._ended.set()


def took_too_long(what: str, limit_s: float, problem: Exception | None) -> OperationTimeoutError:
    """Return the error of a call that ran into its timeout; `problem` is the last error of an attempt."""
    kind = UnreachableError if isinstance(problem, ConnectionError) else OperationTimeoutError
    why = "its broker did not answer" if problem is None else str(problem)
    return kind(f"{what} was not done within {limit_s:g} s: {why}")


async def farewell(answers: Iterable[asyncio.Future[Any] | None], deadline: Deadline | None = None) -> None:
    """Wait for the answers of brokers that the caller leaves; without an answer the caller leaves as well."""
    waiting = [answer for answer in answers if answer is not None]
    # A coroutine that is destroyed belongs to no task any more and can wait for nothing.
    if not waiting or asyncio.current_task() is None:
        return
    try:
        await (deadline or Deadline(FAREWELL_S)).allow(asyncio.wait(waiting), FAREWELL_S)
    finally:
        for answer in waiting:
            answer.cancel()
