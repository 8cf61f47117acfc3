"""Routes the rows of a staged entry by the present layout, and decides which may be stored already. Pure.

Rows are staged by the layout that a task saw. An entry whose rows still belong to one bucket is published as
it is. After a layout change its rows may go to several segments or buckets. They get their numbers in the
order of their bucket hashes, not in the order of the entry. Then, for any choice of buckets, the numbers of a
bucket follow those of the bucket before, and a segment that has stored a number has stored all its rows with
lower numbers. Rows of one key have one hash and keep their order.

Example: an entry of four rows with the hashes 9000:5000, 1000:2000, 1000:9000 and 9000:1000 (slot:bucket
hash) was staged for segment 0, which was split since. By bucket hash, rows 3, 1, 0, 2 get the numbers 0, 1,
2, 3. Segment 2 (slots 8000-ffff) gets rows 3 and 0 as numbers 0 and 2. Segment 1 gets row 1 as number 1 in
its first bucket and row 2 as number 3 in its second one. If a publisher fails and the next one finds number 1
stored in segment 1, it sends only number 3 there.
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
    """The range of the segment; meaningless for a partitioned topic."""
    partitions: int
    """The number of partitions of a classic topic; 0 for a scalable one."""
    hashes: HashRange
    """The lowest and highest bucket hash of the rows."""
    number: int | None = None
    """Counts the entries of the attempt from 0; None in entries of older versions."""

    @property
    def keyless_hash(self) -> int:
        """The hash that stands for rows without a key; it is the same for all layouts."""
        return self.range.start << 16 | self.hashes.start


class RoutedRows(NamedTuple):
    """Rows of one entry that go to one bucket of a segment."""

    segment: int
    rows: tuple[int, ...]
    """Indexes of the rows in the entry."""
    numbers: tuple[int, ...]
    """Numbers of the rows, ascending, relative to the first number of the entry."""


class StoredRows(NamedTuple):
    """How to send rows with ascending numbers to a segment; both fields are indexes of rows."""

    alone: int
    """Rows before this one are stored."""
    together: int
    """Rows from `alone` up to this one may be stored: each is sent alone, and the broker decides. The
    remaining rows are new."""


def partitions_of(layout: Layout) -> int:
    """Return the number of partitions of a classic topic, or 0 for a scalable topic."""
    return len(layout.active) if all(segment.is_classic for segment in layout.active) else 0


def whole_target(stamp: Stamp, layout: Layout) -> int | None:
    """Return the active segment that takes all rows of an entry in one bucket, or None if there is none."""
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
    """Decide how to send rows, given what is stored under the sink's name.

    `own` is the highest number that the segment itself has stored, `known` the highest that the segment and
    its ancestors have stored. With rows 10 to 14, `own` 10 and `known` 12, row 10 is stored, rows 11 and 12
    are sent one by one, because an ancestor may have stored them, and rows 13 and 14 are sent together.
    """
    alone = bisect_right(numbers, own)
    return StoredRows(alone, max(alone, bisect_right(numbers, known)))


class RowJudge(Protocol):
    """Decides which rows a segment lacks. Rows of one key keep their order, so numbers always ascend."""

    def has_all(self, last: int) -> bool:
        """Whether all rows up to a number are stored, for any slots."""

    def has_none(self, first: int) -> bool:
        """Whether no row from a number on is stored, for any slot."""

    def entries(self, numbers: Sequence[int], slots: Sequence[int]) -> list[Sequence[int]]:
        """Return the rows to send, by their index, as one list for each entry; the numbers ascend."""


@dataclass(frozen=True, slots=True)
class BrokerJudges:
    """An Anabranch broker decides about rows that may be stored; each of them is sent in its own entry."""

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


def parts_of(hashes: Sequence[int], segment: int | None, layout: Layout) -> list[RoutedRows]:
    """Cut an entry into the parts for each segment and bucket, given the raw hash of each row.

    All rows go to `segment` if it is set. The parts of a segment ascend in their numbers and do not overlap.
    """
    order = sorted(range(len(hashes)), key=lambda row: hashes[row] & SLOT_MASK)
    router = Router(layout)
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, row in enumerate(order):
        raw = hashes[row]
        target = router.segment_for(raw) if segment is None else layout.segments[segment]
        bucket = bisect_right(target.bucket_splits, raw & SLOT_MASK)
        found.setdefault((target.id, bucket), []).append((row, number))
    return [
        RoutedRows(id_, tuple(row for row, _ in rows), tuple(number for _, number in rows))
        for (id_, _), rows in found.items()
    ]
