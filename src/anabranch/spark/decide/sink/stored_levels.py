"""Decides which rows of a sink the segments on Apache Pulsar have already stored. Pure.

An Anabranch broker knows what a segment and its ancestors stored under the sink's name. A Pulsar topic knows
only what it stored itself, and a terminated topic accepts no producer that could ask. So the driver reads the
topics. A pin has *marks*: the end of each active segment of its topics before the pin was stored. Rows of the
batch are published after the pin, so they lie behind the marks, or in segments younger than the marks.

Every publisher sends the rows of a segment in ascending numbers and skips those that are stored. So a row is
stored if its number is at most the highest number that a segment with its slot has stored. This *level* is a
step function over the ring: after a merge, the slots of different parents have different levels.

Example: segment 1 (slots 0000-7fff) had stored rows up to number 17 and segment 2 (8000-ffff) up to number 9
when they were merged into segment 3, which has stored nothing yet. All rows up to number 9 are stored, and no
row from 18 on. Of rows 16 (slot 9000), 17 and 18 (slot 1000), row 17 is stored, and rows 16 and 18 have to be
sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from anabranch.errors import DataLossError
from anabranch.model.layout import Layout, Segment
from anabranch.model.ranges import HashRange


class SegmentLevel(NamedTuple):
    """The highest number that a segment has stored, or -1 if it has none."""

    range: HashRange
    number: int


def earlier_segments(layout: Layout, id_: int, marked: Iterable[int]) -> list[int]:
    """Return the sealed segments that may hold rows of a pinned batch for the slots of an active segment.

    These are its ancestors up to and including the marked ones; older segments were sealed before the pin.
    Raises DataLossError if the layout no longer contains them.
    """
    known = frozenset(marked)
    found: set[int] = set()
    waiting = [layout.segments[id_]]
    while waiting:
        segment = waiting.pop()
        if segment.id in known:
            continue
        _check_parents(layout, segment)
        fresh = [parent for parent in segment.parents if parent not in found]
        found.update(fresh)
        waiting += [layout.segments[parent] for parent in fresh]
    # A classic segment, which became part of the layout later, never took rows of a sink.
    return sorted(one for one in found if not layout.segments[one].is_classic)


def _check_parents(layout: Layout, segment: Segment) -> None:
    """Raise DataLossError if a parent of the segment was pruned."""
    if segment.created_epoch == 0:
        # The topic began with this segment, so it was recreated after the pin.
        return
    start = segment.range.start
    for covered in sorted(layout.segments[parent].range for parent in segment.parents):
        if covered.start <= start:
            start = max(start, covered.end + 1)
    if start <= segment.range.end:
        raise DataLossError(
            f"a parent of segment {segment.id} was pruned before a batch of the sink was published, so it is "
            "not known which rows of the batch are stored; keep sealed segments for longer"
        )


class StoredLevels:
    """Decides about the rows that go to one segment."""

    def __init__(self, range_: HashRange, levels: Sequence[SegmentLevel]) -> None:
        """`levels` are those of the segment itself and of its ancestors."""
        self._levels = [level for level in levels if level.number >= 0 and level.range.overlaps(range_)]
        cuts = sorted({range_.start, *self._cuts(range_)})
        steps = [self.of(slot) for slot in cuts]
        self._lowest, self._highest = min(steps), max(steps)

    def _cuts(self, range_: HashRange) -> list[int]:
        """Return the slots at which the level may change."""
        borders = [slot for level in self._levels for slot in (level.range.start, level.range.end + 1)]
        return [slot for slot in borders if slot in range_]

    def of(self, slot: int) -> int:
        """Return the level at a slot of the segment."""
        return max((level.number for level in self._levels if slot in level.range), default=-1)

    def has_all(self, last: int) -> bool:
        """Whether all rows up to a number are stored, for any slots."""
        return last <= self._lowest

    def has_none(self, first: int) -> bool:
        """Whether no row from a number on is stored, for any slot."""
        return first > self._highest

    def entries(self, numbers: Sequence[int], slots: Sequence[int]) -> list[Sequence[int]]:
        """Return the rows to send, by their index, as one list for each entry; the numbers ascend."""
        missing = [
            index
            for index, (number, slot) in enumerate(zip(numbers, slots, strict=True))
            if number > self.of(slot)
        ]
        return [missing] if missing else []


Marks = Mapping[int, int]
"""The end of each active segment, by its id."""
