"""Measures the syncs of a store, and reports a disk that takes seconds for one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

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

    async def measure(self, sync: Awaitable[None]) -> float:
        """Wait for a sync and return its seconds; warn of a slow one, once a minute at most."""
        loop = asyncio.get_running_loop()
        self._began_s = began_s = loop.time()
        try:
            await sync
        finally:
            self._began_s = None
        now_s = loop.time()
        if now_s - began_s >= SLOW_S and now_s >= self._warned_s + WARN_AGAIN_S:
            self._warned_s = now_s
            _log.warning("the disk took %.1f s for a sync; publishing waits for it", now_s - began_s)
        return now_s - began_s
