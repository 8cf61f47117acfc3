"""Wakes a subscription at the wall time at which its next entry may be delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from anabranch.clock import Clock

SLEEP_S_MAX: Final = 3600.0
"""So that a stepped wall clock is noticed."""


class WakeTimer:
    """One timer, which a later time replaces."""

    __slots__ = ("_clock", "_timer")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def set(self, wall_ms: int | None, wake: Callable[[], None]) -> None:
        """Call `wake` then, in an hour at most; None leaves the timer as it is."""
        if wall_ms is not None:
            self.cancel()
            delay = min(max(wall_ms - self._clock.wall_ms(), 1) / 1000, SLEEP_S_MAX)
            self._timer = asyncio.get_running_loop().call_later(delay, wake)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
