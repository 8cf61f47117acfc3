"""Laws of lanes under any mix of reads, permits, acks, redeliveries, joins, leaves, pauses and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from anabranch.broker.dispatch.keyed import KeyedDispatch
from anabranch.broker.dispatch.keyed_strategies import ByLanes
from anabranch.broker.dispatch.lanes import LaneReason
from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.dispatch.selectors import AutoSplit
from anabranch.broker.dispatch.slot_stops import SlotStop
from anabranch.broker.serving.lanes.lane_keeping import LaneKeeper
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import Entry
from anabranch.model.acks import AckSet
from anabranch.model.ids import Position

SLOTS = [1, 17_000, 33_000, 50_000]


@dataclass
class Wire:
    writable: bool = True


class SlotLog:
    """A log of which only the slots matter."""

    def __init__(self) -> None:
        self.slots: list[int] = []

    @property
    def end(self) -> int:
        return len(self.slots)

    def read_each(self, ordinals: Sequence[int], *, scan: bool) -> list[Entry]:
        # A read may end early.
        return [Entry(Position(1, n), n, n, 1, 0, b"") for n in ordinals[:3]]


class LaneMachine(RuleBasedStateMachine):
    """Drives the dispatch and the note of lanes as a subscription does, and checks each delivery."""

    def __init__(self) -> None:
        super().__init__()
        self.log = SlotLog()
        self.cursor = Cursor("sub", AckSet())
        self.joined = 0
        self.start()

    def start(self) -> None:
        """Begin a life of the broker: only the cursor and its note are left of the last one."""
        clock = SimpleNamespace(wall_ms=lambda: 0)
        path: Any = SimpleNamespace(cursor=self.cursor, source=self.log, keyed=ByLanes(), clock=clock)
        self.dispatch = KeyedDispatch()
        self.keeper = LaneKeeper(path, self.dispatch, None)
        self.next = self.keeper.restore()
        self.receivers: list[Receiver] = []
        self.out: dict[int, Receiver] = {}
        self.overdue: set[int] = set()

    # Events.

    @rule(slots=st.lists(st.sampled_from(SLOTS), max_size=5))
    def append(self, slots: list[int]) -> None:
        self.log.slots += slots

    @rule(count=st.integers(1, 6))
    def read(self, count: int) -> None:
        for _ in range(count):
            ordinal = self.next = self.cursor.acks.next_pending(self.next)
            if ordinal >= self.log.end:
                return
            self.next += 1
            slot = self.log.slots[ordinal]
            receiver = self.dispatch.offer(ordinal, slot, 1)
            if receiver is not None:
                self.went_out(receiver, ordinal)

    @precondition(lambda self: self.keeper.scanning)
    @rule()
    def scan(self) -> None:
        self.keeper.scan_turn(
            lambda entry: self.dispatch.let_wait(entry.ordinal, self.log.slots[entry.ordinal])
        )

    @rule(permits=st.integers(0, 5))
    def join(self, permits: int) -> None:
        if len(self.receivers) < 3:
            self.joined += 1
            self.receivers.append(Receiver(f"c{self.joined}", self.joined, Wire()))
            self.receivers[-1].permits = permits
            self.dispatch.change(AutoSplit(self.receivers))

    @precondition(lambda self: self.receivers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.receivers))
        self.receivers.remove(gone)
        self.take_back([ordinal for ordinal, receiver in self.out.items() if receiver is gone])
        self.dispatch.change(AutoSplit(self.receivers))

    @precondition(lambda self: self.receivers)
    @rule(data=st.data(), permits=st.integers(1, 4), cold=st.sets(st.sampled_from(SLOTS)))
    def deliver(self, data: st.DataObject, permits: int, cold: set[int]) -> None:
        """Give permits, and deliver from lanes except from those whose entries are not in memory."""
        data.draw(st.sampled_from(self.receivers)).permits += permits
        self.take(cold)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        self.acknowledge(data.draw(st.sampled_from(list(self.out))))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        """Reject an entry as the subscription does: the later entries of its slot come back with it."""
        named = data.draw(st.sampled_from(list(self.out)))
        slot = self.log.slots[named]
        self.take_back([one for one in self.out if one >= named and self.log.slots[one] == slot])

    @rule(slot=st.sampled_from(SLOTS))
    def park(self, slot: int) -> None:
        self.dispatch.stop(slot, SlotStop(LaneReason.PARKED, 0))

    @rule(slot=st.sampled_from(SLOTS))
    def release(self, slot: int) -> None:
        self.dispatch.release(slot)

    @precondition(lambda self: self.out.keys() - self.overdue)
    @rule(data=st.data())
    def let_one_be_overdue(self, data: st.DataObject) -> None:
        ordinal = data.draw(st.sampled_from(sorted(self.out.keys() - self.overdue)))
        self.overdue.add(ordinal)
        self.dispatch.count_overdue(self.log.slots[ordinal], 0)
        self.dispatch.stop_overdue()

    @rule()
    def write_note(self) -> None:
        self.keeper.write(self.next, ((ordinal, self.log.slots[ordinal]) for ordinal in sorted(self.out)))

    @rule(noted=st.booleans())
    def restart(self, noted: bool) -> None:
        if noted:
            self.write_note()
        self.start()

    # Consequences.

    def take(self, cold: set[int]) -> None:
        for handout in self.dispatch.take(4):
            receiver, ordinal, slot = handout
            if ordinal in self.cursor.acks:
                self.dispatch.drop(handout)
            elif slot in cold or not receiver.ready:
                cold = cold | {slot}
                self.dispatch.put_back((handout,))
            else:
                self.dispatch.hand_out(handout, 1)
                self.went_out(receiver, ordinal)

    def went_out(self, receiver: Receiver, ordinal: int) -> None:
        slot = self.log.slots[ordinal]
        assert receiver in self.receivers
        assert ordinal not in self.out
        assert ordinal not in self.cursor.acks
        assert slot not in self.dispatch.stops, "a parked slot waits"
        same = [one for one in range(len(self.log.slots)) if self.log.slots[one] == slot]
        holders = {id(self.out[one]) for one in same if one in self.out}
        assert holders <= {id(receiver)}, "a slot has one holder"
        earlier = [one for one in same if one < ordinal and one not in self.cursor.acks]
        assert all(one in self.out for one in earlier), "no earlier entry of the slot waits"
        self.out[ordinal] = receiver

    def settle(self, ordinal: int) -> None:
        self.out.pop(ordinal).settle(1)
        if ordinal in self.overdue:
            self.overdue.remove(ordinal)
            self.dispatch.uncount_overdue(self.log.slots[ordinal])

    def acknowledge(self, ordinal: int) -> None:
        self.settle(ordinal)
        self.cursor.acknowledge([ordinal])
        self.dispatch.settle(self.log.slots[ordinal])

    def take_back(self, ordinals: list[int]) -> None:
        for ordinal in ordinals:
            self.settle(ordinal)
        self.dispatch.take_back((ordinal, self.log.slots[ordinal]) for ordinal in sorted(ordinals))

    def teardown(self) -> None:
        """With permits and acknowledgements every entry goes out."""
        for slot in SLOTS:
            self.dispatch.release(slot)
        if not self.receivers:
            self.join(0)
        for _ in range(4 * len(self.log.slots) + 20):
            if self.keeper.scanning:
                self.scan()
            for receiver in self.receivers:
                receiver.permits = 100
            self.read(10)
            self.take(set())
            for ordinal in list(self.out):
                self.acknowledge(ordinal)
        assert self.cursor.acks.mark >= len(self.log.slots)
        assert self.dispatch.waiting == 0
        assert len(self.dispatch.lanes) == 0
        assert self.dispatch.lanes.memory_bytes == 0


TestLanes = LaneMachine.TestCase
