"""The thread that runs the event loop of a blocking client, and calls from other threads into that loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from anabranch.aio import new_event_loop
from anabranch.client.options import Seconds
from anabranch.errors import InvalidConfigurationError

R = TypeVar("R")

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
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="anabranch client", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def check(self, name: str) -> asyncio.AbstractEventLoop:
        """The thread's loop; raises when the caller runs on a loop, which a blocking call would stop."""
        if asyncio._get_running_loop() is not None:
            raise InvalidConfigurationError(
                f"{name} would block the running event loop; await Async{name} instead"
            )
        # Asking for the process id would be a system call for each message.
        if self._forks != _forks:
            raise InvalidConfigurationError("this client was made before a fork; make one in the new process")
        return self._loop or self._start()

    def run(self, name: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine in the loop's thread and wait for it; an interrupt of the caller cancels it."""
        loop = self.check(name)
        future = asyncio.run_coroutine_threadsafe(work(), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class Handle:
    """A blocking client, producer or consumer: calls run in the portal's thread."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def _run(self, method: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return self._portal.run(f"{type(self).__name__}.{method}", work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self, timeout: Seconds | None = None) -> None:
        """Close the object within `timeout`; a second call does nothing."""
        raise NotImplementedError
