"""Asyncio helpers without domain knowledge: tasks, shared attempts, keyed locks, backoff, retries, loops."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count, islice
from random import Random
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakMethod

from anabranch.arguments import check_number, refused
from anabranch.errors import AnabranchError, InvalidConfigurationError, OperationTimeoutError

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")

_logger = logging.getLogger(__name__)


class TaskRegistry:
    """Independent background tasks of one owner; each runs until it is done or the owner calls `stop`."""

    def __init__(self) -> None:
        # A dict, because a set has no order and a simulated run must be repeatable.
        self._running: dict[asyncio.Task[Any], None] = {}
        self._stopped = False

    def __len__(self) -> int:
        return len(self._running)

    def start(
        self, work: Coroutine[Any, Any, object], name: str | None = None, *, awaited: bool = False
    ) -> asyncio.Task[Any]:
        """Run `work` and return its task; its error is logged unless the caller awaits the task."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended_awaited if awaited else self._ended)
        return task

    def spawn(
        self,
        work: Coroutine[Any, Any, None],
        name: str | None = None,
        *,
        inner: Coroutine[Any, Any, None] | None = None,
    ) -> None:
        """Run `work` without returning a task; after `stop` the registry closes `work` without running it.

        `inner` is a coroutine that `work` awaits; the registry closes it if `work` ends before awaiting it.
        """
        if self._stopped:
            work.close()
            if inner is not None:
                inner.close()
            return
        task = self.start(work, name)
        if inner is not None:
            task.add_done_callback(lambda _: inner.close())

    async def stop(self) -> None:
        """Cancel all tasks except the caller's own and wait until they have ended."""
        self._stopped = True
        current = asyncio.current_task()
        ending = [task for task in self._running if task is not current]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.gather(*ending, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("background task %s failed", task.get_name(), exc_info=error)

    def _ended_awaited(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        mark_retrieved(task)


def weakly(method: Callable[P, None]) -> Callable[P, None]:
    """Call a bound method as long as its object lives, without keeping the object alive.

    An object and its parts that call it back would be a reference cycle, which only garbage collection frees.
    """
    found = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        alive = found()
        if alive is not None:
            alive(*args, **kwargs)

    return call


def mark_retrieved(done: asyncio.Future[Any]) -> None:
    """Mark the exception of a future as retrieved; the callers that waited have already received it."""
    if not done.cancelled():
        done.exception()


class SharedAttempts(Generic[K, T]):
    """At most one attempt per key at a time, shared by all callers; a cancelled caller leaves it running."""

    def __init__(self) -> None:
        self._running: dict[K, asyncio.Task[T]] = {}

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._running))

    async def join(self, key: K, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the attempt for `key`, started if none runs; raises AttemptCancelled."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(attempt(), name=f"attempt {key}")
            task.add_done_callback(lambda done: self._ended(key, done))
            self._running[key] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise AttemptCancelled from None
            raise

    def cancel(self, key: K) -> None:
        """Cancel the attempt for `key`; the next caller starts a new one."""
        task = self._running.pop(key, None)
        if task is not None:
            task.cancel()

    async def stop(self, keys: Iterable[K] | None = None) -> None:
        """Cancel the attempts for `keys`, all by default, and wait until they have ended."""
        tasks = [self._running[key] for key in (self if keys is None else keys)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, key: K, task: asyncio.Task[T]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
        mark_retrieved(task)


class AttemptCancelled(Exception):  # noqa: N818 - a signal between helper and caller, translated by the caller
    """The shared attempt was cancelled, not the caller."""


class KeyedLocks:
    """One lock per key, kept only while a task holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[object, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def held(self, key: object) -> AsyncIterator[None]:
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = lock, users - 1


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls concurrently; the first failure cancels the other calls and is raised unchanged.

    A TaskGroup that is cancelled while a call fails reports only the failure, and the task that cancelled it
    would wait for ever.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(call) for call in calls]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failures = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for failure in failures:
        if failure is not None:
            raise failure
    return [task.result() for task in tasks]


async def in_slices(items: Iterable[T], size: int) -> AsyncIterator[T]:
    """Yield the items one by one.

    Other tasks run after every `size` items, so that long work stalls no client.
    """
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)


async def in_batches(calls: Iterable[Coroutine[Any, Any, object]], size: int) -> None:
    """Run the calls like `together`, at most `size` at a time; a failure starts no further batch."""
    left = iter(calls)
    while batch := list(islice(left, size)):
        await together(batch)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow from `initial` seconds, by `multiplier`, to `maximum`. Example: `Backoff(0.5, 60.0)`"""

    initial: float = 0.1
    maximum: float = 60.0
    multiplier: float = 2.0
    jitter: float = 0.1
    """Each wait varies by up to this fraction, so that clients do not all come back at the same moment."""

    def __post_init__(self) -> None:
        for name, least in (("initial", 0), ("maximum", 0), ("multiplier", 1), ("jitter", 0)):
            check_number(f"{name} of a backoff", getattr(self, name), least=least)
        if not 0 < self.initial <= self.maximum or not math.isfinite(self.maximum):
            shown = f"{self.initial} and {self.maximum}"
            raise InvalidConfigurationError(f"a backoff needs 0 < initial <= maximum, not {shown}")
        if self.jitter > 1:
            raise refused("jitter of a backoff", "a number of at most 1", self.jitter)

    def delay(self, attempt: int, rng: Random | None = None) -> float:
        """Return the seconds to wait after failure number `attempt`, counted from 0.

        No `rng` means no jitter.
        """
        # The exponent is bounded so that a client that fails for days does not overflow a float.
        grown = min(self.initial * self.multiplier ** min(attempt, 64), self.maximum)
        return grown if rng is None else grown * (1 + self.jitter * (rng.random() - 0.5))

    def delays(self, rng: Random | None = None) -> Iterator[float]:
        """Yield the waits after the first, second, third... failure, without end."""
        return (self.delay(attempt, rng) for attempt in count())


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed later: a refused connection, a restart, a full queue."""
    return isinstance(error, AnabranchError) and error.retryable


def is_bare_timeout(error: BaseException) -> bool:
    """Return whether `asyncio.timeout` expired, rather than a call that reports its own timeout."""
    return isinstance(error, TimeoutError) and not isinstance(error, AnabranchError)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    what: str,
    within_s: float,
    backoff: Backoff,
    rng: Random,
    transient: Callable[[BaseException], bool] = is_transient,
) -> T:
    """Call `attempt` until it succeeds or fails for good; after `within_s` raise the last error."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    failures = 0
    problem = ""
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
        # The last attempt may simply have run out of time; an earlier error names the problem.
        problem = f": {last}" if isinstance(last, AnabranchError) else problem
        delay = backoff.delay(failures, rng)
        failures += 1
        if loop.time() + delay >= deadline:
            if isinstance(last, AnabranchError):
                raise last
            raise OperationTimeoutError(f"{what} was not done within {within_s:g} s{problem}") from last
        await asyncio.sleep(delay)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop event loop where uvloop is installed, else the standard one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
