"""The numbers of a producer's exclusive access to segments, which it tells their successors. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.model.layout import Segment


class HeldEpochs:
    """The number of the access to each segment that the producer has, or had to the segments before it.

    A broker refuses a producer whose number is lower than that of the segment, because a later producer took
    the access; a segment begins with the highest number of its parents.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[Segment, int]] = {}

    def of(self, segment: Segment) -> int | None:
        held = self._held.get(segment.id)
        return None if held is None else held[1]

    def note(self, segment: Segment, number: int) -> None:
        """Take the number that the broker of a segment told."""
        self._held[segment.id] = segment, number

    def follow(self, active: Sequence[Segment]) -> None:
        """Hand the numbers of segments that are sealed to their successors, to each the highest."""
        listed = {segment.id for segment in active}
        left = [self._held.pop(id_) for id_ in self._held.keys() - listed]
        for segment in active if left else ():
            before = [number for sealed, number in left if sealed.shares_keys(segment)]
            if before:
                self.note(segment, max(*before, self.of(segment) or 0))
