"""An asyncio loop whose clock jumps.

The loop never sleeps, starts a thread or opens a socket: when every task waits, virtual time jumps to the
next timer; without a timer the program is stuck, which is an error. Callbacks keep asyncio's first-in
first-out order, so seeds differ only in the latency drawn for each input and output. Must not know what runs
on it.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, cast

from simulation.world.process import CLOSES_MAX, PROCESS, SimProcess, State, close_tasks, keep_task

if TYPE_CHECKING:
    from simulation.world.network import SimNetwork, SimServer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EVENTS_PER_INSTANT_MAX = 200_000
"""Most callbacks at one instant; more indicate a task that spins."""


class SimulationError(AssertionError):
    """The simulated program cannot go on."""


class DeadlockError(SimulationError):
    """Every task waits and no timer is set."""


class VirtualTimeoutError(SimulationError):
    """The simulation did not end within its virtual time."""


class _SimHandle(asyncio.Handle):
    """A callback that runs only while the process of its context does."""

    __slots__ = ()

    _context: contextvars.Context
    _loop: SimLoop

    def _run(self) -> None:
        process = self._context.get(PROCESS)
        if process is None or process.state is State.RUNNING:
            loop = self._loop
            if loop.on_step is None:
                super()._run()
            else:
                loop.on_step(process, super()._run)
        else:
            process.withhold(self)


class _SimTimerHandle(_SimHandle, asyncio.TimerHandle):
    __slots__ = ()

    _scheduled: bool


class _VirtualSelector:
    """Replaces the operating system's selector: waiting only moves the clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        self._loop.advance(timeout)
        return []

    def close(self) -> None:
        return None


class SimLoop(asyncio.BaseEventLoop):
    """Virtual time from one seed; `run` drives a coroutine to its end."""

    # Declared for type checkers; the base class fills them.
    _ready: deque[asyncio.Handle]
    _scheduled: list[_SimTimerHandle]

    def __init__(self, seed: int | str = 0) -> None:
        super().__init__()
        self.seed = seed
        self.network: SimNetwork | None = None
        self.processes: list[SimProcess] = []
        self.errors: list[str] = []
        self.trace: list[str] | None = None
        self.digest = 0
        self.on_step: Callable[[SimProcess | None, Callable[[], None]], None] | None = None
        """Runs each callback of the loop and of its processes; a test measures the callbacks by it."""
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
        """Return a generator for one purpose, so that another draw for it changes no other purpose."""
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

    def time(self) -> float:
        return self._now

    def advance(self, timeout: float | None) -> None:
        """Move the clock by `timeout` seconds, to the next timer; None means that there is no timer."""
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
        # asyncio numbers tasks over all loops of the interpreter, so its names differ between runs.
        task = asyncio.Task(
            cast("Coroutine[Any, Any, T]", coro),
            loop=self,
            name=str(name) if name is not None else f"task-{self._task_count}",
            context=context,
            **options,
        )
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            keep_task(task, self._orphans)
        else:
            process.adopt(task)
        return task

    def outside(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function outside of the running process."""
        return self._world.copy().run(call, *args)

    def timers_of(self, process: SimProcess) -> list[asyncio.TimerHandle]:
        """Return the timers of a process that are set."""
        own = (timer for timer in self._scheduled if timer._context.get(PROCESS) is process)
        return [timer for timer in own if not timer.cancelled()]

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
        """Close all remaining tasks without warnings."""
        if self.is_closed():
            return
        # Coroutines that are closed may ask for the running loop; without one asyncio would make a new one.
        asyncio._set_running_loop(self)
        try:
            for process in self.processes:
                process.free()
            for _ in range(CLOSES_MAX):
                # Closing a task may start more tasks.
                left = [task for task in self._orphans if not task.done()]
                self._orphans.clear()
                close_tasks(left)
        finally:
            asyncio._set_running_loop(None)
        super().close()

    def __enter__(self) -> SimLoop:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @staticmethod
    def _note_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        assert isinstance(loop, SimLoop)
        error = context.get("exception")
        text = context["message"] + (f": {type(error).__name__}: {error}" if error else "")
        process = PROCESS.get()
        loop.errors.append(f"[{process.name if process else 'test'}] {text}")
        loop.note(f"error {text}")

    def _describe_tasks(self) -> str:
        owned = [("test", self._orphans)]
        owned += [(process.name, process._tasks) for process in self.processes if process.alive]
        lines = []
        for owner, tasks in owned:
            waiting = [task for task in tasks if not task.done()]
            lines += sorted(f"  {owner}: {task.get_name()} in {_where(task)}" for task in waiting)
        return "\n".join(lines[:60])


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    return f"{frames[-1].f_code.co_qualname} line {frames[-1].f_lineno}" if frames else "?"


def run_to_end(loop: SimLoop, work: Coroutine[Any, Any, None], found: list[str], limit_s: float) -> list[str]:
    """Run `work` within this virtual time; return `found` with every error of the loop in words."""
    with loop:
        try:
            loop.run(work, limit_s=limit_s)
        except SimulationError as error:
            found.append(f"{type(error).__name__}: {error}")
        found += loop.errors
    return found
