"""The wall clock as a port; the event loop provides monotonic time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for display, retention and stamps; never for leases or timeouts."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""


class SystemClock:
    """The machine's clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
