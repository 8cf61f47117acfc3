"""Delayed entries of subscriptions by key: later entries of the key wait, or pass if consumers ask for it."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.model.hashing import sticky_hash
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import TOPIC, WireClient, settle, value_of

NOW_MS = 1_700_000_000_000


async def subscribe(client: WireClient, choice: str | None = None, permits: int = 1000) -> None:
    meta = pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT)
    pairs = [pb.KeyValue(key="anabranch.delayed", value=choice)] if choice else []
    await client.subscribe(
        kind=pb.CommandSubscribe.Key_Shared, keySharedMeta=meta, metadata=pairs, permits=permits
    )


async def publish(client: WireClient, *values: str) -> None:
    """Entries like `a0` or `a1+60`, which is to be delivered 60 s after the start."""
    for number, value in enumerate(values):
        text, _, after_s = value.partition("+")
        at_ms = NOW_MS + 1000 * int(after_s) if after_s else 0
        client.publish(text.encode(), number, key=text[0], deliver_at_ms=at_ms)
    for _ in values:
        await client.receipt()


def got(client: WireClient) -> str:
    found = " ".join(value_of(one).decode() for one in client.has(Delivery))
    client.inbox.clear()
    return found


@pytest.mark.parametrize("choice", [None, "wait", "something else"])
async def test_later_entries_of_a_key_wait_for_a_delayed_one(brokers: Brokers, choice: str | None) -> None:
    client = await brokers.connect()
    await client.producer()
    await subscribe(client, choice)
    await publish(client, "a0+60", "a1", "b0", "a2+120", "a3")
    await settle()
    assert got(client) == "b0"
    await asyncio.sleep(61)
    assert got(client) == "a0 a1"
    await asyncio.sleep(60)
    assert got(client) == "a2 a3"


async def test_later_entries_pass_a_delayed_one_if_the_consumers_ask_for_it(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await subscribe(client, "pass")
    await publish(client, "a0+60", "a1", "b0", "a2+120", "a3")
    await settle()
    assert got(client) == "a1 b0 a3"
    await asyncio.sleep(61)
    assert got(client) == "a0"
    await asyncio.sleep(60)
    assert got(client) == "a2"


async def test_a_lane_shows_the_delivery_time_of_its_first_entry(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await subscribe(client)
    await publish(client, "a0+60", "a1")
    await settle()
    reading = brokers[0].logs.require(TopicName.parse(TOPIC)).subscriptions["sub"].reading
    lanes = reading.lanes
    assert lanes is not None
    view = lanes.view(sticky_hash(b"a"))
    assert view is not None
    assert (view.reason, view.entries, view.until_ms) == ("delayed", 2, NOW_MS + 60_000)
    assert not lanes.release(sticky_hash(b"a")), "the time of a message is its producer's"


@pytest.mark.parametrize("pause_s", [0, 5, 100])
async def test_an_entry_that_comes_back_does_not_wait_for_a_later_delayed_one(
    brokers: Brokers, pause_s: int
) -> None:
    client = await brokers.connect()
    await client.producer()
    await subscribe(client)
    await publish(client, "a0", "a1+60")
    (first,) = await client.deliveries(1)
    ids = [pb.MessageIdData(ledgerId=first.ledger, entryId=first.entry)]
    pause_ms = 1000 * pause_s
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids, pause_ms=pause_ms))
    await asyncio.sleep(max(pause_s - 1, 0))
    assert got(client) == ""
    await asyncio.sleep(2)
    assert got(client) == ("a0 a1" if pause_s > 60 else "a0")
    await asyncio.sleep(60)
    assert got(client) == ("" if pause_s > 60 else "a1")


@pytest.mark.parametrize(("choice", "soon", "later"), [("wait", "b0", "a0 a1"), ("pass", "a1 b0", "a0")])
async def test_delays_survive_a_restart(brokers: Brokers, choice: str, soon: str, later: str) -> None:
    client = await brokers.connect()
    await client.producer()
    await subscribe(client, choice, permits=0)
    await publish(client, "a0+60", "a1", "b0")
    await asyncio.sleep(5)
    await brokers.restart()
    client = await brokers.connect()
    await subscribe(client, choice)
    await asyncio.sleep(1)
    assert got(client) == soon
    await asyncio.sleep(60)
    assert got(client) == later


async def test_a_delayed_entry_that_passes_is_not_lost_by_a_restart(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await subscribe(client, "pass")
    await publish(client, "a0+60", "a1", "b0", "c0")
    deliveries = await client.deliveries(3)
    # A parked key makes the broker write a note, from which the next start reads.
    ids = [pb.MessageIdData(ledgerId=one.ledger, entryId=one.entry) for one in deliveries[1:2]]
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids, park="look"))
    client.acknowledge(deliveries[0], deliveries[2])
    await asyncio.sleep(5)
    await brokers.restart()
    client = await brokers.connect()
    await subscribe(client, "pass")
    await asyncio.sleep(1)
    assert got(client) == ""
    await asyncio.sleep(60)
    assert got(client) == "a0"
