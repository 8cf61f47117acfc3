"""Hash ranges: split, join, neighbours.

A range is a run of the 65,536 slots of the high half of a key hash; both ends belong to it.
This module knows nothing of segments, names or how a key becomes a hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from anabranch.errors import LayoutError, counted

HASH_SLOTS = 65536
LAST_SLOT = HASH_SLOTS - 1


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """Slots `start` to `end`, both included."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= LAST_SLOT:
            raise LayoutError(
                f"a hash range needs 0 <= start <= end <= {LAST_SLOT}, not start {self.start}, end {self.end}"
            )

    def __str__(self) -> str:
        return f"{self.start:04x}-{self.end:04x}"

    def __contains__(self, slot: int) -> bool:
        return self.start <= slot <= self.end

    @property
    def width(self) -> int:
        """Number of slots."""
        return self.end - self.start + 1

    def overlaps(self, other: HashRange) -> bool:
        """Return whether some slot belongs to both."""
        return self.start <= other.end and other.start <= self.end

    def touches(self, other: HashRange) -> bool:
        """Return whether the two are neighbours: one begins right after the other ends."""
        return self.end + 1 == other.start or other.end + 1 == self.start

    def split(self, points: Sequence[int]) -> tuple[HashRange, ...]:
        """Cut the range; each point is the first slot of a part after the first one."""
        if not points:
            raise LayoutError(f"a split of {self} needs at least one point")
        before = self.start
        for point in points:
            if not before < point <= self.end:
                raise LayoutError(
                    f"split points of {self} must ascend within {self.start + 1} to {self.end}, "
                    f"not {', '.join(map(str, points))}"
                )
            before = point
        starts = (self.start, *points)
        ends = (*(point - 1 for point in points), self.end)
        return tuple(HashRange(start, end) for start, end in zip(starts, ends, strict=True))

    def halves(self) -> tuple[HashRange, HashRange]:
        """Cut in the middle; the lower half takes the odd slot."""
        lower, upper = self.parts(2)
        return lower, upper

    def parts(self, count: int) -> tuple[HashRange, ...]:
        """Cut into `count` parts whose widths differ by one slot at most."""
        if not 1 <= count <= self.width:
            raise LayoutError(
                f"{self} has {counted(self.width, 'slot')} and cannot be cut into {counted(count, 'part')}"
            )
        if count == 1:
            return (self,)
        return self.split([self.start - (-index * self.width // count) for index in range(1, count)])

    @staticmethod
    def join(ranges: Iterable[HashRange]) -> HashRange:
        """Return one range over neighbours given in ascending order."""
        given = tuple(ranges)
        if not given:
            raise LayoutError("a join needs at least one range")
        for left, right in pairwise(given):
            if left.end + 1 != right.start:
                raise LayoutError(f"{left} and {right} are not neighbours in ascending order")
        return HashRange(given[0].start, given[-1].end)

    @staticmethod
    def parse(text: str) -> HashRange:
        """Undo `str`: four lower-case hex digits, a dash, four more."""
        start, dash, end = text.partition("-")
        if dash and _is_slot(start) and _is_slot(end):
            return HashRange(int(start, 16), int(end, 16))
        raise LayoutError(f"a hash range is written like 0000-7fff, not {text!r}")


FULL = HashRange(0, LAST_SLOT)


def initial_ranges(count: int) -> tuple[HashRange, ...]:
    """Return equally wide ranges for a new topic; as in Pulsar, the last one takes the remaining slots."""
    if not 1 <= count <= HASH_SLOTS:
        raise LayoutError(f"a topic starts with 1 to {HASH_SLOTS} segments, not {count}")
    width = HASH_SLOTS // count
    if count == 1:
        return (FULL,)
    return FULL.split([index * width for index in range(1, count)])


def _is_slot(text: str) -> bool:
    return len(text) == 4 and all(digit in "0123456789abcdef" for digit in text)
