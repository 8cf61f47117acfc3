"""A timer that may be set again for an earlier time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """Calls `ring` once at the earliest time it was set to.

    It keeps the time itself, because a timer of uvloop that is already due cannot tell it.
    """

    __slots__ = ("_loop", "_ring", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self.at = math.inf
        """When the alarm rings; infinite while it is not set."""

    def set(self, at: float) -> None:
        """Ring at this time of the loop, or at an earlier one set before; never if it is infinite."""
        if at < self.at:
            self.cancel()
            self.at = at
            self._timer = self._loop.call_at(at, self._go_off)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.at = math.inf

    def _go_off(self) -> None:
        self._timer = None
        self.at = math.inf
        self._ring()
