"""A producer's exclusive access to segments: the epochs that prove it, and the end of it. Pure.

A broker gives each exclusive producer of a segment an epoch, a number that rises with every new holder. It
refuses a producer whose epoch is lower than the segment's, because a later producer took the access. A new
segment begins with the highest epoch of its parents.

Example: a producer holds segment 1 with epoch 7 and segment 2 with epoch 4. A merge seals both and makes
segment 3. The producer registers there with epoch 7. If another producer has taken the access meanwhile,
segment 3 has epoch 8, the broker refuses epoch 7, and this producer is fenced for good.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.errors import ProducerFencedError
from anabranch.model.layout import Segment


class ExclusiveAccess:
    """The epoch of each segment that the producer holds, and whether another producer has taken over."""

    def __init__(self) -> None:
        self.fenced: ProducerFencedError | None = None
        """The loss of exclusive access to another producer, which is final."""
        self._held: dict[int, tuple[Segment, int]] = {}

    def epoch_of(self, segment: Segment) -> int | None:
        """Return the epoch that the producer holds for a segment, or None before it got one."""
        held = self._held.get(segment.id)
        return None if held is None else held[1]

    def granted(self, segment: Segment, epoch: int) -> None:
        """Take the epoch that the broker of a segment gave this producer."""
        self._held[segment.id] = segment, epoch

    def refused(self, segment: Segment, error: ProducerFencedError) -> None:
        """Note that another producer took the access, if this one had it.

        A producer that never had the access may try again. One that had it may not: a new registration would
        take the access back from the producer that replaced it.
        """
        if self.epoch_of(segment) is not None:
            self.fenced = error

    def check(self) -> None:
        """Raise ProducerFencedError once another producer has taken the access."""
        if self.fenced is not None:
            raise ProducerFencedError(str(self.fenced))

    def follow(self, active: Sequence[Segment]) -> None:
        """Hand the epochs of sealed segments to their successors, to each the highest of its parents."""
        listed = {segment.id for segment in active}
        left = [self._held.pop(id_) for id_ in self._held.keys() - listed]
        for segment in active if left else ():
            before = [epoch for sealed, epoch in left if sealed.shares_keys(segment)]
            if before:
                self.granted(segment, max(*before, self.epoch_of(segment) or 0))
