"""Routes the rows of a staged entry by the layout of now, and judges which of them may be stored. Pure.

Rows are staged by the layout that a task saw. An entry whose rows still belong to one bucket is published
whole. After a layout change its rows go to several segments or buckets. They get their numbers in the order
of their bucket hashes, not of the entry. So the rows of each bucket follow those of the bucket before, for
any choice of buckets, and a segment that stored a number has stored all of its rows with lower numbers.
Rows of one key have one hash and keep their order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from anabranch.model.layout import Layout
from anabranch.model.ranges import HashRange
from anabranch.model.routing import Router

SLOT_MASK = 0xFFFF


@dataclass(frozen=True, slots=True)
class Stamp:
    """The destination of a staged entry, by the layout that its task saw."""

    attempt: str
    topic: str
    segment: int
    range: HashRange
    """The range of the segment; without meaning in a partitioned topic."""
    partitions: int
    """The number of partitions of a classic topic; 0 for a scalable one."""
    hashes: HashRange
    """The lowest and highest bucket hash of the rows."""
    number: int | None = None
    """Counts the entries of the attempt from 0; None in entries of older versions."""

    @property
    def keyless_hash(self) -> int:
        """The hash of rows without a key: the same for all layouts."""
        return self.range.start << 16 | self.hashes.start


class RoutedRows(NamedTuple):
    """Rows of one entry that go to one bucket of a segment."""

    segment: int
    rows: tuple[int, ...]
    """Places in the entry."""
    numbers: tuple[int, ...]
    """Numbers of the rows, counted from the first one of the entry; they ascend."""


class StoredRows(NamedTuple):
    """How to send rows with ascending numbers to a segment."""

    alone: int
    """Rows before this index are stored."""
    together: int
    """Rows before this index, from `alone` on, may be stored: each is sent alone, for the broker to judge.
    The others are new."""


def partitions_of(layout: Layout) -> int:
    """The number of partitions of a classic topic; 0 for a scalable topic."""
    return len(layout.active) if all(segment.is_classic for segment in layout.active) else 0


def home_of(stamp: Stamp, layout: Layout) -> int | None:
    """The active segment that has all rows of an entry in one bucket; None if there is none."""
    if stamp.partitions or partitions_of(layout):
        same = stamp.partitions == partitions_of(layout)
        return stamp.segment if same and any(one.id == stamp.segment for one in layout.active) else None
    for segment in layout.active:
        if stamp.range.start in segment.range and stamp.range.end in segment.range:
            low, high = stamp.hashes.start, stamp.hashes.end
            same = bisect_right(segment.bucket_splits, low) == bisect_right(segment.bucket_splits, high)
            return segment.id if same else None
    return None


def judge(numbers: Sequence[int], own: int, known: int) -> StoredRows:
    """RowJudge rows by what a segment has stored under the sink's name.

    `own` is the highest number that the segment itself has stored, `known` the highest of the segment and of
    those before it.
    """
    alone = bisect_right(numbers, own)
    return StoredRows(alone, max(alone, bisect_right(numbers, known)))


class RowJudge(Protocol):
    """Says which rows a segment lacks. Rows of one key keep their order, so numbers ascend everywhere."""

    def has_all(self, last: int) -> bool:
        """Whether all rows up to a number are stored, for any slots."""

    def has_none(self, first: int) -> bool:
        """Whether no row from a number on is stored, for any slot."""

    def entries(self, numbers: Sequence[int], slots: Sequence[int]) -> list[Sequence[int]]:
        """Return the rows to send, by their index, as one list for each entry; the numbers ascend."""


@dataclass(frozen=True, slots=True)
class BrokerJudges:
    """A broker of ours decides about rows that may be stored, each of which it must get alone."""

    own: int
    known: int
    """As for `judge`."""

    def has_all(self, last: int) -> bool:
        return last <= self.own

    def has_none(self, first: int) -> bool:
        return first > self.known

    def entries(self, numbers: Sequence[int], slots: Sequence[int]) -> list[Sequence[int]]:
        alone, together = judge(numbers, self.own, self.known)
        found: list[Sequence[int]] = [(index,) for index in range(alone, together)]
        return [*found, range(together, len(numbers))] if together < len(numbers) else found


def parts_of(hashes: Sequence[int], home: int | None, layout: Layout) -> list[RoutedRows]:
    """Cut an entry by segments and buckets, given the raw hash of each row.

    All rows go to `home` if it is set. The parts of a segment ascend in their numbers and do not overlap.
    """
    order = sorted(range(len(hashes)), key=lambda row: hashes[row] & SLOT_MASK)
    router = Router(layout)
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, row in enumerate(order):
        raw = hashes[row]
        segment = router.segment_for(raw) if home is None else layout.segments[home]
        bucket = bisect_right(segment.bucket_splits, raw & SLOT_MASK)
        found.setdefault((segment.id, bucket), []).append((row, number))
    return [
        RoutedRows(segment, tuple(row for row, _ in rows), tuple(number for _, number in rows))
        for (segment, _), rows in found.items()
    ]
