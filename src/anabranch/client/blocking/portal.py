"""The thread that runs the event loop of a blocking client, and calls from other threads into that loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Self, TypeVar

from anabranch.aio import new_event_loop
from anabranch.client.options import Seconds, log
from anabranch.errors import AlreadyClosedError, InvalidConfigurationError, OperationTimeoutError

R = TypeVar("R")

END_S = 2.0
"""Longest time for cancelled tasks to end."""

_forks = 0
"""How often this process has been forked since it was started."""


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Portal:
    """One event loop on a thread of its own; the first call starts the thread."""

    def __init__(self) -> None:
        self._forks = _forks
        # The garbage collector may close another client while this thread holds the lock.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def started(self) -> bool:
        """Whether the thread was started in this process."""
        return self._thread is not None and self._forks == _forks

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._stopped:
                raise AlreadyClosedError("the client is closed")
            if self._loop is None:
                loop = new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(loop,), name="anabranch client", daemon=True
                )
                self._thread.start()
                self._loop = loop
            return self._loop

    def check(self, name: str) -> asyncio.AbstractEventLoop:
        """The thread's loop; raises when a callback in that thread calls, which would wait for itself.

        Callers may have a loop of their own, as notebooks do; the call stops that loop until it returns.
        """
        running = asyncio._get_running_loop()
        if running is not None and running is self._loop:
            raise InvalidConfigurationError(
                f"{name} was called by a callback in the thread of the client, and would wait for itself; "
                f"call it in another thread, or await Async{name}"
            )
        # Asking for the process id would be a system call for each message.
        if self._forks != _forks:
            raise InvalidConfigurationError("this client was made before a fork; make one in the new process")
        return self._loop or self._start()

    def run(self, name: str, work: Callable[[], Coroutine[Any, Any, R]], limit_s: float | None = None) -> R:
        """Run a coroutine in the loop's thread and wait for it; an interrupt of the caller cancels it.

        After `limit_s` the call raises OperationTimeoutError, because a callback keeps the thread busy.
        """
        self.check(name)
        future = self._submit(work)
        try:
            return future.result(limit_s)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise OperationTimeoutError(f"{name}: a callback of the application keeps the thread") from None
        except CancelledError:
            raise AlreadyClosedError("the client was closed") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, name: str, function: Callable[[], R]) -> R:
        """Call a function in the loop's thread and wait for its result; cheaper than `run`."""
        self.check(name)
        outcome: Future[R] = Future()

        def call() -> None:
            # A caller that was interrupted before has taken nothing.
            if outcome.set_running_or_notify_cancel():
                try:
                    outcome.set_result(function())
                except BaseException as error:
                    outcome.set_exception(error)

        if not self.call_soon(call):
            raise AlreadyClosedError("the client is closed")
        try:
            return outcome.result()
        finally:
            outcome.cancel()

    def _submit(self, work: Callable[[], Coroutine[Any, Any, R]]) -> Future[R]:
        with self._lock:
            # After `stop` no task of the loop would run.
            if self._stopped or self._loop is None:
                raise AlreadyClosedError("the client is closed")
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def call_soon(self, call: Callable[[], object]) -> bool:
        """Call a function in the loop's thread, without waiting; False if the loop has ended."""
        with self._lock:
            if self._stopped or self._loop is None:
                return False
            self._loop.call_soon_threadsafe(call)
            return True

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> threading.Thread | None:
        """Cancel all calls, after `last` is done, and end the thread, which is returned; does not wait."""
        with self._lock:
            first, self._stopped = not self._stopped, True
            if first and self._loop is not None and self.started:
                asyncio.run_coroutine_threadsafe(_end(last), self._loop)
            return self._thread


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
            break
        except (SystemExit, KeyboardInterrupt) as error:
            # A loop hands these two errors of callbacks to its thread. The callers of a task get them too, if
            # the loop runs on.
            log.warning("%r in the thread of the client; the client goes on", error)
    loop.close()


async def _end(last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    """End the loop that runs this, and its other tasks."""
    loop = asyncio.get_running_loop()
    try:
        if last is not None:
            await last()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=END_S)
    finally:
        loop.stop()


class Handle:
    """A blocking client, producer or consumer: calls run in the portal's thread."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self.opened_by: object = None
        """The client that opened this object; it stays open as long as the application uses the object."""

    def _run(self, method: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return self._portal.run(f"{type(self).__name__}.{method}", work)

    def _call(self, method: str, function: Callable[[], R]) -> R:
        return self._portal.call(f"{type(self).__name__}.{method}", function)

    def __repr__(self) -> str:
        twin = vars(self).get("_twin")
        return repr(twin).replace(type(twin).__name__, type(self).__name__, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self, timeout: Seconds | None = None) -> None:
        """Close the object within `timeout`; a second call does nothing."""
        raise NotImplementedError
