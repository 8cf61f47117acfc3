"""A slot stays in order through nacks, pauses, parks, releases, delays and relief of busy receivers."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from anabranch.broker.dispatch.keyed import KeyedDispatch
from anabranch.broker.dispatch.lanes import LaneReason
from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.dispatch.relief import AFTER_MS, REST_MS, Relief, WaitingSlot
from anabranch.broker.dispatch.selectors import AutoSplit, Buckets, Selector
from anabranch.broker.dispatch.slot_stops import SlotStop

SLOTS = 6
WAITS = st.sampled_from((1, 1000, AFTER_MS, REST_MS))


@dataclass
class RetryLink:
    writable: bool = True


class RetryMachine(RuleBasedStateMachine):
    """Drives dispatch as a subscription does; an entry may go out only next after all earlier of its slot."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_700_000_000_000
        self.dispatch = KeyedDispatch()
        self.receivers: list[Receiver] = []
        self.joined = 0
        self.log: list[tuple[int, int]] = []
        """Slot and delivery time of each entry."""
        self.out: dict[int, Receiver] = {}
        self.acked: set[int] = set()
        self.parked: set[int] = set()
        self.paused: dict[int, int] = {}

    @initialize(buckets=st.booleans())
    def begin(self, buckets: bool) -> None:
        self.buckets = buckets
        self.relief = Relief(self.selector())
        for _ in range(2):
            self.join(3)

    def selector(self) -> Selector:
        return Buckets(SLOTS, self.receivers) if self.buckets else AutoSplit(self.receivers)

    def reselect(self) -> None:
        self.relief.change(self.selector())
        self.dispatch.change(self.relief)
        self.drain()

    def went_out(self, receiver: Receiver, ordinal: int) -> None:
        slot, at_ms = self.log[ordinal]
        mine = [at for at, (other, _) in enumerate(self.log) if other == slot and at not in self.acked]
        assert all(at in self.out for at in mine if at < ordinal), "an earlier entry was left behind"
        assert not any(at in self.out for at in mine if at >= ordinal), "a later entry went out before"
        assert {self.out[at] for at in mine if at in self.out} <= {receiver}, "a slot has one holder"
        assert slot not in self.parked
        assert self.paused.get(slot, 0) <= self.now
        assert at_ms <= self.now
        self.out[ordinal] = receiver

    def drain(self) -> None:
        self.dispatch.release_due(self.now)
        while grants := self.dispatch.take(3):
            stopped: set[int] = set()
            for grant in grants:
                slot, at_ms = self.log[grant.ordinal]
                if grant.ordinal in self.acked:
                    self.dispatch.drop(grant)
                elif slot in stopped or not grant.receiver.ready:
                    stopped.add(slot)
                    self.dispatch.put_back((grant,))
                elif at_ms > self.now:
                    stopped.add(slot)
                    self.dispatch.drop(grant)
                    self.dispatch.delay(grant.ordinal, slot, at_ms, now_ms=self.now)
                else:
                    self.dispatch.hand_out(grant, 1)
                    self.went_out(grant.receiver, grant.ordinal)

    @rule(permits=st.integers(0, 5))
    def join(self, permits: int) -> None:
        if len(self.receivers) < 4:
            self.joined += 1
            self.receivers.append(Receiver(f"c{self.joined}", self.joined, RetryLink()))
            self.receivers[-1].permits = permits
            self.reselect()

    @precondition(lambda self: self.receivers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.receivers))
        self.receivers.remove(gone)
        self.take_back([at for at, holder in self.out.items() if holder is gone])
        self.reselect()

    @precondition(lambda self: self.receivers)
    @rule(data=st.data(), permits=st.integers(1, 5))
    def flow(self, data: st.DataObject, permits: int) -> None:
        data.draw(st.sampled_from(self.receivers)).permits += permits
        self.drain()

    @rule(
        slots=st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=6), delay=st.sampled_from((0, 0, 5000))
    )
    def append(self, slots: list[int], delay: int) -> None:
        for number in slots:
            slot = number if self.buckets else number * (65536 // SLOTS) + 1
            ordinal, at_ms = len(self.log), self.now + delay if delay else 0
            self.log.append((slot, at_ms))
            if at_ms > self.now:
                self.dispatch.delay(ordinal, slot, at_ms, now_ms=self.now)
            elif (receiver := self.dispatch.offer(ordinal, slot, 1, now_ms=self.now)) is not None:
                self.went_out(receiver, ordinal)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        ordinal = data.draw(st.sampled_from(sorted(self.out)))
        self.acked.add(ordinal)
        self.out.pop(ordinal).settle(1)
        self.dispatch.settle(self.log[ordinal][0])
        self.drain()

    @precondition(lambda self: self.out)
    @rule(data=st.data(), wait=st.sampled_from(("none", "pause", "park")))
    def nack(self, data: st.DataObject, wait: str) -> None:
        named = data.draw(st.sampled_from(sorted(self.out)))
        slot = self.log[named][0]
        hold = self.dispatch.stops.get(slot)
        if wait == "park":
            self.parked.add(slot)
            self.dispatch.stop(slot, SlotStop(LaneReason.PARKED, self.now))
        elif wait == "pause" and (hold is None or hold.reason is LaneReason.DELAYED):
            self.paused[slot] = self.now + 2000
            self.dispatch.stop(slot, SlotStop(LaneReason.RETRY, self.now, self.now + 2000))
        self.take_back([at for at in self.out if at >= named and self.log[at][0] == slot])
        self.drain()

    def take_back(self, ordinals: list[int]) -> None:
        for ordinal in ordinals:
            self.out.pop(ordinal).settle(1)
        self.dispatch.take_back([(ordinal, self.log[ordinal][0]) for ordinal in ordinals], self.now)

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.parked)))
        self.parked.discard(slot)
        self.paused.pop(slot, None)
        self.dispatch.release(slot)
        self.drain()

    @rule(passed=WAITS)
    def wait(self, passed: int) -> None:
        self.now += passed
        self.drain()
        waiting = list(self.waiting())
        busy = {one.receiver for one in waiting if self.now - one.since_ms >= AFTER_MS}
        back = self.relief.give_back(busy, self.dispatch, self.now)
        moves = self.relief.relieve(waiting, self.receivers, self.now)
        held = {self.log[at][0] for at in self.out}
        for slot in (*back, *(move.slot for move in moves)):
            assert slot not in held, "a slot with outstanding entries moved"
            self.dispatch.moved(slot)
        self.drain()

    def waiting(self) -> list[WaitingSlot]:
        found = []
        for slot in self.dispatch.lanes:
            lane, target = self.dispatch.lanes.get(slot), self.dispatch.target(slot)
            if lane is not None and lane.head >= 0 and target is not None and not target.ready:
                found.append(WaitingSlot(slot, target, lane.since_ms, self.dispatch.is_idle(slot)))
        return found

    def teardown(self) -> None:
        if not hasattr(self, "relief"):
            return
        self.now += 1_000_000
        for slot in self.parked:
            self.dispatch.release(slot)
        self.parked.clear()
        if not self.receivers:
            self.join(0)
        for receiver in self.receivers:
            receiver.permits = 10_000
        self.drain()
        while self.out:
            ordinal = min(self.out)
            self.acked.add(ordinal)
            self.out.pop(ordinal).settle(1)
            self.dispatch.settle(self.log[ordinal][0])
            self.drain()
        assert self.acked == set(range(len(self.log))), "with permits and acks all entries go out"


TestRetries = RetryMachine.TestCase
