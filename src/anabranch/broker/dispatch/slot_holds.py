"""Slots that were stopped on purpose: paused until a time, or parked until an operator releases them."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from anabranch.broker.dispatch.lanes import LaneReason


class Hold(NamedTuple):
    """Why and how long a slot is stopped."""

    reason: LaneReason
    since_ms: int
    until_ms: int = 0
    """Wall time at which the slot goes on; 0 if only a release ends the hold."""
    note: str = ""


class SlotHolds:
    """The holds of one subscription; a slot has one at most."""

    def __init__(self) -> None:
        self._holds: dict[int, Hold] = {}
        self._ends: list[tuple[int, int]] = []
        """Heap of (time, slot); stale pairs are skipped when met."""

    def __contains__(self, slot: int) -> bool:
        return slot in self._holds

    def __iter__(self) -> Iterator[int]:
        return iter(self._holds)

    def __len__(self) -> int:
        return len(self._holds)

    def count(self, reason: LaneReason) -> int:
        """The slots that are stopped for this reason."""
        return sum(hold.reason is reason for hold in self._holds.values())

    def get(self, slot: int) -> Hold | None:
        return self._holds.get(slot)

    def put(self, slot: int, hold: Hold) -> None:
        """Stop a slot; a second hold replaces the first."""
        self._holds[slot] = hold
        if hold.until_ms:
            heappush(self._ends, (hold.until_ms, slot))

    def pop(self, slot: int) -> Hold | None:
        return self._holds.pop(slot, None)

    def clear(self) -> None:
        self._holds.clear()
        self._ends.clear()

    @property
    def next_end_ms(self) -> int | None:
        """When the next hold ends by itself; None if none does."""
        while self._ends:
            until_ms, slot = self._ends[0]
            hold = self._holds.get(slot)
            if hold is not None and hold.until_ms == until_ms:
                return until_ms
            heappop(self._ends)
        return None

    def pop_due(self, now_ms: int) -> list[int]:
        """End the holds whose time has come; returns their slots.

        A hold that began later than now ends too: the clock was set back, and the pause would take longer
        than its caller wanted.
        """
        due: list[int] = []
        while (end_ms := self.next_end_ms) is not None:
            slot = self._ends[0][1]
            if self._holds[slot].since_ms <= now_ms < end_ms:
                break
            heappop(self._ends)
            del self._holds[slot]
            due.append(slot)
        return due
