"""Reads the durable entries of one log, from memory if possible, else from its ledger files.

A trim may drop a ledger while it is being read. This module knows nothing of the journal.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from anabranch.errors import DamagedEntriesError, PersistenceError
from anabranch.ledger.ledger_files import LedgerReader
from anabranch.ledger.ledgers import Ledger
from anabranch.ledger.storage import Entry
from anabranch.ledger.stored_log import StoredLog

READS_AT_ONCE = 16
"""The maximum number of disk accesses in one call of `read_each`."""


class LogReads:
    """The reading methods of a log, as the ledger port defines them."""

    __slots__ = ("_reader", "_stored")

    def __init__(self, stored: StoredLog, reader: LedgerReader) -> None:
        self._stored = stored
        self._reader = reader

    def read_cached(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        extent = self._stored.extent
        ordinal = max(ordinal, extent.first_ordinal)
        if ordinal >= extent.next_ordinal:
            return []
        return self._stored.tail.read(ordinal, max_entries, max_bytes)

    async def read(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        extent, name = self._stored.extent, self._stored.name
        while True:
            found = self.read_cached(ordinal, max_entries, max_bytes)
            if found is not None:
                return found
            ledger, number = extent.locate(max(ordinal, extent.first_ordinal))
            try:
                return await self._reader.read(name, ledger, number, max_entries, max_bytes)
            except OSError as error:
                # A trim may drop the ledger during the read. Then the first remaining ledger answers.
                if not ledger.dropped:
                    raise self._unreadable(ledger) from error

    def read_each_cached(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry] | None:
        stored = self._stored_of(ordinals)
        return self._stored.tail.read_each(stored, max_bytes) or (None if stored else [])

    async def read_each(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        found: list[Entry] = []
        for _ in range(READS_AT_ONCE):
            more = await self._read_near(self._stored_of(ordinals), max_bytes, first=not found)
            size_bytes = sum(len(entry.data) for entry in more)
            if not more or (found and size_bytes > max_bytes):
                break
            found += more
            max_bytes -= size_bytes
            ordinals = ordinals[bisect_right(ordinals, found[-1].ordinal) :]
        return found

    async def _read_near(self, ordinals: Sequence[int], max_bytes: int, *, first: bool) -> Sequence[Entry]:
        """Read the first of the ordinals and its neighbours in one access.

        With `first`, damage is an error.
        """
        while ordinals:
            cached = self._stored.tail.read_each(ordinals, max_bytes)
            if cached:
                return cached
            ledger, _ = self._stored.extent.locate(ordinals[0])
            try:
                return await self._reader.read_each(self._stored.name, ledger, ordinals, max_bytes)
            except DamagedEntriesError:
                if first:
                    raise
                break
            except OSError as error:
                # A trim may drop the ledger during the read. Then its ordinals are left out.
                if not ledger.dropped:
                    raise self._unreadable(ledger) from error
                ordinals = self._stored_of(ordinals)
        return ()

    def _stored_of(self, ordinals: Sequence[int]) -> Sequence[int]:
        """Return those of these ascending ordinals that are durable."""
        extent = self._stored.extent
        first = bisect_left(ordinals, extent.first_ordinal)
        return ordinals[first : bisect_left(ordinals, extent.next_ordinal)]

    def _unreadable(self, ledger: Ledger) -> PersistenceError:
        return PersistenceError(f"{self._stored.name}: {ledger.data_file} cannot be read")
