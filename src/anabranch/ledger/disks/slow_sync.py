"""Measures the syncs of a store, and reports a disk that takes seconds for a single sync."""

from __future__ import annotations

import asyncio
import logging

_log = logging.getLogger(__name__)

SLOW_S = 1.0
WARN_AGAIN_S = 60.0


class SyncWatch:
    """Times the sync that a journal is waiting for."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._warned_s = float("-inf")

    @property
    def slow(self) -> str | None:
        """Describe how long the current sync has been running, or return None if it is not slow."""
        if self._began_s is None:
            return None
        taken_s = asyncio.get_running_loop().time() - self._began_s
        return f"the disk has not finished a sync for {taken_s:.1f} s" if taken_s >= SLOW_S else None

    def began(self, now_s: float) -> None:
        self._began_s = now_s

    def ended(self, now_s: float) -> float:
        """Return the seconds that the last sync took. Logs a slow one at most once a minute."""
        assert self._began_s is not None
        taken_s = now_s - self._began_s
        self._began_s = None
        if taken_s >= SLOW_S and now_s >= self._warned_s + WARN_AGAIN_S:
            self._warned_s = now_s
            _log.warning("the disk took %.1f s for a sync; publishing waits for it", taken_s)
        return taken_s
