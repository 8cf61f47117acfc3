"""The extent of a log over its ledgers: converts between position, ordinal and index. Pure.

Ordinals are consecutive across ledgers, while positions jump when a new ledger begins. Indexes are
consecutive too, except after a loss of messages, whose indexes are not reused.

Ordinals continue without a gap from ledger to ledger; positions jump when a ledger begins. Indexes continue
too, except after messages were lost, whose indexes are not used again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from anabranch.ledger.ledgers import Ledger
from anabranch.model.ids import EARLIEST, Position


class LedgerExtent:
    """The extent of a log that is stored as a sequence of ledgers."""

    __slots__ = (
        "_ids",
        "_starts",
        "end",
        "first_index",
        "first_ordinal",
        "index_floor",
        "last_timestamp_ms",
        "ledgers",
        "next_index",
        "next_ordinal",
    )

    def __init__(self) -> None:
        self.ledgers: list[Ledger] = []
        self._starts: list[int] = []
        self._ids: list[int] = []
        self.first_ordinal = 0
        self.first_index = 0
        self.next_ordinal = 0
        self.next_index = 0
        self.index_floor = 0
        """The lowest index for the first message of the next ledger. Lost messages may have had lower
        ones."""
        self.last_timestamp_ms = 0
        self.end = EARLIEST
        """The position after the last entry ever stored."""

    @property
    def size_bytes(self) -> int:
        return sum(ledger.data_bytes for ledger in self.ledgers)

    def add(self, ledger: Ledger) -> None:
        """Append a ledger, which begins where the last one ends."""
        self.ledgers.append(ledger)
        self._starts.append(ledger.first_ordinal)
        self._ids.append(ledger.id)

    def advance(self) -> None:
        """Update the end after the last ledger received entries."""
        ledger = self.ledgers[-1]
        self.next_ordinal = ledger.end_ordinal
        self.next_index = ledger.end_index
        self.end = Position(ledger.id, ledger.entries)

    def below(self, ordinal: int) -> list[Ledger]:
        """Return the whole ledgers below `ordinal`."""
        return [ledger for ledger in self.ledgers if ledger.end_ordinal <= ordinal]

    def drop_below(self, ordinal: int) -> list[Ledger]:
        """Remove the whole ledgers below `ordinal` and return them."""
        dropped = self.below(ordinal)
        if dropped:
            count = len(dropped)
            self.first_ordinal = dropped[-1].end_ordinal
            self.first_index = dropped[-1].end_index
            del self.ledgers[:count], self._starts[:count], self._ids[:count]
        return dropped

    def locate(self, ordinal: int) -> tuple[Ledger, int]:
        """Return the ledger that holds a stored ordinal, and the number of the entry in that ledger."""
        ledger = self.ledgers[bisect_right(self._starts, ordinal) - 1]
        return ledger, ordinal - ledger.first_ordinal

    def ordinal_of(self, position: Position) -> int:
        at = bisect_left(self._ids, position.ledger)
        if at == len(self._ids):
            return self.next_ordinal
        ledger = self.ledgers[at]
        if ledger.id != position.ledger:
            return ledger.first_ordinal
        return ledger.first_ordinal + min(max(position.entry, 0), ledger.entries)

    def position_of(self, ordinal: int) -> Position:
        if ordinal >= self.next_ordinal:
            return self.end
        ledger, entry = self.locate(max(ordinal, self.first_ordinal))
        return Position(ledger.id, entry)

    def index_of(self, ordinal: int) -> int:
        if ordinal >= self.next_ordinal:
            return self.next_index
        ledger, entry = self.locate(max(ordinal, self.first_ordinal))
        return ledger.index_of(entry)

    def count_of(self, ordinal: int) -> int:
        if not self.first_ordinal <= ordinal < self.next_ordinal:
            return 0
        ledger, entry = self.locate(ordinal)
        return ledger.count_of(entry)

    def ordinal_of_index(self, index: int) -> int:
        if index >= self.next_index:
            return self.next_ordinal
        if index < self.first_index:
            return self.first_ordinal
        at = bisect_right(self.ledgers, index, key=lambda ledger: ledger.first_index) - 1
        ledger = self.ledgers[at]
        return ledger.first_ordinal + bisect_right(ledger.rows.indexes, index - ledger.first_index)

    def ordinal_at_time(self, timestamp_ms: int) -> int:
        for ledger in self.ledgers:
            if ledger.entries and ledger.base_ms + ledger.rows.times[-1] >= timestamp_ms:
                return ledger.first_ordinal + bisect_left(ledger.rows.times, timestamp_ms - ledger.base_ms)
        return self.next_ordinal

    def time_of(self, ordinal: int) -> int | None:
        if ordinal >= self.next_ordinal:
            return None
        ledger, entry = self.locate(max(ordinal, self.first_ordinal))
        before = (older.base_ms + older.rows.times[-1] for older in self.below(ordinal) if older.entries)
        return max(ledger.base_ms + ledger.rows.times[entry], *before, 0)

    def bytes_between(self, first: int, end: int) -> int:
        return sum(
            ledger.start_of(last) - ledger.start_of(begin) for ledger, begin, last in self._parts(first, end)
        )

    def indexes_after(self, first: int, end: int) -> list[int]:
        found: list[int] = []
        for ledger, begin, last in self._parts(first, end):
            base = ledger.first_index
            found += [base + index for index in ledger.rows.indexes[begin:last]]
        return found

    def _parts(self, first: int, end: int) -> Iterator[tuple[Ledger, int, int]]:
        """Yield each ledger with entries from `first` up to `end`, and the range of these entries in it."""
        for ledger in self.ledgers[max(bisect_right(self._starts, first) - 1, 0) :]:
            begin = max(first - ledger.first_ordinal, 0)
            last = min(end - ledger.first_ordinal, ledger.entries)
            if last <= 0:
                return
            if begin < last:
                yield ledger, begin, last

    def ordinal_keeping(self, size_bytes: int) -> int:
        for ledger in reversed(self.ledgers):
            size_bytes -= ledger.data_bytes
            if size_bytes <= 0:
                return ledger.first_ordinal
        return self.first_ordinal
