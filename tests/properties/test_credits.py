"""Laws of credit: limits hold up to one entry, and no producer waits while there is room."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.wire.publish_room import SMALL_BYTES, ConnectionRoom
from anabranch.client.decide.producing.credits import LinkCredit, ProducerCredit
from anabranch.protocol.credits import ENTRY_CREDIT_BYTES
from anabranch.protocol.pb import pulsar_pb2 as pb

SIZE_MAX = 200_000


class Room:
    """The room of a broker that a test presses and relieves."""

    credit_bytes = 100_000
    told_bytes = credit_bytes // 4

    def __init__(self) -> None:
        self.is_pressed = False

    def gives_credit(self, waiting_bytes: int) -> bool:
        return waiting_bytes <= SMALL_BYTES or not self.is_pressed


class Model:
    """One connection with producers at one end, and a broker that reads and stores at the other."""

    def __init__(self, producers: int) -> None:
        self.link = LinkCredit()
        self.senders = [Sender(self, number) for number in range(producers)]
        self.unread: deque[tuple[int, int]] = deque()
        self.unstored: deque[tuple[int, int]] = deque()
        self.publish_bytes = 0
        self.throttled = False
        self.pressure = Room()
        self.room = ConnectionRoom(cast(Any, self.pressure), cast(Any, self))
        self.room.grant()

    def send(self, command: pb.CommandProducerCredit) -> None:
        """Tell the client; a told credit arrives at once."""
        if command.HasField("taken_bytes"):
            self.link.taken(command.taken_bytes)
        else:
            self.link.limit(command.bytes)
        self.check()

    def read(self) -> None:
        if self.unread:
            number, size = self.unread.popleft()
            self.unstored.append((number, size))
            self.publish_bytes += size
            self.room.took(size + ENTRY_CREDIT_BYTES)

    def store(self) -> None:
        if self.unstored:
            number, size = self.unstored.popleft()
            self.publish_bytes -= size
            self.senders[number].receipt(size)
            if self.throttled:
                self.room.resume()

    def check(self) -> None:
        """Limits hold up to one entry, and a producer with credit has nothing left to send."""
        under_way = sum(size + ENTRY_CREDIT_BYTES for _, size in self.unread)
        assert under_way < self.link.bytes_max + SIZE_MAX + ENTRY_CREDIT_BYTES
        for sender in self.senders:
            assert sender.credit.used_messages >= 0
            assert sender.credit.used_bytes >= 0


class Sender:
    """A producer: entries leave in order, and wait in line for the credit of the connection."""

    def __init__(self, model: Model, number: int) -> None:
        self.model = model
        self.number = number
        self.credit = ProducerCredit()
        self.credit.begin(model.link)
        self.unsent: deque[int] = deque()

    def add(self, size: int) -> None:
        self.unsent.append(size)
        self.write()

    def write(self, in_turn: bool = False) -> None:
        while self.unsent and self.credit.has_room and (in_turn or not self.model.link.has_line):
            size = self.unsent.popleft()
            self.credit.take(size, 1)
            self.model.unread.append((self.number, size))
            assert self.credit.used_messages <= max(self.credit.messages_max, 1)
        if self.unsent and self.credit.has_own_room:
            self.model.link.wait(self.turn)

    def turn(self) -> None:
        self.write(in_turn=True)

    def receipt(self, size: int) -> None:
        self.credit.give_back(size, 1)
        self.write()

    def limit(self, messages_max: float) -> None:
        self.credit.limit(0 if not messages_max else math.inf, messages_max)
        self.write()


Step = tuple[str, int, int]

steps = st.lists(
    st.tuples(
        st.sampled_from(("add", "add", "add", "read", "read", "store", "store", "limit", "press")),
        st.integers(0, 2),
        st.one_of(st.integers(1, 200), st.integers(1, SIZE_MAX)),
    ),
    max_size=120,
)


def take(model: Model, step: Step) -> None:
    kind, number, amount = step
    match kind:
        case "add":
            model.senders[number].add(amount)
        case "limit":
            model.senders[number].limit(amount % 4)
        case "press":
            model.pressure.is_pressed = amount % 2 == 0
        case "read":
            model.read()
        case _:
            model.store()
    model.check()


@given(steps)
def test_limits_hold_up_to_one_entry_and_no_producer_is_stuck(taken: list[Step]) -> None:
    model = Model(3)
    for step in taken:
        take(model, step)
    # Pressure may last for ever; only a producer whose own limit is zero has to wait for the broker's word.
    for sender in model.senders:
        sender.limit(1)
    entries = sum(len(sender.unsent) for sender in model.senders) + len(model.unread) + len(model.unstored)
    for _ in range(2 * entries + 1):
        model.read()
        model.store()
        model.check()
    assert not any(sender.unsent for sender in model.senders)
    assert not model.unread
    assert all(sender.credit.used_bytes == 0 for sender in model.senders)
    assert model.link.sent_bytes - model.link.taken_bytes < model.pressure.told_bytes


@given(steps, st.integers(0, 2))
def test_a_producer_without_credit_does_not_hold_up_the_others(taken: list[Step], held: int) -> None:
    model = Model(3)
    for step in taken:
        if step[0] != "limit":
            take(model, step)
    model.senders[held].limit(0)
    entries = sum(len(sender.unsent) for sender in model.senders) + len(model.unread) + len(model.unstored)
    for _ in range(2 * entries + 1):
        model.read()
        model.store()
    assert not any(sender.unsent for sender in model.senders if sender.number != held)
