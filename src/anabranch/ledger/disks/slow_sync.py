"""Measures the syncs of a store, and reports a disk that takes seconds for one."""

from __future__ import annotations

import asyncio
import logging

_log = logging.getLogger(__name__)

SLOW_S = 1.0
WARN_AGAIN_S = 60.0


class SyncWatch:
    """The sync that a journal waits for."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._warned_s = float("-inf")

    @property
    def slow(self) -> str | None:
        """How long the present sync takes already, in words; None while it is not slow."""
        if self._began_s is None:
            return None
        taken_s = asyncio.get_running_loop().time() - self._began_s
        return f"the disk has not finished a sync for {taken_s:.1f} s" if taken_s >= SLOW_S else None

    def began(self, now_s: float) -> None:
        self._began_s = now_s

    def ended(self, now_s: float) -> float:
        """Return the seconds of the sync that began last; warn of a slow one, once a minute at most."""
        assert self._began_s is not None
        taken_s = now_s - self._began_s
        self._began_s = None
        if taken_s >= SLOW_S and now_s >= self._warned_s + WARN_AGAIN_S:
            self._warned_s = now_s
            _log.warning("the disk took %.1f s for a sync; publishing waits for it", taken_s)
        return taken_s
