"""ACKs of single entries, of entries up to one, and of messages inside a batch."""

from __future__ import annotations

import pytest

from anabranch.broker.serving.subscription import acknowledging
from anabranch.broker.serving.subscription.acknowledging import backlog_messages
from anabranch.ledger.memory import MemoryStorage
from anabranch.protocol.commands import NO_ID, Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, batch, settle, values_of

SHARED = pb.CommandSubscribe.Shared


async def filled(brokers: Brokers, count: int = 10) -> WireClient:
    """A client that has published some entries."""
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"%d" % n for n in range(count)])
    return client


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]


async def test_a_cumulative_ack_covers_everything_before(brokers: Brokers) -> None:
    client = await filled(brokers)
    await client.subscribe()
    got = await client.deliveries(10)
    await client.acknowledge_durably(got[6], cumulative=True)
    await brokers.restart()
    client = await brokers.connect()
    await client.subscribe()
    assert values_of(await client.deliveries(3)) == numbers(7, 10)


async def test_an_ack_beyond_the_end_acknowledges_nothing(brokers: Brokers) -> None:
    client = await filled(brokers, 2)
    await client.subscribe()
    got = await client.deliveries(2)
    beyond = got[1]._replace(entry=got[1].entry + 5)
    await client.acknowledge_durably(beyond, cumulative=True)
    await client.acknowledge_durably(beyond)
    await client.acknowledge_durably(got[0]._replace(ledger=99), cumulative=True)
    await client.publish_all([b"2"], first=2)
    assert values_of(await client.deliveries(1)) == [b"2"]
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    assert values_of(await client.deliveries(3)) == numbers(0, 3)


@pytest.mark.brokers(storage=lambda: MemoryStorage(ledger_entries_max=3))
async def test_an_ack_beyond_the_end_of_a_ledger_does_not_reach_into_the_next(brokers: Brokers) -> None:
    client = await filled(brokers, 6)
    await client.subscribe()
    got = await client.deliveries(6)
    assert got[0].ledger != got[3].ledger
    await client.acknowledge_durably(got[0]._replace(entry=7))
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    assert values_of(await client.deliveries(6)) == numbers(0, 6)
    await client.acknowledge_durably(got[3]._replace(entry=-1 & NO_ID), cumulative=True)
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    assert values_of(await client.deliveries(3)) == numbers(3, 6)


async def test_a_cumulative_ack_is_ignored_on_a_shared_subscription(brokers: Brokers) -> None:
    client = await filled(brokers)
    await client.subscribe(kind=SHARED)
    got = await client.deliveries(10)
    answer = await client.acknowledge_durably(got[9], cumulative=True)
    assert not answer.HasField("error")
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    await client.deliveries(10)


async def test_messages_of_a_batch_are_acknowledged_one_by_one(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    client.publish(b"", 0, entry=batch([b"%d" % n for n in range(70)]), messages=70)
    await client.receipt()
    await client.subscribe(kind=SHARED, permits=100)
    entry = (await client.deliveries(1))[0]
    assert entry.ack_set == ()
    # 0 to 63 are acknowledged, 64 to 69 are not.
    await client.request(part_ack(entry, [0, 0b111111]))
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    again = (await client.deliveries(1))[0]
    assert (again.ack_set, again.redelivery_count) == ((0, 0b111111), 1)
    stats = await client.request(pb.CommandConsumerStats(consumer_id=1, request_id=0))
    assert stats.unackedMessages == 6
    assert stats.availablePermits == 100 - 70 - 6
    await client.request(part_ack(entry, [0, 0b000111]))
    await client.request(part_ack(entry, [0, 0b111000]))
    assert brokers[0].logs.served[0].subscriptions["sub"].backlog == 0


def part_ack(entry: Delivery, words: list[int]) -> pb.CommandAck:
    message_id = pb.MessageIdData(ledgerId=entry.ledger, entryId=entry.entry, ack_set=words)
    return pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[message_id])


@pytest.mark.parametrize("counted", [acknowledging.PARTS_COUNTED_MAX, 1])
async def test_a_backlog_counts_the_messages_that_are_left_in_batches(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, counted: int
) -> None:
    monkeypatch.setattr(acknowledging, "PARTS_COUNTED_MAX", counted)
    client = await brokers.connect()
    await client.producer()
    for number in range(3):
        client.publish(b"", 10 * number, entry=batch([b"v"] * 10, 10 * number), messages=10)
        await client.receipt()
    await client.subscribe(kind=SHARED, permits=100)
    entries = await client.deliveries(3)
    subscription = brokers[0].logs.served[0].subscriptions["sub"]

    def left() -> int:
        return backlog_messages(subscription.log, subscription.cursor)

    assert left() == 30
    # Beyond the entries that are counted, the others have the average of those.
    for entry, backlog in zip(entries[1:], (24, 18), strict=True):
        await client.request(part_ack(entry, [0b1111]))
        assert left() == backlog
    await client.acknowledge_durably(entries[0])
    assert left() == 8
    await client.request(part_ack(entries[1], [0b0001]))
    assert left() == (5 if counted > 1 else 2), "each pending entry has a pending message"
    await client.acknowledge_durably(entries[2])
    assert left() == 1
    await client.acknowledge_durably(entries[1])
    assert left() == 0


async def test_a_backlog_has_a_message_of_each_pending_entry_at_least(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    for number, size in ((0, 1), (1, 1), (2, 28)):
        client.publish(b"", number, entry=batch([b"v"] * size, number), messages=size)
        await client.receipt()
    await client.subscribe(kind=SHARED, permits=100)
    entries = await client.deliveries(3)
    subscription = brokers[0].logs.served[0].subscriptions["sub"]
    # Two of three entries are pending, which would have 20 messages on average; 27 are acknowledged.
    await client.acknowledge_durably(entries[1])
    await client.request(part_ack(entries[2], [1]))
    assert backlog_messages(subscription.log, subscription.cursor) == 2


async def test_a_cumulative_ack_inside_a_batch_keeps_the_rest_of_it(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    for number in range(2):
        entry = batch([b"a", b"b", b"c", b"d"], 4 * number)
        client.publish(b"", 4 * number, entry=entry, messages=4)
        await client.receipt()
    await client.subscribe()
    second = (await client.deliveries(2))[1]
    ack = part_ack(second, [0b1100])
    ack.ack_type = pb.CommandAck.Cumulative
    await client.request(ack)
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    again = (await client.deliveries(1))[0]
    assert (again.entry, again.ack_set) == (second.entry, (0b1100,))


async def test_an_ack_of_a_vanished_consumer_is_not_called_done(brokers: Brokers) -> None:
    client = await filled(brokers, 1)
    client.send(pb.CommandAck(consumer_id=9, ack_type=pb.CommandAck.Individual, message_id=[]))
    await settle()
    assert client.inbox == []
    client.send(pb.CommandAck(consumer_id=9, ack_type=pb.CommandAck.Individual, message_id=[], request_id=5))
    answer = await client.expect(pb.CommandAckResponse)
    assert (answer.request_id, answer.error) == (5, pb.ConsumerNotFound)
    assert not client.hung_up
