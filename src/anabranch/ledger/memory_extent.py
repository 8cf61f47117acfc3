"""The extent of a log in memory: the reference for conversions between position, ordinal and index."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from anabranch.ledger.storage import Entry
from anabranch.model.ids import EARLIEST, Position


class MemoryExtent:
    """The extent of a log whose entries are a list. The first of them has the lowest stored ordinal."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.first_ordinal = 0
        self.first_index = 0
        self.next_index = 0
        self.last_timestamp_ms = 0
        self.end = EARLIEST

    @property
    def next_ordinal(self) -> int:
        return self.first_ordinal + len(self.entries)

    @property
    def size_bytes(self) -> int:
        return sum(len(entry.data) for entry in self.entries)

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.next_index = entry.index + entry.count
        self.end = Position(entry.position.ledger, entry.position.entry + 1)
        self.last_timestamp_ms = entry.timestamp_ms

    def drop(self, count: int) -> None:
        """Drop the oldest `count` entries, at least one."""
        last = self.entries[count - 1]
        self.first_ordinal += count
        self.first_index = last.index + last.count
        del self.entries[:count]

    def ordinal_of(self, position: Position) -> int:
        return self.first_ordinal + bisect_left(self.entries, position, key=lambda entry: entry.position)

    def position_of(self, ordinal: int) -> Position:
        if ordinal >= self.next_ordinal:
            return self.end
        return self.entries[max(ordinal - self.first_ordinal, 0)].position

    def ordinal_of_index(self, index: int) -> int:
        if index >= self.next_index:
            return self.next_ordinal
        at = bisect_right(self.entries, index, key=lambda entry: entry.index) - 1
        return self.first_ordinal + max(at, 0)

    def index_of(self, ordinal: int) -> int:
        if ordinal >= self.next_ordinal:
            return self.next_index
        return self.entries[max(ordinal - self.first_ordinal, 0)].index

    def count_of(self, ordinal: int) -> int:
        if not self.first_ordinal <= ordinal < self.next_ordinal:
            return 0
        return self.entries[ordinal - self.first_ordinal].count

    def ordinal_at_time(self, timestamp_ms: int) -> int:
        for entry in self.entries:
            if entry.timestamp_ms >= timestamp_ms:
                return entry.ordinal
        return self.next_ordinal

    def time_of(self, ordinal: int) -> int | None:
        if ordinal >= self.next_ordinal:
            return None
        return max(entry.timestamp_ms for entry in self.entries[: max(ordinal - self.first_ordinal, 0) + 1])

    def bytes_between(self, first: int, end: int) -> int:
        return sum(len(entry.data) for entry in self._between(first, end))

    def indexes_after(self, first: int, end: int) -> list[int]:
        return [entry.index + entry.count for entry in self._between(first, end)]

    def _between(self, first: int, end: int) -> list[Entry]:
        start = self.first_ordinal
        return self.entries[max(first - start, 0) : max(end - start, 0)]

    def ordinal_keeping(self, size_bytes: int) -> int:
        for at in range(len(self.entries) - 1, -1, -1):
            size_bytes -= len(self.entries[at].data)
            ledger = self.entries[at].position.ledger
            if size_bytes <= 0 and (at == 0 or self.entries[at - 1].position.ledger != ledger):
                return self.entries[at].ordinal
        return self.first_ordinal
