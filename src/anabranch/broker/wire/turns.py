"""The commands of one connection in order, a few milliseconds of work at a time.

A handler that has much to do returns a generator and yields after each slice. The connection is not read
meanwhile, its later commands wait, and other connections have their turn between two slices. Slices are
counted and not timed, so that a simulated run can be repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from typing import Final

from anabranch.aio import TaskRegistry
from anabranch.broker.serving.rates.rate_gates import RateGate
from anabranch.protocol.commands import Command
from anabranch.transport.pump import Pump

_log = logging.getLogger(__name__)

Slices = Generator[None, None, None]
"""The rest of a command's work; each step is one slice."""

COMMANDS_PER_TURN: Final = 500
"""Commands of one connection that are handled before others have their turn."""

REQUESTS_PER_TURN: Final = 20
"""Commands in one turn that are not quick; those that run as tasks all begin in the next one."""

STEPS_PER_TURN: Final = 50
"""Producers, consumers and watches of a lost connection that are released in one turn."""

PauseReason = Hashable
"""Entries wait for the disk ("publishes"), commands for others ("turns"), "stop", or the gate of a rate."""


class ReadingPauses:
    """The reasons for which a connection is not read; it is read again when none is left."""

    def __init__(self) -> None:
        self.pump: Pump | None = None
        self._reasons: set[PauseReason] = set()

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def add(self, reason: PauseReason) -> None:
        self._reasons.add(reason)
        if self.pump is not None:
            self.pump.pause_reading()

    def remove(self, reason: PauseReason) -> None:
        if reason in self._reasons:
            self._reasons.remove(reason)
            if not self._reasons and self.pump is not None:
                self.pump.resume_reading()

    def end(self, link: object) -> None:
        """Take this connection, which is gone, out of all gates."""
        for reason in self._reasons:
            if isinstance(reason, RateGate):
                reason.forget(link)


class CommandTurns:
    """Runs commands at once while they are few, and the rest in later turns of the event loop."""

    def __init__(
        self,
        run: Callable[[Iterable[Command]], Slices | None],
        pauses: ReadingPauses,
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._run = run
        """Handles commands in order; takes no further one after a command whose slices it returns."""
        self._pauses = pauses
        self._later = later
        """Calls a function when it is its turn among those of all connections."""
        self._waiting: deque[Command] = deque()
        self._slices: Slices | None = None
        self._scheduled = False
        self._held = False
        self._requests = 0
        self._closed = False

    def take(self, commands: Sequence[Command]) -> None:
        """Run the commands of one read, behind those that still wait."""
        if self._scheduled or len(commands) > COMMANDS_PER_TURN:
            self._waiting += commands
            if not self._scheduled:
                self._turn()
            return
        left = iter(commands)
        self._slices = self._run(left)
        if self._slices is not None:
            self._waiting += left
            self._schedule()

    def count_request(self) -> Slices | None:
        """Count a command that is not quick; slices without work if the later commands should wait."""
        self._requests += 1
        return _no_work() if self._requests % REQUESTS_PER_TURN == 0 else None

    def hold(self) -> Slices:
        """Let later commands wait until `go_on`; returns slices without work."""
        self._held = True
        return _no_work()

    def go_on(self, slices: Slices | None) -> None:
        """Run the later commands after `slices`, the rest of the command for which they waited."""
        self._held = False
        self._slices = slices
        if not self._closed:
            self._later(self._turn)

    def close(self) -> None:
        """Drop all commands that wait, because the connection is gone."""
        self._closed = True
        self._waiting.clear()

    def _schedule(self) -> None:
        self._pauses.add("turns")
        self._scheduled = True
        if not self._held:
            self._later(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        if self._slices is not None and not _is_done(self._slices):
            self._schedule()
            return
        self._slices = self._run(self._take_waiting())
        if self._slices is not None or self._waiting:
            self._schedule()
        else:
            self._pauses.remove("turns")

    def _take_waiting(self) -> Iterator[Command]:
        for _ in range(COMMANDS_PER_TURN):
            if not self._waiting:
                return
            yield self._waiting.popleft()


def run_in_turns(steps: Sequence[Callable[[], object]], tasks: TaskRegistry) -> None:
    """Take the first steps at once, and the rest of very many in later turns of the event loop.

    A step that fails is logged and does not stop the others.
    """
    for step in steps[:STEPS_PER_TURN]:
        _run_step(step)
    if len(steps) > STEPS_PER_TURN:
        tasks.spawn(_run_later(steps[STEPS_PER_TURN:]))


async def _run_later(steps: Sequence[Callable[[], object]]) -> None:
    for number, step in enumerate(steps):
        if number % STEPS_PER_TURN == 0:
            await asyncio.sleep(0)
        _run_step(step)


def _run_step(step: Callable[[], object]) -> None:
    try:
        step()
    except Exception:
        # Without the other steps, their producers and consumers would stay attached for good.
        _log.exception("a producer, consumer or watch of a lost connection could not be released")


def first_slice(slices: Slices) -> Slices | None:
    """Run the first slice. Returns the rest, or None if nothing is left."""
    return None if _is_done(slices) else slices


def _no_work() -> Slices:
    yield from ()


def _is_done(slices: Slices) -> bool:
    for _ in slices:
        return False
    return True
