"""A topic as the planner sees it: its layout, the extent of each segment, and slices of segments.

Plain values. This module must not know how the values are obtained or what is decided with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.model.layout import Layout
from anabranch.model.ranges import FULL, HashRange


class SegmentSpan(NamedTuple):
    """The stored positions of a segment: from `first` up to `next`, which is not included."""

    first: int
    next: int
    sealed: bool
    """Whether `next` is final."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A layout, and extents that were read after it, so those of its sealed segments are final."""

    layout: Layout
    tails: Mapping[int, SegmentSpan]

    def finished(self, segment: int, position: int) -> bool:
        """Whether no message can ever be stored at or after `position`."""
        tail = self.tails[segment]
        return tail.sealed and position >= tail.next


class Slice(NamedTuple):
    """Messages `lo` up to `hi` of one segment; `hi` is not included."""

    topic: str
    segment: int
    range: HashRange
    lo: int
    hi: int
    routed: bool = True
    """Whether all keys lie in the range; a classic topic may hold any key."""

    @property
    def rows(self) -> int:
        return self.hi - self.lo


@dataclass(frozen=True, slots=True)
class Sizes:
    """Estimated bytes of one message, by topic and segment."""

    known: Mapping[tuple[str, int], float] = field(default_factory=dict)
    otherwise: float = 1024.0

    def of(self, topic: str, segment: int) -> float:
        return max(1.0, self.known.get((topic, segment), self.otherwise))

    def total(self, slices: Iterable[Slice]) -> float:
        return sum(part.rows * self.of(part.topic, part.segment) for part in slices)


@dataclass(frozen=True, slots=True)
class Limit:
    """The messages that one micro-batch may take; None means no limit."""

    rows: int | None = None
    bytes: int | None = None

    @property
    def reached(self) -> bool:
        return (self.rows is not None and self.rows <= 0) or (self.bytes is not None and self.bytes <= 0)

    def less(self, rows: int, size_bytes: int) -> Limit:
        """Return the limit that is left after so many messages of so many bytes."""
        return Limit(
            None if self.rows is None else self.rows - rows,
            None if self.bytes is None else self.bytes - size_bytes,
        )


Lost = Callable[[str], None]
"""Receives the description of lost messages; raises, or logs it and returns."""

NO_LIMIT = Limit()

UNKNOWN_SIZES = Sizes()


def uncovered(ranges: Iterable[HashRange]) -> list[HashRange]:
    """Return the parts of the hash space that no range covers."""
    found = []
    expected = FULL.start
    for part in sorted(ranges):
        if part.start > expected:
            found.append(HashRange(expected, part.start - 1))
        expected = max(expected, part.end + 1)
    if expected <= FULL.end:
        found.append(HashRange(expected, FULL.end))
    return found
