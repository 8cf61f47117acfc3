"""Laws of Key_Shared and bucket dispatch, under any mix of joins, leaves, permits, acks and nacks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anabranch.broker.dispatch.keyed import KeyedDispatch
from anabranch.broker.dispatch.receivers import Ranking, Receiver, RoundRobin
from anabranch.broker.dispatch.selectors import AutoSplit, Buckets

SLOTS = 4


@dataclass
class Line:
    writable: bool = True


@dataclass
class Out:
    receiver: Receiver
    slot: int
    messages: int


@dataclass
class History:
    first_seen: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    seen: set[int] = field(default_factory=set)


class DispatchMachine(RuleBasedStateMachine):
    """Drives one KeyedDispatch as a subscription does and checks each hand-out against the log."""

    def __init__(self) -> None:
        super().__init__()
        self.keyed = KeyedDispatch()
        self.receivers: list[Receiver] = []
        self.out: dict[int, Out] = {}
        self.history = History()
        self.slots: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        """Messages of each entry."""
        self.acked: set[int] = set()
        self.joined = 0
        self.buckets = False

    @initialize(buckets=st.booleans())
    def choose_mode(self, buckets: bool) -> None:
        self.buckets = buckets

    def reselect(self) -> None:
        chosen = Buckets(SLOTS, self.receivers) if self.buckets else AutoSplit(self.receivers)
        self.keyed.change(chosen)

    def went_out(self, receiver: Receiver, ordinal: int, slot: int, messages: int) -> None:
        assert ordinal not in self.out, "an entry is out once"
        assert ordinal not in self.acked
        assert receiver in self.receivers
        holders = {id(o.receiver) for o in self.out.values() if o.slot == slot}
        assert holders <= {id(receiver)}, "a slot has one holder"
        if ordinal not in self.history.seen:
            earlier = self.history.first_seen[slot]
            assert not earlier or earlier[-1] < ordinal, "first deliveries of a slot are in order"
            waiting = [o for o, s in self.slots.items() if s == slot and o < ordinal and o not in self.out]
            assert all(o in self.acked for o in waiting), "no earlier entry of the slot was left behind"
            earlier.append(ordinal)
            self.history.seen.add(ordinal)
        self.out[ordinal] = Out(receiver, slot, messages)

    def drain(self) -> None:
        while grants := self.keyed.take(3):
            for at, grant in enumerate(grants):
                if grant.ordinal in self.acked:
                    self.keyed.drop(grant)
                elif grant.receiver.ready:
                    messages = self.sizes[grant.ordinal]
                    self.keyed.hand_out(grant, messages)
                    self.went_out(*grant, messages)
                else:
                    self.keyed.put_back(grants[at:])
                    break

    @rule(permits=st.integers(0, 9))
    def join(self, permits: int) -> None:
        if len(self.receivers) < 4:
            self.joined += 1
            self.receivers.append(Receiver(f"c{self.joined % 3}", self.joined, Line()))
            self.receivers[-1].permits = permits
            self.reselect()
            self.drain()

    @precondition(lambda self: self.receivers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.receivers))
        back = [(o, out.slot) for o, out in self.out.items() if out.receiver is gone]
        for ordinal, _ in back:
            del self.out[ordinal]
        self.receivers.remove(gone)
        self.keyed.take_back(back)
        self.reselect()
        self.drain()

    @precondition(lambda self: self.receivers)
    @rule(data=st.data(), permits=st.integers(1, 6))
    def flow(self, data: st.DataObject, permits: int) -> None:
        data.draw(st.sampled_from(self.receivers)).permits += permits
        self.drain()

    @precondition(lambda self: self.receivers)
    @rule(data=st.data())
    def clog(self, data: st.DataObject) -> None:
        line = data.draw(st.sampled_from(self.receivers)).link
        assert isinstance(line, Line)
        line.writable = not line.writable
        self.drain()

    @rule(slot=st.integers(0, SLOTS - 1), messages=st.integers(1, 3))
    def append(self, slot: int, messages: int) -> None:
        ordinal = len(self.slots)
        if not self.buckets:
            slot = slot * (65536 // SLOTS) + 1
        self.slots[ordinal] = slot
        self.sizes[ordinal] = messages
        receiver = self.keyed.offer(ordinal, slot, messages)
        if receiver is not None:
            self.went_out(receiver, ordinal, slot, messages)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        ordinal = data.draw(st.sampled_from(list(self.out)))
        out = self.out.pop(ordinal)
        self.acked.add(ordinal)
        out.receiver.settle(out.messages)
        self.keyed.settle(out.slot)
        self.drain()

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        ordinal = data.draw(st.sampled_from(list(self.out)))
        out = self.out.pop(ordinal)
        out.receiver.settle(out.messages)
        self.keyed.take_back([(ordinal, out.slot)])
        self.drain()

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def ack_what_is_held(self, data: st.DataObject) -> None:
        ordinal = data.draw(st.sampled_from(list(self.slots)))
        if ordinal not in self.out and ordinal in self.history.seen:
            self.acked.add(ordinal)

    @invariant()
    def held_is_counted(self) -> None:
        # The dispatch notices an acknowledged held entry only when it is next.
        left = [o for o in self.slots if o not in self.out and o not in self.acked]
        assert len(left) <= self.keyed.waiting <= len(self.slots) - len(self.out)

    def teardown(self) -> None:
        if not self.receivers:
            self.join(0)
        for receiver in self.receivers:
            assert isinstance(receiver.link, Line)
            receiver.link.writable = True
            receiver.permits = 10_000
        self.drain()
        while self.out:
            ordinal, out = next(iter(self.out.items()))
            del self.out[ordinal]
            self.acked.add(ordinal)
            out.receiver.settle(out.messages)
            self.keyed.settle(out.slot)
            self.drain()
        assert self.acked == set(self.slots), "with permits and acks all entries go out"
        assert self.keyed.waiting == 0


TestDispatch = DispatchMachine.TestCase


@given(st.integers(1, 64), st.integers(1, 80))
def test_buckets_are_shared_in_runs_that_differ_by_at_most_one(buckets: int, consumers: int) -> None:
    receivers = [Receiver(f"c{n:03}", n, Line()) for n in range(consumers)]
    selector = Buckets(buckets, list(reversed(receivers)))
    owners = [selector.owner(bucket) for bucket in range(buckets)]
    assert None not in owners
    for number, receiver in enumerate(receivers):
        mine = [bucket for bucket, owner in enumerate(owners) if owner is receiver]
        assert mine == list(range(number * buckets // consumers, (number + 1) * buckets // consumers))


@given(st.integers(2, 8))
def test_a_consumer_that_leaves_moves_only_its_own_hashes(consumers: int) -> None:
    receivers = [Receiver(f"c{n}", n, Line()) for n in range(consumers)]
    before = AutoSplit(receivers)
    after = AutoSplit(receivers[1:])
    for slot in range(0, 65536, 257):
        owner = before.owner(slot)
        if owner is not receivers[0]:
            assert after.owner(slot) is owner


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=6))
def test_the_turn_goes_to_a_ready_receiver_of_the_best_level(consumers: list[tuple[int, int]]) -> None:
    receivers = [Receiver(f"c{n}", n, Line(), priority=p) for n, (p, _) in enumerate(consumers)]
    for receiver, (_, permits) in zip(receivers, consumers, strict=True):
        receiver.permits = permits
    turns = RoundRobin()
    turns.change(receivers)
    total = sum(permits for _, permits in consumers)
    for _ in range(total):
        best = min(r.priority for r in receivers if r.ready)
        chosen = turns.next()
        assert chosen is not None
        assert chosen.priority == best
        chosen.charge(1)
    assert turns.next() is None


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc")), min_size=1), st.integers(-1, 5))
def test_the_active_consumer_does_not_depend_on_the_order_of_arrival(
    consumers: list[tuple[int, str]], partition: int
) -> None:
    receivers = [Receiver(name, n, Line(), priority=p) for n, (p, name) in enumerate(consumers)]
    assert Ranking(receivers).active(partition) is Ranking(receivers[::-1]).active(partition)
