"""Positions inside one segment by slot: members of a checkpoint group share a segment by buckets.

A slot is a value of the bucket half of a key's hash. Bucket boundaries differ between segments, so positions
name ranges of slots. This module knows nothing of consumers or of how a checkpoint is stored.

Example: all slots of segment 1 are at 3:10 (ledger 3, entry 10). A member that reads slots 0 to 0x7fff
commits 3:40, so these slots move to 3:40 and the others stay. The lowest position is still 3:10: other
clients, which know one position per segment, continue there and skip nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from anabranch.model.drains import ALL, Ranges, intersection, union
from anabranch.model.ids import EARLIEST, LATEST, MessageId, Position
from anabranch.model.ranges import FULL, HashRange

UNKNOWN = Position(-2, -2)
"""The position of slots whose position is not known; it sorts before every other position."""

Part = tuple[HashRange, MessageId]


@dataclass(frozen=True, slots=True)
class SlotPositions:
    """The last message that is covered, for each slot of a segment."""

    parts: tuple[Part, ...]
    """Ascending ranges that tile all slots; neighbours have different positions."""

    @staticmethod
    def whole(id_: MessageId) -> SlotPositions:
        """Return all slots at one position."""
        return SlotPositions(((FULL, id_),))

    @staticmethod
    def unknown(segment: int) -> SlotPositions:
        return SlotPositions.whole(MessageId(segment, *UNKNOWN))

    @staticmethod
    def tiling(parts: Iterable[Part]) -> SlotPositions:
        """Join neighbours at the same position; the ranges must tile all slots in ascending order."""
        found: list[Part] = []
        for range_, id_ in parts:
            if found and found[-1][1] == id_:
                found[-1] = (HashRange(found[-1][0].start, range_.end), found[-1][1])
            else:
                found.append((range_, id_))
        return SlotPositions(tuple(found))

    @property
    def is_whole(self) -> bool:
        return len(self.parts) == 1

    @property
    def lowest(self) -> MessageId:
        """The position before which every slot is covered."""
        return min(id_ for _, id_ in self.parts)

    def of(self, slot: int) -> MessageId:
        """Return the position of one slot."""
        at = bisect_right(self.parts, slot, key=lambda part: part[0].start) - 1
        return self.parts[at][1]

    def lowest_in(self, slots: Ranges) -> MessageId | None:
        """Return the lowest position of these slots; None for no slots."""
        return min((id_ for range_, id_ in self.parts if intersection((range_,), slots)), default=None)

    def finished(self) -> Ranges:
        """Return the slots that are read to the end of the segment."""
        return self.where(lambda id_: id_.position == LATEST)

    def where(self, wanted: Callable[[MessageId], bool]) -> Ranges:
        """Return the slots whose position satisfies the condition."""
        return union(range_ for range_, id_ in self.parts if wanted(id_))

    def placed(self, slots: Ranges, id_: MessageId) -> SlotPositions:
        """Return the positions after these slots have moved to a position."""
        return self.replaced(slots, SlotPositions.whole(id_))

    def raised(self, slots: Ranges, id_: MessageId) -> SlotPositions:
        """Return the positions after these slots have moved up to a position; later ones stay."""
        return self.replaced(slots, self.merged(SlotPositions.whole(id_)))

    def replaced(self, slots: Ranges, other: SlotPositions) -> SlotPositions:
        """Return the positions of `other` for these slots, and these positions for all others."""
        if slots == ALL:
            return other
        if not slots:
            return self
        cut = {range_.start: True for range_ in slots}
        cut.update((range_.end + 1, False) for range_ in slots if range_.end + 1 not in cut)
        starts = sorted({0, *cut, *self._starts(), *other._starts()} - {FULL.end + 1})
        parts, inside = [], False
        for start, end in zip(starts, (*(start - 1 for start in starts[1:]), FULL.end), strict=True):
            inside = cut.get(start, inside)
            parts.append((HashRange(start, end), (other if inside else self).of(start)))
        return SlotPositions.tiling(parts)

    def merged(self, other: SlotPositions) -> SlotPositions:
        """Return the later position of each slot."""
        return self._joined(other, max)

    def exceeding(self, other: SlotPositions) -> Ranges:
        """Return the slots whose position is later than in `other`."""
        starts = sorted({*self._starts(), *other._starts()})
        ends = (*(start - 1 for start in starts[1:]), FULL.end)
        spans = zip(starts, ends, strict=True)
        return union(HashRange(a, b) for a, b in spans if self.of(a) > other.of(a))

    def known(self, segment: int) -> SlotPositions:
        """Return the same positions, with unknown ones replaced by the beginning of the segment."""
        begin = MessageId(segment, *EARLIEST)
        return SlotPositions.tiling(
            (range_, begin if id_.position == UNKNOWN else id_) for range_, id_ in self.parts
        )

    def _joined(
        self, other: SlotPositions, choose: Callable[[MessageId, MessageId], MessageId]
    ) -> SlotPositions:
        starts = sorted({*self._starts(), *other._starts()})
        ends = (*(start - 1 for start in starts[1:]), FULL.end)
        return SlotPositions.tiling(
            (HashRange(start, end), choose(self.of(start), other.of(start)))
            for start, end in zip(starts, ends, strict=True)
        )

    def _starts(self) -> Iterable[int]:
        return (range_.start for range_, _ in self.parts)
