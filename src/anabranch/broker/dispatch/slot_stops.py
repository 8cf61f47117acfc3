"""Slots that were stopped on purpose: paused until a time, or parked until an operator releases them.

For example, at 1,000 ms slot 3 is paused until 6,000 and slot 5 is parked. `next_end_ms` is 6,000.
`pop_due(5_999)` returns nothing, `pop_due(6_000)` returns [3], and slot 5 stays. If the clock is set back to
0 first, `pop_due(0)` returns [3] at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from anabranch.broker.dispatch.lanes import LaneReason


class SlotStop(NamedTuple):
    """Why and how long a slot is stopped."""

    reason: LaneReason
    since_ms: int
    until_ms: int = 0
    """Wall time at which the slot goes on; 0 if only a release ends the stop."""
    note: str = ""


class SlotStops:
    """The stops of one subscription; a slot has one at most."""

    def __init__(self) -> None:
        self._stops: dict[int, SlotStop] = {}
        self._ends: list[tuple[int, int]] = []
        """Heap of (time, slot); stale pairs are skipped when met."""

    def __contains__(self, slot: int) -> bool:
        return slot in self._stops

    def __iter__(self) -> Iterator[int]:
        return iter(self._stops)

    def __len__(self) -> int:
        return len(self._stops)

    def count(self, reason: LaneReason) -> int:
        """Return how many slots are stopped for this reason."""
        return sum(stop.reason is reason for stop in self._stops.values())

    def get(self, slot: int) -> SlotStop | None:
        return self._stops.get(slot)

    def put(self, slot: int, stop: SlotStop) -> None:
        """Stop a slot; a second stop replaces the first."""
        self._stops[slot] = stop
        if stop.until_ms:
            heappush(self._ends, (stop.until_ms, slot))

    def pop(self, slot: int) -> SlotStop | None:
        return self._stops.pop(slot, None)

    def clear(self) -> None:
        self._stops.clear()
        self._ends.clear()

    @property
    def next_end_ms(self) -> int | None:
        """When the next stop ends by itself; None if none does."""
        while self._ends:
            until_ms, slot = self._ends[0]
            stop = self._stops.get(slot)
            if stop is not None and stop.until_ms == until_ms:
                return until_ms
            heappop(self._ends)
        return None

    def pop_due(self, now_ms: int) -> list[int]:
        """End the stops whose time has come; returns their slots.

        A stop that began later than now ends too: the clock was set back, and the pause would take longer
        than its caller wanted.
        """
        due: list[int] = []
        while (end_ms := self.next_end_ms) is not None:
            slot = self._ends[0][1]
            if self._stops[slot].since_ms <= now_ms < end_ms:
                break
            heappop(self._ends)
            del self._stops[slot]
            due.append(slot)
        return due
