"""Entries that are delivered and not acknowledged, and those among them that are overdue.

Deliveries of about the same time share a bitmap, so that the overdue ones are found by one intersection and
no step looks at every entry.

For example, with 30,000 ms allowed a step is 3,000 ms. Entries 7 and 8, delivered at 0 and 2,999, share a
bitmap, and 9, delivered at 3,000, starts the next one. 8 is acknowledged. `next_ms` is 33,000, when even the
youngest entry that the first bitmap may have is overdue; `expire(33_000)` returns 7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pyroaring import BitMap64

STEPS = 10
"""Parts of the allowed time in which deliveries count as simultaneous."""


class OutstandingAges:
    """The outstanding entries of one keyed subscription, and when each of them is overdue."""

    def __init__(self, unacked_ms: int) -> None:
        """An entry is overdue after `unacked_ms`; never if that is 0."""
        self.ordinals = BitMap64()
        self.overdue = BitMap64()
        self._unacked_ms = unacked_ms
        self._ages: deque[tuple[int, BitMap64]] = deque()
        """(Time at which they are overdue, ordinals), oldest first; also settled ordinals."""

    def add(self, ordinal: int, now_ms: int) -> None:
        """Note a delivery."""
        self.ordinals.add(ordinal)
        if self._unacked_ms:
            due_ms = now_ms + self._unacked_ms
            if not self._ages or due_ms >= self._ages[-1][0] + self._unacked_ms // STEPS:
                self._ages.append((due_ms, BitMap64()))
            self._ages[-1][1].add(ordinal)

    def remove(self, ordinal: int) -> bool:
        """Note that an entry was acknowledged or came back; whether it was overdue."""
        self.ordinals.discard(ordinal)
        if ordinal in self.overdue:
            self.overdue.discard(ordinal)
            return True
        return False

    def clear(self) -> None:
        self.ordinals.clear()
        self.overdue.clear()
        self._ages.clear()

    def expire(self, now_ms: int) -> Iterable[int]:
        """Return the entries that became overdue since the last call."""
        found = BitMap64()
        # The youngest entry of a bitmap is a step younger than the oldest one.
        while self._ages and self._ages[0][0] + self._unacked_ms // STEPS <= now_ms:
            found |= self._ages.popleft()[1] & self.ordinals
        found -= self.overdue
        self.overdue |= found
        return found

    @property
    def next_ms(self) -> int | None:
        """When `expire` is to be called; None if no entry was delivered for long."""
        return self._ages[0][0] + self._unacked_ms // STEPS if self._ages else None
