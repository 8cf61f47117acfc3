"""Segment storage that behaves worse than memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.ledger.memory import MemoryStorage


class SlowStorage(MemoryStorage):
    """Memory whose commits take as long as those of a disk."""

    COMMIT_S = 0.05

    def queue(self, applied: Callable[[], None]) -> None:
        if not self._queue and not self._waiters:
            asyncio.get_running_loop().call_later(self.COMMIT_S, self._commit)
        self._queue.append(applied)
