"""Slots that are paused until a time, or parked until an operator releases them."""

from __future__ import annotations

from anabranch.broker.dispatch.lanes import LaneReason
from anabranch.broker.dispatch.slot_stops import SlotStop, SlotStops

PARKED = SlotStop(LaneReason.PARKED, since_ms=1000)


def _paused(since_ms: int, until_ms: int) -> SlotStop:
    return SlotStop(LaneReason.RETRY, since_ms, until_ms)


def test_pauses_end_in_the_order_of_their_times() -> None:
    holds = SlotStops()
    holds.put(1, _paused(1000, 3000))
    holds.put(2, _paused(1000, 2000))
    holds.put(3, PARKED)
    assert holds.pop_due(1999) == []
    assert holds.pop_due(2000) == [2]
    assert holds.pop_due(9999) == [1]
    assert list(holds) == [3]


def test_a_pause_ends_when_the_clock_is_set_back_before_its_beginning() -> None:
    holds = SlotStops()
    holds.put(1, _paused(1_000_000, 1_000_500))
    holds.put(2, PARKED)
    assert holds.pop_due(400_000) == [1]
    assert list(holds) == [2]


def test_a_second_pause_replaces_the_first() -> None:
    holds = SlotStops()
    holds.put(1, _paused(1000, 2000))
    holds.put(1, _paused(1500, 4000))
    assert holds.pop_due(2000) == []
    assert holds.next_end_ms == 4000
