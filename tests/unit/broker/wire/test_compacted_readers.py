"""Compacted readers on the wire: the latest values, the tail, the last id, and the refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch import AsyncCheckpointConsumer, Checkpoint
from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.protocol.commands import Delivery
from anabranch.protocol.entry.entries import decode_columns
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, batch, error_of, settle

CLASSIC = "/admin/v2/persistent/public/default/orders"
SCALABLE = "/admin/v2/scalable/public/default/orders"
ORDERS = "topic://public/default/orders"


async def published(brokers: Brokers) -> WireClient:
    """A topic with five values of key a, two of key b, and one of a key that is deleted."""
    client = await brokers.connect()
    await client.producer()
    for number, (key, value) in enumerate([*(("a", b"%d" % n) for n in range(5)), ("b", b"x")]):
        client.publish(value, number, key=key)
    client.publish(b"", 6, entry=batch([b"y", b"z"], 6, key="b"), messages=2)
    client.publish(b"gone", 8, key="c")
    client.publish(b"", 9, key="c", null_value=True)
    for _ in range(9):
        await client.receipt()
    return client


async def compact(brokers: Brokers) -> Any:
    admin = Admin(brokers)
    assert (await admin.ask("PUT", f"{CLASSIC}/compaction")).status == 204
    await settle()
    return (await admin.ask("GET", f"{CLASSIC}/compaction")).json


def messages_of(found: list[Delivery]) -> list[bytes]:
    """The values that a client shows: those that the ack set leaves."""
    shown = []
    for one in found:
        columns = decode_columns(one.data, 2**20)
        bits = one.ack_set[0] if one.ack_set else -1
        numbered = zip(columns.batch_indexes, columns.values, strict=True)
        shown += [value for index, value in numbered if index < 0 or bits >> index & 1]
    return [value for value in shown if value is not None]


async def test_a_compacted_reader_gets_the_latest_values_and_the_tail(brokers: Brokers) -> None:
    client = await published(brokers)
    assert (await compact(brokers)) == {"status": "SUCCESS", "lastError": ""}
    await client.subscribe(subscription="reader", durable=False, read_compacted=True)
    assert messages_of(await client.deliveries(2)) == [b"4", b"z"]
    last = await client.request(pb.CommandGetLastMessageId(consumer_id=1, request_id=0))
    assert last.last_message_id.batch_index == 1
    await client.publish_all([b"tail"], first=10, key="a")
    assert messages_of(await client.deliveries(1)) == [b"tail"]
    await client.subscribe(subscription="plain", consumer_id=2)
    assert len(await client.deliveries(10, 2)) == 10


async def test_a_durable_compacted_subscription_goes_on_where_it_acknowledged(brokers: Brokers) -> None:
    client = await published(brokers)
    await compact(brokers)
    await client.subscribe(read_compacted=True)
    first, second = await client.deliveries(2)
    await client.acknowledge_durably(first, cumulative=True)
    client.close()
    await brokers.restart()
    client = await brokers.connect()
    await client.subscribe(read_compacted=True)
    (again,) = await client.deliveries(1)
    assert (again.ledger, again.entry) == (second.ledger, second.entry)


async def test_compacted_reading_needs_order_and_all_consumers_to_agree(brokers: Brokers) -> None:
    client = await published(brokers)
    shared = await client.subscribe(kind=pb.CommandSubscribe.Shared, read_compacted=True)
    assert error_of(shared) == pb.NotAllowedError
    failover = pb.CommandSubscribe.Failover
    assert isinstance(await client.subscribe(kind=failover, read_compacted=True), pb.CommandSuccess)
    assert error_of(await client.subscribe(kind=failover, consumer_id=2)) == pb.ConsumerBusy
    reserved = await client.subscribe(subscription="__compaction", consumer_id=3)
    assert error_of(reserved) == pb.NotAllowedError


@pytest.mark.brokers(policy_check_s=5.0)
async def test_a_topic_is_compacted_when_its_threshold_is_exceeded(brokers: Brokers) -> None:
    client = await published(brokers)
    admin = Admin(brokers)
    assert (await admin.ask("POST", f"{CLASSIC}/compactionThreshold", 10_000)).status == 204
    await asyncio.sleep(12)
    assert (await admin.ask("GET", f"{CLASSIC}/compaction")).json["status"] == "NOT_RUN"
    await client.publish_all([bytes(1000)] * 12, first=10, key="a")
    await asyncio.sleep(12)
    assert (await admin.ask("GET", f"{CLASSIC}/compaction")).json["status"] == "SUCCESS"
    await client.subscribe(subscription="reader", durable=False, read_compacted=True)
    assert len(await client.deliveries(2)) == 2
    stats = (await admin.ask("GET", f"{CLASSIC}/stats")).json
    assert list(stats["subscriptions"]) == ["reader"]


async def test_deleting_the_cursor_of_compaction_shows_readers_the_whole_log_again(brokers: Brokers) -> None:
    client, admin = await published(brokers), Admin(brokers)
    deletion = "DELETE", f"{CLASSIC}/subscription/{COMPACTION}"
    assert (await admin.ask(*deletion)).status == 404
    assert (await compact(brokers))["status"] == "SUCCESS"
    assert brokers[0].stores.side_names()
    assert (await admin.ask(*deletion)).status == 204
    assert not brokers[0].stores.side_names()
    assert (await admin.ask("GET", f"{CLASSIC}/compaction")).json["status"] == "NOT_RUN"
    await client.subscribe(subscription="reader", durable=False, read_compacted=True)
    assert len(await client.deliveries(9)) == 9
    await brokers.restart()
    assert (await compact(brokers))["status"] == "SUCCESS"


async def test_a_compacted_topic_is_migrated_only_after_its_compaction_is_deleted(brokers: Brokers) -> None:
    await published(brokers)
    admin = Admin(brokers)
    assert (await compact(brokers))["status"] == "SUCCESS"
    for force in ("", "?force=true"):
        refused = await admin.ask("POST", f"{SCALABLE}/migrate{force}")
        assert refused.status == 409
        assert f"subscription {COMPACTION} first" in refused.json["reason"]
    assert (await admin.ask("DELETE", f"{CLASSIC}/subscription/{COMPACTION}")).status == 204
    assert (await admin.ask("POST", f"{SCALABLE}/migrate?force=true")).status == 204
    async with brokers.client() as reading:
        start = Checkpoint.earliest()
        consumer: AsyncCheckpointConsumer[bytes] = await reading.create_checkpoint_consumer(
            ORDERS, start=start
        )
        found = await consumer.receive_many(100, timeout=2.0)
        assert [message.value for message in found if message.key == "a"] == [b"%d" % n for n in range(5)]


async def test_scalable_topics_are_not_compacted_and_say_why(brokers: Brokers) -> None:
    admin = Admin(brokers)
    assert (await admin.ask("PUT", SCALABLE)).status == 204
    refused = await admin.ask("PUT", f"{SCALABLE}/compaction")
    assert refused.status == 405
    assert "persistent://" in refused.json["reason"]


@pytest.mark.parametrize("topic", ["classic", "scalable"])
async def test_unloading_a_topic_disconnects_its_clients_and_loses_nothing(
    brokers: Brokers, topic: str
) -> None:
    admin = Admin(brokers)
    if topic == "classic":
        client = await published(brokers)
        await client.subscribe()
        assert (await admin.ask("PUT", f"{CLASSIC}/unload")).status == 204
        await client.expect(pb.CommandCloseProducer)
        await client.expect(pb.CommandCloseConsumer)
        client.inbox.clear()
        await client.subscribe(consumer_id=2)
        assert len(await client.deliveries(9)) == 9
        return
    assert (await admin.ask("PUT", SCALABLE)).status == 204
    async with brokers.client() as ours:
        producer = await ours.create_producer(ORDERS)
        consumer = await ours.subscribe_stream(
            "topic://public/default/orders", "s", initial_position="earliest"
        )
        await producer.send(b"1", key="a")
        assert (await admin.ask("PUT", f"{SCALABLE}/unload")).status == 204
        await producer.send(b"2", key="a")
        got = [(await consumer.receive(timeout=10)).data for _ in range(2)]
        assert got[-1] == b"2"


async def test_an_unknown_topic_is_neither_compacted_nor_unloaded(brokers: Brokers) -> None:
    admin = Admin(brokers)
    for call in ("compaction", "unload"):
        assert (await admin.ask("PUT", f"{CLASSIC}/{call}")).status == 404
    assert (await admin.ask("PUT", f"{SCALABLE}/unload")).status == 404


async def trimmed(brokers: Brokers) -> WireClient:
    """The topic of `published` after a compaction and one more entry; the log dropped all older entries."""
    await published(brokers)
    await compact(brokers)
    # A broker begins a ledger when it starts, and a log drops whole ledgers.
    await brokers.restart()
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"tail"], first=10, key="d")
    log = brokers[0].stores.get("persistent://public/default/orders")
    assert log is not None
    await log.trim(log.extent.next_ordinal - 1)
    assert log.extent.first_ordinal == log.extent.next_ordinal - 1
    return client


@pytest.mark.parametrize("durable", [True, False])
async def test_a_seek_of_a_compacted_reader_finds_what_only_the_compaction_has(
    brokers: Brokers, durable: bool
) -> None:
    client = await trimmed(brokers)
    options: dict[str, Any] = {"subscription": "reader", "read_compacted": True}
    await client.subscribe(durable=durable, **options)
    first, second, last = await client.deliveries(3)
    assert messages_of([first, second, last]) == [b"4", b"z", b"tail"]
    at_first = pb.MessageIdData(ledgerId=first.ledger, entryId=first.entry)
    at_second = pb.MessageIdData(ledgerId=second.ledger, entryId=second.entry)
    earliest = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    for place, found in ((earliest, 3), (at_first, 3), (at_second, 2), (0, 3)):
        aim = {"message_publish_time": place} if place == 0 else {"message_id": place}
        seek: Any = pb.CommandSeek(consumer_id=1, request_id=0, **aim)  # type: ignore[arg-type]
        assert isinstance(await client.request(seek), pb.CommandSuccess)
        client.inbox.clear()
        await client.subscribe(durable=durable, **options)
        assert messages_of(await client.deliveries(found)) == [b"4", b"z", b"tail"][-found:]


async def test_a_durable_compacted_subscription_keeps_its_backlog_while_it_has_no_consumer(
    brokers: Brokers,
) -> None:
    client = await trimmed(brokers)
    await client.subscribe(read_compacted=True)
    first, *_ = await client.deliveries(3)
    await client.acknowledge_durably(first, cumulative=True)
    client.close()
    await brokers.restart()
    admin = Admin(brokers)
    for _ in range(14):
        # The log stays in use, so that a round of trimming looks at its subscriptions.
        assert (await admin.ask("GET", f"{CLASSIC}/stats")).status == 200
        await asyncio.sleep(5)
    client = await brokers.connect()
    await client.subscribe(read_compacted=True)
    assert messages_of(await client.deliveries(2)) == [b"z", b"tail"]
