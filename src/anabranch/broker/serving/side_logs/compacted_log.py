"""A log as its compacted readers see it: the kept messages up to a horizon, and the log from there on.

Kept messages have their positions, ordinals and all other numbers in the log. This module must not know
consumers, nor how a compaction works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.broker.dispatch.compaction import (
    COMPACTION,
    CompactionNote,
    decode_compaction,
    kept_bits,
    last_kept,
)
from anabranch.broker.dispatch.spilled import OldLedgers
from anabranch.broker.serving.side_logs.side_log import SideLog
from anabranch.ledger.storage import Entry, SegmentLog
from anabranch.model.ids import Position
from anabranch.protocol.compression import UNCOMPRESSED_BYTES_MAX

_SEARCHED_ENTRIES = 1000
_SEARCHED_BYTES = 2**20


class CompactedLog:
    """The reading side of a log and of the side log of its last compaction."""

    def __init__(self, log: SegmentLog, find: Callable[[str], SegmentLog | None]) -> None:
        """`find` returns the log of a name in the same store."""
        self.name = log.name
        self.horizon = 0
        """Entries below this ordinal are compacted."""
        self.kept: SideLog | None = None
        """The kept messages; None if there are none."""
        self._log = log
        self._find = find
        self._ledgers = OldLedgers()
        self.follow()

    def follow(self) -> None:
        """Read the last compaction that is done, as the note of its cursor says, if there is a cursor."""
        cursor = self._log.cursors.get(COMPACTION)
        note = CompactionNote() if cursor is None else decode_compaction(cursor.note)
        side = None if note.current is None else self._find(note.current.name)
        self.kept = None if side is None or note.current is None else SideLog(side, note.current.first)
        self.horizon = note.horizon
        self._ledgers = OldLedgers(note.ledgers)

    @property
    def extent(self) -> CompactedLog:
        return self

    @property
    def sealed(self) -> bool:
        return self._log.sealed

    @property
    def first_ordinal(self) -> int:
        first = self._log.extent.first_ordinal
        return first if self.kept is None else min(first, self.kept.first)

    @property
    def next_ordinal(self) -> int:
        return self._log.extent.next_ordinal

    def ordinal_of(self, position: Position) -> int:
        found = self._log.extent.ordinal_of(position)
        if self.kept is not None and found == self._log.extent.first_ordinal:
            old = self._ledgers.ordinal_of(position)
            return found if old is None else min(old, found)
        return found

    def position_of(self, ordinal: int) -> Position:
        if ordinal < self._log.extent.first_ordinal:
            old = self._ledgers.position_of(ordinal)
            if old is not None:
                return old
        return self._log.extent.position_of(ordinal)

    def index_of(self, ordinal: int) -> int:
        return self._log.extent.index_of(ordinal)

    def count_of(self, ordinal: int) -> int:
        return self._log.extent.count_of(ordinal)

    def _copy_from(self, ordinal: int) -> int | None:
        """Return where the first kept entry from `ordinal` on is; None if the log has the next entry."""
        if self.kept is None or ordinal >= self.horizon:
            return None
        extent = self.kept.log.extent
        found = extent.ordinal_of_index(max(ordinal - self.kept.first, 0))
        return found if found < extent.next_ordinal else None

    async def read(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        at, kept = self._copy_from(ordinal), self.kept
        if at is None or kept is None:
            return await self._log.read(max(ordinal, self.horizon), max_entries, max_bytes)
        end = min(at + max_entries, kept.log.extent.next_ordinal)
        return await kept.read(range(at, end), max_bytes)

    def read_cached(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        at, kept = self._copy_from(ordinal), self.kept
        if at is None or kept is None:
            return self._log.read_cached(max(ordinal, self.horizon), max_entries, max_bytes)
        end = min(at + max_entries, kept.log.extent.next_ordinal)
        return kept.read_cached(range(at, end), max_bytes)

    async def ordinal_at_time(self, time_ms: int) -> int:
        """Ordinal of the first entry that was stored at that time or later, or the end.

        Of the entries that the log has dropped, those that a compaction kept count.
        """
        ordinal, first = self.first_ordinal, self._log.extent.first_ordinal
        while ordinal < first:
            entries = await self.read(ordinal, _SEARCHED_ENTRIES, _SEARCHED_BYTES)
            if (found := next((one for one in entries if one.timestamp_ms >= time_ms), None)) is not None:
                # The log finds its own entries by an index of times.
                return min(found.ordinal, self._log.extent.ordinal_at_time(time_ms))
            if not entries:
                break
            ordinal = entries[-1].ordinal + 1
        return self._log.extent.ordinal_at_time(time_ms)

    async def read_each(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        return await self._log.read_each(ordinals, max_bytes)

    def read_each_cached(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry] | None:
        return self._log.read_each_cached(ordinals, max_bytes)

    async def last(self) -> tuple[Position, int] | None:
        """Position and batch index of the last kept message; None while the log has a later one."""
        if self.next_ordinal > self.horizon:
            return None
        if self.kept is None:
            return Position(-1, -1), -1
        (entry,) = await self.kept.read([self.kept.log.extent.next_ordinal - 1], 1)
        return entry.position, last_kept(entry.data, UNCOMPRESSED_BYTES_MAX)

    def kept_bits(self, entry: Entry) -> int | None:
        """Return the messages of an entry that stayed, as bits; None if all did.

        Some clients deliver placeholders, unless an ack set says that they are acknowledged.
        """
        return None if entry.ordinal >= self.horizon else kept_bits(entry.data, UNCOMPRESSED_BYTES_MAX)
