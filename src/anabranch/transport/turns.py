"""Turns: long work is cut into slices that queue here, so that the work of other clients runs in between.

A connection with little to read is read at once. A connection that has more than its slice waits for its
turn, and so does a subscription that has more than one batch. Only a few turns are taken before the event
loop looks after all other connections again, so a thousand busy clients hardly delay one with little to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

TURNS_AT_ONCE: Final = 2
"""Turns taken in one iteration of the event loop."""

SLICE_COMMANDS: Final = 64
"""About how many commands of one connection are handled in one turn."""

LIGHT_COMMANDS: Final = 8
"""A read of more commands makes its connection wait for a turn while others wait."""

REQUEST_COMMANDS: Final = 8
"""A command that starts a task counts as this many."""

SLICE_BYTES_FIRST: Final = 2**10
SLICE_BYTES_MIN: Final = 2**9
SLICE_BYTES_MAX: Final = 256 * 2**10


class Turns:
    """A queue of actions that wait for their turn, first come first served."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def later(self, action: Callable[[], None]) -> None:
        """Call `action` when it is its turn."""
        self._waiting.append(action)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._waiting:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        self._scheduled = False
        try:
            for _ in range(min(TURNS_AT_ONCE, len(self._waiting))):
                self._waiting.popleft()()
        finally:
            self._schedule()


def next_slice(slice_bytes: int, read_bytes: int, commands: int) -> int:
    """Return the bytes to read next, after a read of `read_bytes` held this many commands."""
    if commands > SLICE_COMMANDS:
        return max(SLICE_BYTES_MIN, read_bytes * SLICE_COMMANDS // commands)
    if read_bytes == slice_bytes and 2 * commands <= SLICE_COMMANDS:
        return min(SLICE_BYTES_MAX, 2 * slice_bytes)
    return slice_bytes
