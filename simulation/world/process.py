"""One simulated operating-system process: its tasks, its pauses and its death.

Must not know what a process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine
from enum import Enum
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from simulation.world.loop import SimLoop

T = TypeVar("T")

CLOSES_MAX = 50


class State(Enum):
    """Whether the callbacks of a process run, wait, or never run."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


PROCESS: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("process", default=None)
"""The simulated process of the running code; None is the test itself, which never dies."""


class SimProcess:
    """The tasks that `spawn` starts, and all tasks that they start in turn.

    A kill is not a cancellation: no `finally` and no `except` runs; the callbacks are never called.
    Consequences of a death (connections break, caches are lost) are callbacks in `on_death`.
    """

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.state = State.RUNNING
        self.machine_lost = False
        self.on_death: list[Callable[[], None]] = []
        self._parked: list[asyncio.Handle] = []
        # Python runs the `finally` blocks of a collected coroutine, so suspended tasks are kept.
        self._tasks: set[asyncio.Task[Any]] = set()
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        loop.processes.append(self)

    @property
    def alive(self) -> bool:
        return self.state is not State.DEAD

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine inside this process."""
        return self.loop.create_task(coroutine, name=name, context=self.context.copy())

    def kill(self, *, machine: bool = False) -> None:
        """End the process after the running callback; with `machine` the power of its host fails too."""
        if self.state is State.DEAD:
            return
        self.loop.note(f"kill {self.name}{' with its machine' if machine else ''}")
        self.machine_lost = machine
        self.state = State.DEAD
        self._parked.clear()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for tell in self.on_death:
            tell()
        self.on_death.clear()

    def pause(self) -> None:
        """SIGSTOP: callbacks wait, sockets fill, time passes."""
        if self.state is State.RUNNING:
            self.loop.note(f"pause {self.name}")
            self.state = State.PAUSED

    def resume(self) -> None:
        """SIGCONT: callbacks that became due during the pause run now, in the order they became due."""
        if self.state is State.PAUSED:
            self.loop.note(f"resume {self.name}")
            self.state = State.RUNNING
            for handle in self._parked:
                self.loop.ready_again(handle)
            self._parked.clear()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Make a task part of this process."""
        keep_task(task, self._tasks)
        if self.state is State.DEAD:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def unfinished(self) -> list[str]:
        """Return a description of each task and timer of this process that is still pending."""
        tasks = [f"task {task.get_name()}" for task in self._tasks if not task.done()]
        return tasks + [f"timer {timer!r}" for timer in self.loop.timers_of(self)]

    def withhold(self, handle: asyncio.Handle) -> None:
        """Keep a callback of a paused process for later; drop a callback of a dead process."""
        if self.state is State.PAUSED:
            self._parked.append(handle)

    def free(self) -> None:
        """Close all tasks to free memory, after the simulation."""
        tasks = [task for task in self._tasks if not task.done()]
        self._tasks.clear()
        self.state = State.DEAD
        close_tasks(tasks)


def keep_task(task: asyncio.Task[Any], tasks: set[asyncio.Task[Any]]) -> None:
    """Hold a task until it is done, so that it is not collected before."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def close_tasks(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        coroutine = cast("CoroutineType[Any, Any, Any]", task.get_coro())
        # A `finally` that awaits survives one close and would warn when it is collected.
        for _ in range(CLOSES_MAX):
            with contextlib.suppress(BaseException):
                coroutine.close()
            if coroutine.cr_frame is None:
                break
