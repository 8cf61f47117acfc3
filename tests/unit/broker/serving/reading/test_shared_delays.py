"""Delayed entries of a Shared subscription."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from anabranch.broker.dispatch.delayed_log import DelayedLog
from anabranch.broker.serving.reading import shared_reading
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import TOPIC, WireClient, settle, values_of

NOW_MS = 1_700_000_000_000
SHARED = pb.CommandSubscribe.Shared


async def publish(client: WireClient, *entries: tuple[bytes, int]) -> None:
    """Entries with the seconds from the start after which they are due, 0 for at once."""
    for number, (value, after_s) in enumerate(entries):
        at_ms = NOW_MS + 1000 * after_s if after_s else 0
        client.publish(value, number, deliver_at_ms=at_ms)
    for _ in entries:
        await client.receipt()


async def test_entries_that_were_due_first_go_out_first_when_a_consumer_is_slow(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(kind=SHARED, permits=1)
    await publish(client, (b"now", 0), (b"late", 60), (b"soon", 30), (b"soon too", 30))
    assert values_of(await client.deliveries(1)) == [b"now"]
    client.flow(1)
    await asyncio.sleep(70)
    assert values_of(client.has(Delivery)) == [b"soon"]
    client.flow(10)
    await settle()
    assert values_of(client.has(Delivery)) == [b"soon", b"soon too", b"late"]


async def test_delays_go_on_when_the_last_consumer_leaves_and_when_the_broker_restarts(
    brokers: Brokers,
) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(kind=SHARED)
    await publish(client, (b"a", 60), (b"b", 0), (b"c", 30))
    (first,) = await client.deliveries(1)
    await client.acknowledge_durably(first)
    await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0))
    await client.subscribe(kind=SHARED)
    await settle()
    assert client.has(Delivery) == []
    await brokers.restart()
    client = await brokers.connect()
    await client.subscribe(kind=SHARED)
    await asyncio.sleep(35)
    assert values_of(client.has(Delivery)) == [b"c"]
    await asyncio.sleep(30)
    assert values_of(client.has(Delivery)) == [b"c", b"a"]


async def test_a_restart_delivers_others_before_it_reads_entries_that_are_due_much_later(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(DelayedLog, block_bits=2)
    monkeypatch.setattr(shared_reading, "DelayedLog", small)
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(kind=SHARED)
    later = [(b"%d" % number, 600 + number) for number in range(40)]
    await publish(client, *later)
    await asyncio.sleep(5)
    client.publish(b"now", len(later))
    await client.deliveries(1)
    await asyncio.sleep(5)
    await brokers.restart()
    client = await brokers.connect()
    await client.subscribe(kind=SHARED)
    await asyncio.sleep(5)
    assert values_of(client.has(Delivery)) == [b"now"]
    subscription = brokers[0].logs.require(TopicName.parse(TOPIC)).subscriptions["sub"]
    assert subscription.counters.entries_read < 10
    await asyncio.sleep(700)
    assert values_of(client.has(Delivery))[1:] == [value for value, _ in later]
