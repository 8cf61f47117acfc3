"""Lanes: the entries of each slot that wait, and why the first of them cannot go out.

A slot is a hash of keys or a bucket. A lane keeps ordinals in a compressed bitmap, a few bytes each, so that
one stuck slot may have millions of waiting entries. This module knows nothing of receivers.

For example, entries 70, 71 and 90 of slot 3 wait, of 200 bytes each. The lane has `head` 70, `count` 3,
`size_bytes` 600, and counts as 1,000 + 3 * 2 + 1 * 100 bytes of memory. `pop` returns 70 and makes 71 the
head. An entry that comes back, say 65, becomes the head, because a lane is ordered by ordinals.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice, takewhile
from typing import NamedTuple

from pyroaring import BitMap64

LANE_BYTES = 1000
"""Estimated memory of a lane with one entry, and of its places in the dispatch."""

PIECE_BYTES = 100
"""Estimated memory for each run of 65,536 ordinals in which a lane has entries."""

ENTRY_BYTES = 2


class LaneReason(StrEnum):
    """Why the first entry of a lane cannot go out."""

    NO_CONSUMER = "no consumer"
    BUSY = "busy"
    """Its consumer has no permits, or its connection no room."""
    UNACKNOWLEDGED = "unacknowledged"
    """An earlier entry was not acknowledged in time."""
    HANDOVER = "handover"
    """The former owner of the slot must acknowledge its entries first."""
    CLOSED = "closed"
    """The bucket is not open yet."""
    RETRY = "retry"
    """The slot is paused after a negative acknowledgement."""
    DELAYED = "delayed"
    """The entry has a later delivery time."""
    PARKED = "parked"
    """The slot waits for an operator."""


class LaneView(NamedTuple):
    """One lane, for people."""

    slot: int
    reason: LaneReason
    since_ms: int
    entries: int
    size_bytes: int
    """About the stored bytes of the entries."""
    first_ordinal: int
    """-1 for a lane in which no entry waits yet."""
    waits_for: str = ""
    """Name of the consumer that has to take or to acknowledge entries."""
    until_ms: int = 0
    """Wall time at which the wait ends by itself; 0 if an event ends it."""
    note: str = ""


class Lane:
    """The waiting entries of one slot."""

    __slots__ = ("_added", "_added_bytes", "_last", "count", "entries", "head", "restored", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.entries = BitMap64()
        self.count = 0
        self.head = -1
        """The lowest ordinal; -1 while no entry waits."""
        self._last = -1
        self.since_ms = since_ms
        self.restored = False
        """Whether the slot may have earlier entries that were not read since the last start."""
        self._added = 0
        self._added_bytes = 0

    @property
    def size_bytes(self) -> int:
        """About the stored bytes of the entries: their number times the average size."""
        return self._added_bytes * self.count // self._added if self._added else 0

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of the lane."""
        pieces = min(self.count, (self._last >> 16) - (self.head >> 16) + 1)
        return LANE_BYTES + ENTRY_BYTES * self.count + PIECE_BYTES * pieces

    def add(self, ordinal: int, size: int) -> bool:
        """Add an entry, of a known size if that is not 0; whether it is the first one now."""
        if size:
            self._added += 1
            self._added_bytes += size
        self.entries.add(ordinal)
        self.count += 1
        if ordinal > self._last:
            self._last = ordinal
        if 0 <= self.head < ordinal:
            return False
        self.head = ordinal
        return True

    def pop(self) -> int:
        """Remove the first entry and return its ordinal."""
        ordinal = self.head
        self.entries.discard(ordinal)
        self.count -= 1
        if self.count:
            self.head = self.entries.min()
        else:
            self.head = self._last = -1
        return ordinal

    def first(self, limit: int) -> list[int]:
        """Return the first ordinals, at most `limit`."""
        return list(islice(self.entries, limit))

    def between(self, first: int, end: int, limit: int) -> list[int]:
        """Return the ordinals from `first` on and below `end`, at most `limit`."""
        return list(islice(takewhile(end.__gt__, self.entries.iter_equal_or_larger(first)), limit))


class Lanes:
    """The lanes of one subscription, by slot."""

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        self.waiting = 0
        """Entries in all lanes."""
        self.memory_bytes = 0
        """Estimated memory of all lanes."""

    def __contains__(self, slot: int) -> bool:
        return slot in self._lanes

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[int]:
        return iter(self._lanes)

    def get(self, slot: int) -> Lane | None:
        return self._lanes.get(slot)

    def head(self, slot: int) -> int:
        """Return the first ordinal that waits; -1 if none does."""
        lane = self._lanes.get(slot)
        return -1 if lane is None else lane.head

    def open(self, slot: int, since_ms: int) -> Lane:
        """Return the lane of a slot, made if it is missing."""
        lane = self._lanes.get(slot)
        if lane is None:
            lane = self._lanes[slot] = Lane(since_ms)
            self.memory_bytes += lane.memory_bytes
        return lane

    def add(self, slot: int, ordinal: int, size: int, now_ms: int) -> bool:
        """Let an entry wait in the lane of its slot; whether it is the first one there."""
        lane = self.open(slot, now_ms)
        before = lane.memory_bytes
        first = lane.add(ordinal, size)
        self.waiting += 1
        self.memory_bytes += lane.memory_bytes - before
        return first

    def pop(self, slot: int) -> int:
        """Take the first entry out of a lane; `close_if_empty` follows when it has gone out."""
        lane = self._lanes[slot]
        before = lane.memory_bytes
        ordinal = lane.pop()
        self.waiting -= 1
        self.memory_bytes += lane.memory_bytes - before
        return ordinal

    def close_if_empty(self, slot: int) -> None:
        lane = self._lanes.get(slot)
        if lane is not None and lane.head < 0 and not lane.restored:
            self.memory_bytes -= lane.memory_bytes
            del self._lanes[slot]

    def clear(self) -> None:
        self._lanes.clear()
        self.waiting = self.memory_bytes = 0
