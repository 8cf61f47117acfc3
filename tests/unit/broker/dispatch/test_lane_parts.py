"""The parts of lanes: bitmaps of waiting entries, holds, overdue entries, and the note of a cursor."""

from __future__ import annotations

import random

from anabranch.broker.dispatch.keyed_strategies import ByLanes, ByWindow, keyed_strategy
from anabranch.broker.dispatch.lane_notes import LaneNote, SlotNote, decode_note
from anabranch.broker.dispatch.lanes import LANE_BYTES, LaneReason, Lanes
from anabranch.broker.dispatch.outstanding import OutstandingAges
from anabranch.broker.dispatch.slot_stops import SlotStop, SlotStops
from anabranch.config.broker import BrokerConfig


def test_entries_leave_a_lane_in_order_however_they_came() -> None:
    lanes, ordinals = Lanes(), list(range(0, 400_000, 997))
    random.Random(3).shuffle(ordinals)
    for ordinal in ordinals:
        lanes.add(7, ordinal, 100, 5)
    assert lanes.waiting == len(ordinals)
    lane = lanes.get(7)
    assert lane is not None
    assert lane.size_bytes == 100 * len(ordinals)
    assert lane.first(3) == [0, 997, 1994]
    assert [lanes.pop(7) for _ in ordinals] == sorted(ordinals)
    lanes.close_if_empty(7)
    assert (len(lanes), lanes.waiting, lanes.memory_bytes) == (0, 0, 0)


def test_the_estimate_of_memory_does_not_grow_with_entries_that_come_and_go() -> None:
    lanes = Lanes()
    for ordinal in range(0, 1_000_000, 1000):
        lanes.add(1, ordinal, 0, 0)
    before = lanes.memory_bytes
    for _ in range(1000):
        back = [lanes.pop(1) for _ in range(3)]
        for ordinal in back:
            lanes.add(1, ordinal, 0, 0)
    assert lanes.memory_bytes == before
    assert LANE_BYTES < before < 10_000


def test_a_later_hold_replaces_the_first_and_ends_at_its_own_time() -> None:
    holds = SlotStops()
    holds.put(1, SlotStop(LaneReason.RETRY, 0, until_ms=10))
    holds.put(2, SlotStop(LaneReason.RETRY, 0, until_ms=20))
    holds.put(1, SlotStop(LaneReason.RETRY, 0, until_ms=30))
    holds.put(3, SlotStop(LaneReason.PARKED, 0))
    assert holds.next_end_ms == 20
    assert holds.pop_due(25) == [2]
    holds.put(1, SlotStop(LaneReason.PARKED, 0))
    assert holds.next_end_ms is None
    assert holds.pop_due(10**6) == []
    assert sorted(holds) == [1, 3]


def test_an_entry_is_overdue_once_and_not_before_its_time() -> None:
    outstanding = OutstandingAges(unacked_ms=1000)
    for now_ms in range(0, 2000, 10):
        outstanding.add(now_ms, now_ms)
        assert all(now_ms - ordinal >= 1000 for ordinal in outstanding.expire(now_ms))
    assert outstanding.remove(0)
    assert not outstanding.remove(1990)
    assert set(outstanding.overdue) <= set(range(10, 1000, 10))
    late = set(outstanding.overdue)
    assert set(outstanding.expire(10_000)) == set(range(10, 1990, 10)) - late
    assert list(outstanding.expire(20_000)) == []
    assert outstanding.next_ms is None
    assert len(outstanding.overdue) == 198


def test_entries_that_are_acknowledged_in_time_leave_nothing_behind() -> None:
    outstanding = OutstandingAges(unacked_ms=1000)
    for now_ms in range(0, 100_000, 100):
        outstanding.add(now_ms, now_ms)
        outstanding.remove(now_ms)
        due_ms = outstanding.next_ms
        assert due_ms is not None
        assert due_ms >= now_ms - 100, "old times are forgotten although nothing is outstanding"
        assert list(outstanding.expire(now_ms)) == []
    assert list(outstanding.expire(200_000)) == []
    assert outstanding.next_ms is None


def test_entries_are_never_overdue_without_a_time() -> None:
    outstanding = OutstandingAges(unacked_ms=0)
    outstanding.add(1, 0)
    assert outstanding.next_ms is None
    assert list(outstanding.expire(10**9)) == []


def test_a_note_is_read_as_it_was_written() -> None:
    slots = (
        SlotNote(3, LaneReason.PARKED, 17, stopped=True, text="broken"),
        SlotNote(9, LaneReason.BUSY, 18),
    )
    note = LaneNote(floor=12, boundaries=(5, 70), slots=slots)
    assert decode_note(note.encode()) == note


def test_bytes_that_are_no_note_say_nothing() -> None:
    note = LaneNote(floor=12, slots=(SlotNote(3, LaneReason.BUSY, 17),)).encode()
    for data in (b"", b"\xff" * 9, note[:-1], b"delays1\n" + note, note.replace(b"busy", b"lazy")):
        assert decode_note(data) == LaneNote()
    assert LaneNote(floor=12).encode() == b""


def test_each_strategy_stops_at_its_own_bound() -> None:
    lanes = Lanes()
    by_lanes, by_memory = ByLanes(lanes_max=3), ByLanes(memory_bytes_max=4 * LANE_BYTES)
    for slot in range(5):
        assert (by_lanes.bound(lanes) is None) == (slot < 3)
        assert (by_memory.bound(lanes) is None) == (slot < 4)
        lanes.add(slot, slot, 0, 0)
    assert by_lanes.room(lanes) == by_memory.room(lanes) == 0
    assert "lane_memory_bytes" in str(by_memory.bound(lanes))
    window = ByWindow()
    assert window.room(lanes) == 9995
    for ordinal in range(5, 10_000):
        lanes.add(0, ordinal, 0, 0)
    assert window.room(lanes) == 0
    assert window.bound(lanes) is not None


def test_the_configuration_names_the_strategy() -> None:
    assert isinstance(keyed_strategy(BrokerConfig(keyed_dispatch="window")), ByWindow)
    chosen = keyed_strategy(BrokerConfig(lane_max=7, lane_unacked_s=2.5))
    assert isinstance(chosen, ByLanes)
    assert (chosen.lanes_max, chosen.unacked_ms) == (7, 2500)
