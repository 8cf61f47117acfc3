"""Handing out messages: turns of segments, runs, numbers, and cancelled receives."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch import Checkpoint
from anabranch.client.consume.consumers.arguments import checkpoint_options
from anabranch.client.consume.consumers.consumer import ReceivingConsumer
from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.inbox.bad_entries import BadEntryRecord
from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.decide.producing.outgoing import Outgoing
from anabranch.client.message import Message
from anabranch.client.received import Received
from anabranch.client.schema import BYTES
from anabranch.protocol.commands import Delivery
from anabranch.protocol.compression import Compression
from tests.unit.client.fakes import FakePool


class EveryEntry:
    """Lets every entry be handed out."""

    def wants(self, entry: Received) -> bool:
        return True

    def accept(self, entry: Received) -> bool:
        return True

    def pass_over(self, entry: Received) -> None: ...


class DrivenConsumer(ReceivingConsumer[bytes]):
    """A consumer to which the test reports what segments report."""

    def __init__(self, context: ConsumerContext) -> None:
        self.inbox: Inbox[bytes] = Inbox(context, {}, BadEntryRecord("skip"), None)
        self.inbox.follow(EveryEntry())
        super().__init__(SimpleNamespace(context=context, inbox=self.inbox, close_by=None))

    def ready(self, source: FakeSource) -> None:
        self.inbox.ready(source)  # type: ignore[arg-type]

    def dropped(self, source: FakeSource) -> None:
        self.inbox.drop(source, everything=source.released)  # type: ignore[arg-type]

    def voided(self, source: FakeSource) -> None:
        self.inbox.drop(source, everything=True)  # type: ignore[arg-type]


class FakeSource:
    """A segment's consumer whose entries the test delivers."""

    def __init__(self, consumer: DrivenConsumer, owner: ConsumerContext, segment_id: int) -> None:
        self.consumer, self.owner = consumer, owner
        self.segment_id = segment_id
        self.topic = f"segment://public/default/orders/0000-ffff-{segment_id}"
        self.schema = BYTES
        self.entries: deque[Received] = deque()
        self.held: dict[tuple[int, int], int] = {}
        self.returned = 0
        self.released = False

    def vector(self, number: int) -> tuple[Any, ...]:
        return ((number, None),)

    def take(self) -> tuple[Received, bool]:
        entry = self.entries.popleft()
        self.returned += entry.wanted.bit_count()
        return entry, False

    def unhold(self, place: tuple[int, int], bits: int) -> None:
        self.held[place] = self.held.get(place, 0) & ~bits

    def deliver(self, *values: bytes, entry: int = 0, ack_set: tuple[int, ...] = ()) -> None:
        batch = Outgoing(0.0)
        batch.rows = [(value, "k", number, 0) for number, value in enumerate(values)]
        batch.build("p", 1, Compression.NONE, batched=True)
        delivery = Delivery(1, 1, entry, -1, 0, ack_set, None, None, None, batch.entry)
        self.entries.append(Received(self, delivery))
        if len(self.entries) == 1:
            self.consumer.ready(self)


def make() -> tuple[DrivenConsumer, FakeSource, FakeSource]:
    pool: Any = FakePool(lambda message: None)
    options = checkpoint_options("orders", Checkpoint.earliest(), None, True, {"receiver_queue_size": 100})
    context = ConsumerContext(pool, BYTES, options, "checkpoint")
    consumer = DrivenConsumer(context)
    return consumer, FakeSource(consumer, context, 1), FakeSource(consumer, context, 2)


def numbers(messages: list[Message[bytes]]) -> list[int]:
    """The numbers in which messages were handed out, as the source of each learns them."""
    return [message.id.vector[0][0] for message in messages]


async def test_segments_take_turns_by_entries() -> None:
    consumer, one, two = make()
    one.deliver(b"a", b"b", entry=0)
    one.deliver(b"c", entry=1)
    two.deliver(b"x", entry=0)
    two.deliver(b"y", b"z", entry=1)
    values = [message.value for message in await consumer.receive_many(100)]
    assert values == [b"a", b"b", b"x", b"c", b"y", b"z"]
    assert (one.returned, two.returned) == (3, 3)


async def test_all_ways_to_receive_share_one_order() -> None:
    consumer, one, _ = make()
    one.deliver(*(b"%d" % n for n in range(10)))
    first = await consumer.receive()
    some = await consumer.receive_many(3)
    rest = []
    async for message in consumer:
        rest.append(message)
        if len(rest) == 6:
            break
    messages = [first, *some, *rest]
    assert [int(message.data) for message in messages] == list(range(10))
    assert numbers(messages) == list(range(1, 11))


async def test_messages_acknowledged_inside_an_entry_are_left_out() -> None:
    consumer, one, _ = make()
    one.deliver(b"0", b"1", b"2", b"3", ack_set=(0b1010,))
    messages = await consumer.receive_many(10)
    assert [message.value for message in messages] == [b"1", b"3"]
    assert [message.id.batch_index for message in messages] == [1, 3]
    assert numbers(messages) == [1, 2]


async def test_a_woken_receive_that_is_cancelled_wakes_the_next() -> None:
    consumer, one, _ = make()
    first, second = asyncio.ensure_future(consumer.receive()), asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    one.deliver(b"v")
    first.cancel()
    assert (await asyncio.wait_for(second, 1)).value == b"v"
    assert first.cancelled()


async def test_one_entry_serves_all_waiting_receives() -> None:
    consumer, one, _ = make()
    waiting = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
    await asyncio.sleep(0)
    one.deliver(b"0", b"1", b"2")
    values = [(await asyncio.wait_for(task, 1)).value for task in waiting]
    assert values == [b"0", b"1", b"2"]


async def test_dropped_messages_are_not_held_and_their_numbers_are_used_again() -> None:
    consumer, one, two = make()
    one.deliver(b"0", b"1", b"2", b"3")
    two.deliver(b"x")
    one.held[(1, 0)] = 0b1111
    first = await consumer.receive()
    one.entries.clear()
    consumer.dropped(one)
    assert one.held[(1, 0)] == 0b0001, "only the message that was handed out is still held"
    other = await consumer.receive()
    assert other.value == b"x"
    assert numbers([first, other]) == [1, 2]


async def test_messages_given_back_come_first_and_survive_a_lost_connection() -> None:
    consumer, one, _ = make()
    one.deliver(*(b"%d" % n for n in range(6)))
    one.held[(1, 0)] = 0b111111
    given_back = await consumer.receive_many(4)
    consumer.inbox.hand_out_again(given_back[1:3])
    consumer.dropped(one)
    assert one.held[(1, 0)] == 0b001111, "the broker delivers those again that were not handed out"
    again = await consumer.receive_many(10)
    assert [message.value for message in again] == [b"1", b"2"]


@pytest.mark.parametrize("how", ["released", "voided"])
async def test_messages_given_back_are_dropped_when_their_segment_is_lost(how: str) -> None:
    consumer, one, two = make()
    one.deliver(b"0", b"1", b"2")
    two.deliver(b"x")
    one.held[(1, 0)] = 0b111
    given_back = await consumer.receive_many(2)
    consumer.inbox.hand_out_again(given_back)
    if how == "released":
        one.released = True
        consumer.dropped(one)
    else:
        consumer.voided(one)
    assert one.held[(1, 0)] == 0
    assert [message.value for message in await consumer.receive_many(10)] == [b"x"]
