"""Copies of entries that one commit makes durable in a side log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from anabranch.broker.serving.side_log import SideLog
from anabranch.ledger.storage import Entry

BATCH_ENTRIES = 2000
BATCH_BYTES = 4 * 2**20


class CopyBatch:
    """Queues copies, and waits until all of them are durable."""

    def __init__(self, timestamp_ms: int) -> None:
        self._timestamp_ms = timestamp_ms
        self._entries: list[Entry] = []
        self._places: list[int] = []
        self._error: BaseException | None = None
        self._stored = asyncio.Event()
        self.size_bytes = 0

    @property
    def full(self) -> bool:
        """Whether the copies are enough for one commit, or one of them failed."""
        many = len(self._entries) >= BATCH_ENTRIES or self.size_bytes >= BATCH_BYTES
        return many or self._error is not None

    def add(self, side: SideLog, entries: Sequence[Entry]) -> None:
        """Queue copies of these entries, which follow those before; raises as `SegmentLog.append`."""
        for entry in entries:
            side.append(entry, self._timestamp_ms, self._done)
            self._entries.append(entry)
            self.size_bytes += len(entry.data)

    def _done(self, place: Entry | None, error: BaseException | None) -> None:
        if place is None:
            self._error = error
        else:
            self._places.append(place.ordinal)
        self._stored.set()

    async def durable(self) -> list[tuple[Entry, int]]:
        """The entries with the ordinals of their copies, once all are durable; raises the error of one."""
        while len(self._places) < len(self._entries):
            if self._error is not None:
                raise self._error
            self._stored.clear()
            await self._stored.wait()
        return list(zip(self._entries, self._places, strict=True))
