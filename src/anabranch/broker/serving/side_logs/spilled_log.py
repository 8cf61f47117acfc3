"""A log as one subscription reads it: spilled entries come from its side logs once the log has dropped them.

They keep their position, ordinal and all other numbers. This module must not know consumers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from anabranch.broker.serving.side_logs.spilling_cursor import SpillingCursor
from anabranch.ledger.storage import Entry, SegmentLog
from anabranch.model.ids import Position

COUNTS_MAX = 100_000
"""Spilled entries whose number of messages is remembered for acknowledgements of single messages."""


class SpilledPlaces:
    """The extent of the log, extended by the spilled entries that the log has dropped."""

    def __init__(self, log: SegmentLog, cursor: SpillingCursor) -> None:
        self._extent = log.extent
        self._cursor = cursor
        self._counts: dict[int, int] = {}

    @property
    def first_ordinal(self) -> int:
        first = self._extent.first_ordinal
        return min(first, self._cursor.acks.mark) if self._cursor.sides else first

    @property
    def next_ordinal(self) -> int:
        return self._extent.next_ordinal

    def ordinal_of(self, position: Position) -> int:
        found = self._extent.ordinal_of(position)
        if self._cursor.sides and found == self._extent.first_ordinal:
            old = self._cursor.ledgers.ordinal_of(position)
            return found if old is None else min(old, found)
        return found

    def position_of(self, ordinal: int) -> Position:
        if ordinal < self._extent.first_ordinal and self._cursor.sides:
            old = self._cursor.ledgers.position_of(ordinal)
            if old is not None:
                return old
        return self._extent.position_of(ordinal)

    def index_of(self, ordinal: int) -> int:
        return self._extent.index_of(ordinal)

    def count_of(self, ordinal: int) -> int:
        return self._extent.count_of(ordinal) or self._counts.get(ordinal, 0)

    def remember(self, entries: Sequence[Entry]) -> None:
        """Remember the messages of spilled entries that were read, and may be acknowledged one by one."""
        counts = self._counts
        counts.update((entry.ordinal, entry.count) for entry in entries)
        if len(counts) > COUNTS_MAX:
            for ordinal in list(islice(counts, len(counts) - COUNTS_MAX)):
                del counts[ordinal]


class SpilledLog:
    """The reading side of a log and of the side logs of one subscription."""

    def __init__(self, log: SegmentLog, cursor: SpillingCursor) -> None:
        self.name = log.name
        self.extent = SpilledPlaces(log, cursor)
        self._log = log
        self._cursor = cursor

    @property
    def sealed(self) -> bool:
        return self._log.sealed

    async def read(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        while True:
            first = self._log.extent.first_ordinal
            dropped = self._dropped_from(ordinal, max_entries)
            if dropped and (copies := await self._read_sides(dropped, max_bytes)):
                return copies
            found = await self._log.read(ordinal, max_entries, max_bytes)
            # A trim during the read may have dropped spilled entries, which come first.
            if first == self._log.extent.first_ordinal or not self._cursor.sides:
                return found

    def read_cached(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        dropped = self._dropped_from(ordinal, max_entries)
        if not dropped:
            return self._log.read_cached(ordinal, max_entries, max_bytes)
        return self._read_sides_cached(dropped, max_bytes)

    async def read_each(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        while True:
            first = self._log.extent.first_ordinal
            dropped = self._dropped_of(ordinals)
            if dropped and (copies := await self._read_sides(dropped, max_bytes)):
                return copies
            found = await self._log.read_each(ordinals, max_bytes)
            if first == self._log.extent.first_ordinal or not self._cursor.sides:
                return found

    def read_each_cached(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry] | None:
        dropped = self._dropped_of(ordinals)
        if not dropped:
            return self._log.read_each_cached(ordinals, max_bytes)
        return self._read_sides_cached(dropped, max_bytes)

    def _dropped_from(self, ordinal: int, max_entries: int) -> list[int]:
        """Return the spilled entries from `ordinal` on that the log has dropped, at most so many."""
        first, acks = self._log.extent.first_ordinal, self._cursor.acks
        found: list[int] = []
        if self._cursor.sides:
            ordinal = acks.next_pending(ordinal)
            while ordinal < first and len(found) < max_entries:
                if self._cursor.is_spilled(ordinal):
                    found.append(ordinal)
                ordinal = acks.next_pending(ordinal + 1)
        return found

    def _dropped_of(self, ordinals: Sequence[int]) -> list[int]:
        if not self._cursor.sides:
            return []
        below = ordinals[: bisect_left(ordinals, self._log.extent.first_ordinal)]
        return [ordinal for ordinal in below if self._cursor.is_spilled(ordinal)]

    async def _read_sides(self, ordinals: Sequence[int], max_bytes: int) -> list[Entry]:
        """Spilled entries, from one side log."""
        for side in self._cursor.sides:
            if copies := side.copies_of(ordinals):
                found = await side.read(copies, max_bytes)
                break
        else:
            found = []
        self.extent.remember(found)
        return found

    def _read_sides_cached(self, ordinals: Sequence[int], max_bytes: int) -> list[Entry] | None:
        for side in self._cursor.sides:
            if copies := side.copies_of(ordinals):
                found = side.read_cached(copies, max_bytes)
                break
        else:
            found = None
        self.extent.remember(found or ())
        return found
