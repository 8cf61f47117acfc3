"""The wall clock as a port; the event loop provides monotonic time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Wall time for display, retention and stamps; never for leases or timeouts."""

    def wall_ms(self) -> int:
        """Return the milliseconds since the epoch."""


class SystemClock:
    """The machine's clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def moment(time_ms: int) -> datetime:
    """Return the instant, or the latest one that Python knows."""
    try:
        return _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
