"""Segments on the wire: names, buckets, seals, drains and a restart."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.controller.ports.segments import Drained
from anabranch.errors import PersistenceError
from anabranch.model.drains import ALL
from anabranch.model.names import TopicName
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.commands import NO_ID, Delivery, SendReceipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.fakes.storage import SlowStorage
from tests.harness.cluster import Brokers
from tests.harness.segments import (
    NAME,
    WHOLE,
    segment_states,
    split_segment,
)
from tests.harness.wire import (
    batch,
    error_of,
    look_up,
    settle,
    single,
    values_of,
)


async def test_a_segment_takes_entries_only_under_a_name_that_the_layout_lists(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    assert isinstance(await client.producer(WHOLE), pb.CommandProducerSuccess)
    for bad in (
        "segment://public/default/orders/0000-7fff-0",
        "segment://public/default/orders/0000-7fff-1",
        "segment://public/default/absent/0000-ffff-0",
    ):
        assert error_of(await client.producer(bad, producer_id=2)) == pb.TopicNotFound
        assert error_of(await client.subscribe(bad)) == pb.TopicNotFound


async def test_an_entry_must_lie_within_one_bucket(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    await client.producer(WHOLE)
    client.publish(b"fits", 0, hash_range=(0x4000, 0x7FFF))
    client.publish(b"does not", 1, hash_range=(0x3FFF, 0x4000))
    client.publish(b"unstamped", 2, key="k")
    mixed = MessageBatch()
    for number in range(16):
        mixed.add(b"of all buckets", f"key-{number}", 3 + number)
    client.publish(b"", 3, entry=mixed.build("p", 1), messages=16)
    await settle()
    answers = [c for c in client.inbox if isinstance(c, SendReceipt | pb.CommandSendError)]
    assert [c.sequence_id for c in answers] == [0, 1, 2, 3]
    assert isinstance(answers[1], pb.CommandSendError)
    assert answers[1].error == pb.NotAllowedError
    assert sum(isinstance(answer, SendReceipt) for answer in answers) == 3


async def test_a_seal_answers_what_it_took_then_closes_producers_and_swallows_the_rest(
    brokers: Brokers,
) -> None:
    client = await brokers.connect()
    await look_up(client)
    await client.producer(WHOLE, producer_name="p")
    client.inbox.clear()
    splitting: asyncio.Future[None] | None = None
    for number in range(400):
        if number == 200:
            splitting = asyncio.ensure_future(split_segment(brokers))
        client.publish(b"x", number)
        await asyncio.sleep(0.0001)
    assert splitting is not None
    await splitting
    await settle()
    order = [
        c for c in client.inbox if isinstance(c, SendReceipt | pb.CommandSendError | pb.CommandCloseProducer)
    ]
    closed = next(n for n, c in enumerate(order) if isinstance(c, pb.CommandCloseProducer))
    assert closed == len(order) - 1, "after CLOSE_PRODUCER no send is answered"
    assert getattr(order[closed], "sealed", False), (
        "the client may take entries without a receipt back at once"
    )
    receipts = [c.sequence_id for c in order if isinstance(c, SendReceipt)]
    assert len(receipts) == closed
    assert receipts == list(range(len(receipts)))
    assert 0 < len(receipts) < 400
    assert not client.hung_up
    again = await client.producer(WHOLE, producer_name="p", epoch=1)
    assert error_of(again) == pb.TopicTerminatedError
    ask = [pb.KeyValue(key="anabranch.settle", value="true")]
    known = await client.producer(WHOLE, producer_id=9, producer_name="p", metadata=ask)
    assert known.last_sequence_id == len(receipts) - 1


@pytest.mark.brokers(storage=SlowStorage)
async def test_a_message_during_a_slow_seal_is_neither_stored_nor_answered(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    await client.producer(WHOLE, producer_name="p")
    segment = brokers[0].logs.require(TopicName.parse(WHOLE))
    await client.publish_all([b"a", b"b"])
    client.publish(b"c", 2)
    await asyncio.sleep(0.01)
    sealing = asyncio.ensure_future(segment.seal())
    await asyncio.sleep(0.001)
    client.publish(b"d", 3)
    assert error_of(await client.producer(WHOLE, producer_id=2)) == pb.TopicTerminatedError
    await sealing
    await settle()
    kinds = [(type(c), getattr(c, "sequence_id", None)) for c in client.inbox]
    assert kinds == [(SendReceipt, 2), (pb.CommandCloseProducer, None)]
    assert segment.log.extent.next_ordinal == 3


async def test_a_seal_that_fails_does_not_claim_that_every_stored_entry_has_its_receipt(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await brokers.connect()
    await look_up(client)
    await client.producer(WHOLE, producer_name="p")
    segment = brokers[0].logs.require(TopicName.parse(WHOLE))

    async def fail() -> None:
        raise PersistenceError("the disk fails")

    monkeypatch.setattr(segment.log, "seal", fail)
    with pytest.raises(PersistenceError):
        await segment.seal()
    assert not (await client.expect(pb.CommandCloseProducer)).sealed


async def test_a_sealed_segment_says_when_it_is_read_and_drained(brokers: Brokers) -> None:
    client, cpp = await brokers.connect(), await brokers.connect(version="Pulsar-CPP-v3.13")
    await look_up(client)
    drained: list[Drained] = []
    brokers[0].segments.on_drained(TopicName.parse(NAME), drained.append)
    await client.producer(WHOLE)
    await client.subscribe(WHOLE, "sub")
    await cpp.subscribe(WHOLE, "other")
    await client.publish_all([b"a", b"b", b"c"])
    got = await client.deliveries(3)
    client.acknowledge(got[0], got[1])
    await split_segment(brokers)
    await settle()
    assert client.has(pb.CommandReachedEndOfTopic) == []
    assert ("sub", ALL) not in [(event.subscription, event.ranges) for event in drained]
    client.acknowledge(got[2])
    await client.expect(pb.CommandReachedEndOfTopic)
    assert drained[-1] == Drained(TopicName.parse(WHOLE), "sub", ALL)
    cpp.acknowledge(*await cpp.deliveries(3))
    await settle()
    assert cpp.has(pb.CommandReachedEndOfTopic) == [], "it would drop the connection"
    assert [event.subscription for event in drained if event.ranges == ALL] == ["sub", "other"]


async def test_a_segment_that_is_drained_already_says_so_when_it_is_sealed(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    drained: list[Drained] = []
    brokers[0].segments.on_drained(TopicName.parse(NAME), drained.append)
    await client.subscribe(WHOLE, "sub")
    await split_segment(brokers)
    await client.expect(pb.CommandReachedEndOfTopic)
    await settle()
    assert [event.subscription for event in drained] == ["sub"]


async def test_a_reader_hears_the_end_when_it_got_everything(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    await client.producer(WHOLE)
    await client.publish_all([b"a", b"b"])
    await split_segment(brokers)
    await client.subscribe(WHOLE, "reader-1", durable=False, permits=1)
    await settle()
    assert client.has(pb.CommandReachedEndOfTopic) == []
    client.flow(5)
    await settle()
    kinds = [type(c) for c in client.inbox if isinstance(c, Delivery | pb.CommandReachedEndOfTopic)]
    assert kinds == [Delivery, Delivery, pb.CommandReachedEndOfTopic]
    last = await client.request(pb.CommandGetLastMessageId(consumer_id=1, request_id=0))
    assert (last.first_index, last.next_index, last.sealed) == (0, 2, True)


async def test_a_subscription_on_a_segment_is_on_its_children_from_their_beginning(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    await client.subscribe(WHOLE, "queue", pb.CommandSubscribe.Shared, earliest=False)
    await split_segment(brokers)
    update = await client.take(lambda c: isinstance(c, pb.CommandScalableTopicUpdate) and c.dag.epoch == 1)
    assert segment_states(update)[1] == pb.ACTIVE
    child = "segment://public/default/orders/0000-7fff-1"
    await client.producer(child)
    await client.publish_all([b"early"])
    await client.subscribe(child, "queue", pb.CommandSubscribe.Shared, consumer_id=2, earliest=False)
    assert values_of(await client.deliveries(1)) == [b"early"]


async def test_everything_is_there_again_after_a_restart(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    await client.producer(WHOLE)
    await client.subscribe(WHOLE, "sub")
    client.publish(b"", 0, entry=batch([b"a", b"b"]), messages=2)
    client.publish(b"c", 2, entry=single(b"c", 2))
    await client.receipt()
    await client.receipt()
    got = await client.deliveries(2)
    await client.acknowledge_durably(got[0])
    await split_segment(brokers)
    await brokers.restart()
    client = await brokers.connect()
    update = await look_up(client, create_if_missing=False)
    assert segment_states(update) == {0: pb.SEALED, 1: pb.ACTIVE, 2: pb.ACTIVE}
    await client.subscribe(WHOLE, "sub")
    left = await client.deliveries(1)
    assert values_of(left) == [b"c"]
    assert left[0].ledger != NO_ID
    client.acknowledge(*left)
    await client.expect(pb.CommandReachedEndOfTopic)
