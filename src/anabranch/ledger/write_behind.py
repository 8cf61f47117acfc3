"""Writes ledger files behind the journal: large plain writes, synced only before a journal file is deleted.

Producers got their receipts after the journal's sync, and the journal still holds what a crash loses here.
This module knows ledgers and files, not logs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from anabranch.ledger.cache import Cache
from anabranch.ledger.disk import Disk, Write
from anabranch.ledger.ledgers import Ledger

_log = logging.getLogger(__name__)


class WriteBehind:
    """Writes committed entries to the ledger files, one round at a time."""

    def __init__(self, disk: Disk, cache: Cache) -> None:
        self._disk = disk
        self._cache = cache
        self._lock = asyncio.Lock()
        self._waiting: dict[int, Ledger] = {}
        self._unsynced: dict[int, Ledger] = {}
        self.waiting_bytes = 0

    def add(self, ledger: Ledger, size_bytes: int) -> None:
        """Note that the ledger has `size_bytes` more to write."""
        if not ledger.dropped:
            self._waiting[ledger.id] = ledger
            self.waiting_bytes += size_bytes

    async def flush(self) -> None:
        """Write all entries that wait now."""
        async with self._lock:
            ledgers = [ledger for ledger in self._waiting.values() if not ledger.dropped]
            self._waiting.clear()
            self.waiting_bytes = 0
            ends = [ledger.entries for ledger in ledgers]
            writes: list[Write] = []
            for ledger in ledgers:
                writes.append((ledger.data_file, ledger.waiting))
                writes.append((ledger.index_file, ledger.waiting_rows))
                ledger.waiting, ledger.waiting_rows = [], []
                self._unsynced[ledger.id] = ledger
            if writes:
                await self._disk.append(writes)
            for ledger, end in zip(ledgers, ends, strict=True):
                ledger.flushed = end
                ledger.tail.flushed = max(ledger.tail.flushed, ledger.first_ordinal + end)
        self._cache.shrink()

    async def sync(self) -> None:
        """Sync the ledger files written so far."""
        async with self._lock:
            ledgers = [ledger for ledger in self._unsynced.values() if not ledger.dropped]
            self._unsynced.clear()
            await self._disk.sync([file for ledger in ledgers for file in _files_of(ledger)])

    async def drop(self, ledgers: Sequence[Ledger]) -> None:
        """Delete the files of dropped ledgers, and forget their waiting entries."""
        async with self._lock:
            for ledger in ledgers:
                self._waiting.pop(ledger.id, None)
                self._unsynced.pop(ledger.id, None)
            await self.delete([file for ledger in ledgers for file in _files_of(ledger)])

    async def delete(self, files: Sequence[str]) -> None:
        """Delete obsolete files; if that fails, they take space until the next start deletes them."""
        try:
            await self._disk.delete(files)
        except OSError as error:
            _log.warning("cannot delete %s, the next start will try again: %s", ", ".join(files), error)


def _files_of(ledger: Ledger) -> tuple[str, str]:
    return ledger.data_file, ledger.index_file
