"""Relief of busy receivers, on virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.dispatch.relief import AFTER_MS, MOVES_MAX, PERIOD_MS, REST_MS, Relief, WaitingSlot
from anabranch.broker.dispatch.selectors import Buckets

START = 1_700_000_000_000


@dataclass
class ReliefLink:
    writable: bool = True


class Slots:
    """Slots with entries that are not settled."""

    def __init__(self, *outstanding: int) -> None:
        self.outstanding = set(outstanding)

    def is_idle(self, slot: int) -> bool:
        return slot not in self.outstanding


def receiver(name: str, permits: int = 0) -> Receiver:
    made = Receiver(name, 1, ReliefLink())
    made.permits = permits
    return made


class BusyPair:
    """Two receivers of 64 buckets: `busy` owns the lower half and takes nothing, `free` has room."""

    def __init__(self) -> None:
        self.busy, self.free = receiver("busy"), receiver("free", 100)
        self.relief = Relief(Buckets(64, [self.busy, self.free]))

    def relieve(self, slots: range, now_ms: int, *, since_ms: int = START, idle: bool = True) -> list[int]:
        waiting = [WaitingSlot(slot, self.busy, since_ms, idle and slot != slots[0]) for slot in slots]
        return [move.slot for move in self.relief.relieve(waiting, [self.busy, self.free], now_ms)]


@pytest.fixture
def pair() -> BusyPair:
    return BusyPair()


def test_other_slots_of_a_busy_receiver_go_to_one_with_room(pair: BusyPair) -> None:
    assert pair.relieve(range(4), START + AFTER_MS) == [1, 2, 3]
    assert [pair.relief.owner(slot) for slot in range(5)] == [pair.busy, *[pair.free] * 3, pair.busy]
    assert str(next(iter(pair.relief.moves))) == (
        "slot 1 goes to free for a while, because its consumer busy is busy with slot 0"
    )
    assert pair.relief.count == 3


def test_a_short_wait_and_outstanding_entries_move_nothing(pair: BusyPair) -> None:
    assert pair.relieve(range(4), START + AFTER_MS - 1) == []
    assert pair.relieve(range(4), START + AFTER_MS, idle=False) == []
    assert pair.relieve(range(1), START + AFTER_MS) == [], "the stuck slot itself stays"
    assert len(pair.relief) == 0


def test_nobody_takes_slots_without_room(pair: BusyPair) -> None:
    pair.free.permits = 0
    assert pair.relieve(range(4), START + AFTER_MS) == []


def test_moves_are_few_at_a_time(pair: BusyPair) -> None:
    now = START + AFTER_MS
    assert pair.relieve(range(30), now) == list(range(1, 1 + MOVES_MAX))
    assert pair.relieve(range(30), now + PERIOD_MS - 1) == []
    waiting = range(10, 30)
    assert pair.relieve(waiting, now + PERIOD_MS) == list(range(11, 11 + MOVES_MAX))


def test_a_slot_returns_when_its_owner_has_room_and_nothing_is_outstanding(pair: BusyPair) -> None:
    now = START + AFTER_MS
    pair.relieve(range(3), now)
    later = now + REST_MS
    assert pair.relief.give_back([], Slots(), later) == [], "its owner takes nothing still"
    pair.busy.permits = 10
    assert pair.relief.give_back([pair.busy], Slots(), later) == [], "its owner has a stuck slot still"
    assert pair.relief.give_back([], Slots(1), later - 1) == [], "a slot that moved rests first"
    assert pair.relief.give_back([], Slots(1), later) == [2]
    assert pair.relief.owner(2) is pair.busy
    pair.busy.permits = 0
    assert pair.relieve(range(0, 3, 2), later + REST_MS - 1) == [], "and it rests again"
    assert pair.relief.owner(1) is pair.free


def test_every_slot_belongs_to_its_owner_when_consumers_change(pair: BusyPair) -> None:
    pair.relieve(range(4), START + AFTER_MS)
    pair.relief.change(Buckets(64, [pair.busy]))
    assert {pair.relief.owner(slot) for slot in range(64)} == {pair.busy}


def test_a_clock_that_jumps_back_does_not_stop_relief(pair: BusyPair) -> None:
    assert pair.relieve(range(12), START + AFTER_MS + 10**9) != []
    assert pair.relieve(range(20, 24), START + AFTER_MS) == [21, 22, 23]
