"""A classic topic that is terminated over HTTP, as its clients see it."""

from __future__ import annotations

from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import CLASSIC, Admin
from tests.harness.wire import error_of, settle

NAME = "persistent://public/default/classic"


async def test_producers_are_refused_and_consumers_hear_the_end(admin: Admin) -> None:
    client = await admin.brokers.connect()
    await client.producer(NAME)
    await client.subscribe(NAME)
    await client.publish_all([b"a", b"b"])
    sent = await client.deliveries(2)
    answer = await admin.ask("POST", f"{CLASSIC}/terminate")
    assert (answer.status, answer.json["entryId"]) == (200, sent[-1].entry)
    assert (await client.expect(pb.CommandCloseProducer)).producer_id == 1
    assert error_of(await client.producer(NAME, producer_id=2)) == pb.TopicTerminatedError
    await settle()
    assert client.has(pb.CommandReachedEndOfTopic) == []
    await client.acknowledge_durably(*sent)
    assert (await client.expect(pb.CommandReachedEndOfTopic)).consumer_id == 1
    late = await admin.brokers.connect()
    await late.subscribe(NAME, subscription="late")
    await late.acknowledge_durably(*(await late.deliveries(2)))
    assert (await late.expect(pb.CommandReachedEndOfTopic)).consumer_id == 1


async def test_an_acknowledgement_in_a_transaction_is_refused(admin: Admin) -> None:
    client = await admin.brokers.connect()
    await client.producer(NAME)
    await client.subscribe(NAME)
    await client.publish_all([b"a"])
    (sent,) = await client.deliveries(1)
    answer = await client.request(
        pb.CommandAck(
            consumer_id=1,
            ack_type=pb.CommandAck.Individual,
            message_id=[pb.MessageIdData(ledgerId=sent.ledger, entryId=sent.entry)],
            txnid_most_bits=1,
            txnid_least_bits=2,
        )
    )
    assert isinstance(answer, pb.CommandAckResponse)
    assert answer.error == pb.NotAllowedError
    assert "transactions are not supported" in answer.message
    shown = (await admin.ask("GET", f"{CLASSIC}/stats")).json
    assert shown["subscriptions"]["sub"]["msgBacklog"] == 1
    await client.acknowledge_durably(sent)
    shown = (await admin.ask("GET", f"{CLASSIC}/stats")).json
    assert shown["subscriptions"]["sub"]["msgBacklog"] == 0
