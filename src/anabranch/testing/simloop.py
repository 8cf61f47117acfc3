"""An asyncio loop whose clock jumps, and the simulated processes that run on it.

Nothing here waits, starts a thread or opens a socket: when every task waits, virtual time jumps to the next
timer; when there is no timer either, nothing can ever happen again and that is an error. Callbacks keep
asyncio's first-in first-out order, so what differs between seeds is only the latency drawn for each input and
output. It must not know what runs on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import random
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, cast

if TYPE_CHECKING:
    from anabranch.testing.network import SimNetwork, SimServer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CLOSES_MAX = 50

EVENTS_PER_INSTANT_MAX = 200_000
"""Callbacks run without time moving; more than this is a task that spins."""


class SimulationError(AssertionError):
    """The simulated program cannot go on."""


class DeadlockError(SimulationError):
    """Every task waits and no timer is set."""


class VirtualTimeoutError(SimulationError):
    """The simulation did not end within its virtual time."""


class State(Enum):
    """What becomes of a process's callbacks: run, wait, or never run."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


PROCESS: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("process", default=None)
"""The simulated process that the running code belongs to; None is the test itself, which never dies."""


def current_process() -> SimProcess | None:
    """The process of the running callback."""
    return PROCESS.get()


class SimProcess:
    """One simulated operating-system process: what `spawn` starts, and all that it starts in turn.

    A kill is not a cancellation: no `finally` and no `except` runs, the callbacks are just never called.
    What the world does about a death (connections break, caches are lost) is told to `on_death`.
    """

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.state = State.RUNNING
        self.machine_lost = False
        self.on_death: list[Callable[[], None]] = []
        self._parked: list[asyncio.Handle] = []
        # A suspended coroutine that is collected runs its `finally` blocks; what waits is kept to prevent it.
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
        """End the process between two callbacks; the callback that is running now is its last.

        With `machine` the power of its host fails: peers are not told, and what no fsync made durable may go.
        """
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
        """SIGSTOP: callbacks wait, sockets keep filling, time goes on."""
        if self.state is State.RUNNING:
            self.loop.note(f"pause {self.name}")
            self.state = State.PAUSED

    def resume(self) -> None:
        """SIGCONT: what had become due while paused runs now, in the order it became due."""
        if self.state is State.PAUSED:
            self.loop.note(f"resume {self.name}")
            self.state = State.RUNNING
            for handle in self._parked:
                self.loop.ready_again(handle)
            self._parked.clear()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Count a task as part of this process."""
        _keep(task, self._tasks)
        if self.state is State.DEAD:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def unfinished(self) -> list[str]:
        """Return a description of each task and timer of this process that is still pending."""
        tasks = [f"task {task.get_name()}" for task in self._tasks if not task.done()]
        return tasks + [f"timer {timer!r}" for timer in self.loop.timers_of(self)]

    def withhold(self, handle: asyncio.Handle) -> None:
        """Keep a callback of a paused process for later; drop that of a dead one."""
        if self.state is State.PAUSED:
            self._parked.append(handle)

    def bury(self) -> None:
        """Free the memory of the dead, when the simulation is over and nothing they do counts any more."""
        tasks = [task for task in self._tasks if not task.done()]
        self._tasks.clear()
        self.state = State.DEAD
        _close_tasks(tasks)


def _keep(task: asyncio.Task[Any], tasks: set[asyncio.Task[Any]]) -> None:
    """Hold a task until it is done, whenever garbage is collected."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _close_tasks(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        coroutine = cast("CoroutineType[Any, Any, Any]", task.get_coro())
        # A `finally` that waits survives being closed once, and would complain when it is collected.
        for _ in range(CLOSES_MAX):
            with contextlib.suppress(BaseException):
                coroutine.close()
            if coroutine.cr_frame is None:
                break


class _SimHandle(asyncio.Handle):
    __slots__ = ("_process",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(callback, args, loop, context)
        self._process: SimProcess | None = PROCESS.get() if context is None else context.get(PROCESS)

    def _run(self) -> None:
        process = self._process
        if process is None or process.state is State.RUNNING:
            super()._run()
        else:
            process.withhold(self)


class _SimTimerHandle(asyncio.TimerHandle):
    __slots__ = ("process",)

    _scheduled: bool

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.process: SimProcess | None = PROCESS.get() if context is None else context.get(PROCESS)

    def _run(self) -> None:
        process = self.process
        if process is None or process.state is State.RUNNING:
            super()._run()
        else:
            process.withhold(self)


class _VirtualSelector:
    """In place of the operating system: waiting costs nothing, it only moves the clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        self._loop.advance(timeout)
        return []

    def close(self) -> None:
        return None


class SimLoop(asyncio.BaseEventLoop):
    """Virtual time from one seed; `run` drives a coroutine to its end."""

    # Kept by the base class; it hands each handle in them to `_run`.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int | str = 0, *, keep_trace: bool = False) -> None:
        super().__init__()
        self.seed = seed
        self.network: SimNetwork | None = None
        self.processes: list[SimProcess] = []
        self.errors: list[str] = []
        self.trace: list[str] | None = [] if keep_trace else None
        self.digest = 0
        self._now = 0.0
        self._limit = float("inf")
        self._instant_events = 0
        self._task_count = 0
        self._orphans: set[asyncio.Task[Any]] = set()
        self._world = contextvars.copy_context()
        self._selector = _VirtualSelector(self)
        self._clock_resolution = 1e-9
        self.set_exception_handler(type(self)._note_error)

    def random(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose, so that one more draw here changes nothing elsewhere."""
        return random.Random(f"{self.seed}/{purpose}")

    def note(self, text: str) -> None:
        """Add an event to the trace; two runs of one seed must give the same digest."""
        line = f"{self._now:.9f} {text}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        if self.trace is not None:
            self.trace.append(line)

    def run(self, main: Coroutine[Any, Any, T], *, limit_s: float = 3600.0) -> T:
        """Run to the end of `main`, within `limit_s` of virtual time."""
        self._limit = self._now + limit_s
        return self.run_until_complete(main)

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self._now

    def advance(self, timeout: float | None) -> None:
        """Move the clock to the next timer; `timeout` is how far that is, None that there is none."""
        if timeout is None:
            raise DeadlockError(f"every task waits and no timer is set:\n{self._describe_tasks()}")
        if timeout > 0:
            self._now += timeout
            self._instant_events = 0
            if self._now > self._limit:
                raise VirtualTimeoutError(f"not done after {self._now:.3f} s:\n{self._describe_tasks()}")
        else:
            self._instant_events += len(self._ready)
            if self._instant_events > EVENTS_PER_INSTANT_MAX:
                raise SimulationError(f"time stands still at {self._now:.9f}:\n{self._describe_tasks()}")

    def _process_events(self, event_list: list[object]) -> None:
        return None

    def _write_to_self(self) -> None:
        return None

    def _call_soon(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> asyncio.Handle:
        handle = _SimHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _SimTimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        self._task_count += 1
        # asyncio numbers tasks over all loops of the interpreter, which would differ from run to run.
        task = asyncio.Task(
            cast("Coroutine[Any, Any, T]", coro),
            loop=self,
            name=str(name) if name is not None else f"task-{self._task_count}",
            context=context,
            **options,
        )
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            _keep(task, self._orphans)
        else:
            process.adopt(task)
        return task

    def outside(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call something as the world, not as the process that happens to be running."""
        return self._world.copy().run(call, *args)

    def timers_of(self, process: SimProcess) -> list[asyncio.TimerHandle]:
        """Return the timers of a process that are set."""
        return [
            timer
            for timer in self._scheduled
            if isinstance(timer, _SimTimerHandle) and timer.process is process and not timer.cancelled()
        ]

    def ready_again(self, handle: asyncio.Handle) -> None:
        """Queue a callback that was withheld."""
        self._ready.append(handle)

    def run_in_executor(self, *_args: Any, **_options: Any) -> NoReturn:  # type: ignore[override]
        raise SimulationError("a simulated program must not use threads; put the call behind a port")

    async def create_connection(self, *args: Any, **options: Any) -> tuple[Any, Any]:
        return await self._required_network().connect(*args, **options)

    async def create_server(self, *args: Any, **options: Any) -> SimServer:  # type: ignore[override]
        return self._required_network().listen(*args, **options)

    def _required_network(self) -> SimNetwork:
        if self.network is None:
            raise SimulationError("this loop has no network; make a SimNetwork on it first")
        return self.network

    def close(self) -> None:
        """Drop everything that is left, quietly; the outcome has been judged before."""
        if self.is_closed():
            return
        # Cleaning up, the dead must find this loop, or asyncio makes them one that nobody closes.
        asyncio._set_running_loop(self)
        try:
            for process in self.processes:
                process.bury()
            for _ in range(CLOSES_MAX):
                # Closing may have begun more tasks; those are the dead's too.
                left = [task for task in self._orphans if not task.done()]
                self._orphans.clear()
                _close_tasks(left)
        finally:
            asyncio._set_running_loop(None)
        super().close()

    def __enter__(self) -> SimLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def _note_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        assert isinstance(loop, SimLoop)
        error = context.get("exception")
        text = (
            f"{context.get('message', '')}: {type(error).__name__}: {error}" if error else context["message"]
        )
        process = PROCESS.get()
        loop.errors.append(f"[{process.name if process else 'test'}] {text}")
        loop.note(f"error {text}")

    def _describe_tasks(self) -> str:
        lines = []
        for process in [None, *self.processes]:
            tasks = self._orphans if process is None else process._tasks
            if process is not None and not process.alive:
                continue
            lines += sorted(
                f"  {process.name if process else 'test'}: {task.get_name()} in {_where(task)}"
                for task in tasks
                if not task.done()
            )
        return "\n".join(lines[:60])


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    if not frames:
        return "?"
    frame = frames[-1]
    return f"{frame.f_code.co_qualname} line {frame.f_lineno}"
