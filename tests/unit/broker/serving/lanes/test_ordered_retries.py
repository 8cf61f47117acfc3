"""Negative acknowledgements of subscriptions by key: a key comes back in order, paused or parked if asked."""

from __future__ import annotations

import asyncio

from anabranch.broker.serving.delivery.retries import PAUSE_MS_MAX, Retry, retry_of
from anabranch.model.hashing import sticky_hash
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import TOPIC, WireClient, settle, value_of, values_of

KEY_SHARED = pb.CommandSubscribe.Key_Shared


async def keyed_client(brokers: Brokers, values: str, *, permits: int = 1000) -> WireClient:
    """A consumer of entries like `a0 b0 a1`, each under the key of its letter."""
    client = await brokers.connect()
    await client.producer()
    meta = pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT)
    await client.subscribe(kind=KEY_SHARED, permits=permits, keySharedMeta=meta)
    for number, value in enumerate(values.split()):
        client.publish(value.encode(), number, key=value[0])
    return client


def nack(client: WireClient, *deliveries: Delivery, **fields: object) -> None:
    ids = [pb.MessageIdData(ledgerId=one.ledger, entryId=one.entry) for one in deliveries]
    command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids)
    for name, value in fields.items():
        setattr(command, name, value)
    client.send(command)


def texts(deliveries: list[Delivery]) -> str:
    return " ".join(value_of(one).decode() for one in deliveries)


async def test_the_later_entries_of_a_key_come_back_with_the_named_one_and_in_order(brokers: Brokers) -> None:
    client = await keyed_client(brokers, "a0 b0 a1 a2 b1")
    got = {value_of(one): one for one in await client.deliveries(5)}
    nack(client, got[b"a1"])
    again = await client.deliveries(2)
    await settle()
    assert [(value_of(one), one.redelivery_count) for one in again] == [(b"a1", 1), (b"a2", 0)]
    assert client.has(Delivery) == [], "other keys, and the entries before, are not disturbed"


async def test_named_entries_alone_count_as_redelivered(brokers: Brokers) -> None:
    client = await keyed_client(brokers, "a0 a1 a2 a3")
    got = await client.deliveries(4)
    nack(client, got[2], got[0])
    again = await client.deliveries(4)
    assert [one.redelivery_count for one in again] == [1, 0, 1, 0]
    assert texts(again) == "a0 a1 a2 a3"


async def test_an_entry_acknowledged_meanwhile_does_not_come_back(brokers: Brokers) -> None:
    client = await keyed_client(brokers, "a0 a1 a2")
    got = await client.deliveries(3)
    nack(client, got[0])
    client.acknowledge(got[1])
    await settle()
    assert texts(client.has(Delivery)) == "a0 a2"


async def test_a_paused_key_waits_and_other_keys_go_on(brokers: Brokers) -> None:
    client = await keyed_client(brokers, "a0 b0")
    got = {value_of(one): one for one in await client.deliveries(2)}
    nack(client, got[b"a0"], pause_ms=5000)
    client.publish(b"a1", 2, key="a")
    client.publish(b"b1", 3, key="b")
    await asyncio.sleep(4.9)
    assert texts(client.has(Delivery)) == "b1"
    client.inbox.clear()
    await asyncio.sleep(0.2)
    assert texts(client.has(Delivery)) == "a0 a1"


async def test_a_longer_pause_stays_and_a_park_stays_longer(brokers: Brokers) -> None:
    client = await keyed_client(brokers, "a0 a1")
    got = await client.deliveries(2)
    nack(client, got[1], pause_ms=5000)
    await settle()
    nack(client, got[0], pause_ms=1000)
    await asyncio.sleep(4)
    assert client.has(Delivery) == []
    await asyncio.sleep(2)
    got = await client.deliveries(2)
    nack(client, got[1], park="it fails always")
    await settle()
    nack(client, got[0], pause_ms=1000)
    await asyncio.sleep(1000)
    assert client.has(Delivery) == []


async def test_a_parked_key_waits_until_it_is_released(brokers: Brokers) -> None:
    client = await keyed_client(brokers, "a0 b0 a1")
    got = {value_of(one): one for one in await client.deliveries(3)}
    nack(client, got[b"a0"], park="bad order")
    client.publish(b"a2", 3, key="a")
    client.publish(b"b1", 4, key="b")
    await asyncio.sleep(1000)
    assert texts(client.has(Delivery)) == "b1"
    client.inbox.clear()
    subscription = brokers[0].logs.require(TopicName.parse(TOPIC)).subscriptions["sub"]
    lanes = subscription.reading.lanes
    assert lanes is not None
    slot = sticky_hash(b"a")
    view = lanes.view(slot)
    assert view is not None
    assert (view.reason, view.entries, view.note) == ("parked", 3, "bad order")
    lanes.release(slot)
    subscription.schedule()
    await settle()
    assert texts(client.has(Delivery)) == "a0 a1 a2"


def test_a_pause_is_bounded() -> None:
    ids = [pb.MessageIdData(ledgerId=1, entryId=1)]
    for pause_ms, bounded in ((0, 0), (5, 5), (PAUSE_MS_MAX + 1, PAUSE_MS_MAX), (2**64 - 1, PAUSE_MS_MAX)):
        command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids, pause_ms=pause_ms)
        assert retry_of(command) == Retry(bounded, None)


async def test_a_park_without_messages_parks_nothing(brokers: Brokers) -> None:
    client = await keyed_client(brokers, "a0 b0")
    await client.deliveries(2)
    nack(client, park="all of them", pause_ms=1000)
    await settle()
    assert sorted(values_of(client.has(Delivery))) == [b"a0", b"b0"]


async def test_a_message_that_another_consumer_holds_pauses_nothing(brokers: Brokers) -> None:
    client = await keyed_client(brokers, "a0")
    (first,) = await client.deliveries(1)
    client.acknowledge(first)
    await settle()
    nack(client, first, park="too late")
    client.publish(b"a1", 1, key="a")
    await settle()
    assert texts(client.has(Delivery)) == "a1"
