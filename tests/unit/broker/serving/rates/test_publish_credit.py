"""Rates of publishing as our clients notice them: credit comes later, and the connection is read."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.protocol.commands import SendReceipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import TOPIC, WireClient, settle

NAMESPACE = "/admin/v2/namespaces/public/default"


async def set_rate(brokers: Brokers, messages: int = -1, size: int = -1) -> None:
    body = {"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": size}
    assert (await Admin(brokers).ask("POST", f"{NAMESPACE}/publishRate", body)).status == 204
    await settle()


async def credit(client: WireClient, producer_id: int = 1) -> tuple[int | None, int | None]:
    """Return the next credit that the broker grants a producer: bytes and messages."""
    told = await client.take(
        lambda c: isinstance(c, pb.CommandProducerCredit) and c.producer_id == producer_id
    )
    return (
        told.bytes if told.HasField("bytes") else None,
        told.messages if told.HasField("messages") else None,
    )


async def test_a_producer_learns_its_credit_before_it_may_send(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer(wants_credit=True)
    of_link, of_producer = client.has(pb.CommandProducerCredit)
    assert of_link.bytes == brokers.config.publish_credit_bytes
    assert not of_link.HasField("producer_id")
    assert of_producer.producer_id == 1
    assert not of_producer.HasField("bytes")


async def test_other_clients_get_no_credit(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"x" * 1000] * 1000)
    assert not client.has(pb.CommandProducerCredit)


@pytest.mark.brokers(publish_credit_bytes=0)
async def test_credits_can_be_switched_off(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer(wants_credit=True)
    await client.publish_all([b"x" * 1000] * 1000)
    assert not client.has(pb.CommandProducerCredit)


async def test_the_broker_tells_which_bytes_it_has_taken(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer(wants_credit=True)
    await client.publish_all([b"x" * 100_000] * 20)
    told = [c.taken_bytes for c in client.has(pb.CommandProducerCredit) if c.HasField("taken_bytes")]
    assert told == sorted(told)
    assert 2_000_000 - brokers.config.publish_credit_bytes // 4 < told[-1] < 2_100_000


async def test_a_connection_is_read_while_its_producer_waits_for_a_rate(brokers: Brokers) -> None:
    await set_rate(brokers, size=1000)
    client = await brokers.connect()
    await client.producer(wants_credit=True)
    assert await credit(client) == (100, None)
    client.publish(b"x" * 10_000, 0)
    assert await credit(client) == (0, None)
    await client.receipt()
    began = brokers.loop.time()
    await client.request(pb.CommandLookupTopic(topic=TOPIC, request_id=0))
    assert brokers.loop.time() - began < 0.05
    totals = brokers[0].quotas.book.throttles.credits
    assert totals.waiting == 1
    metrics = (await Admin(brokers).ask("GET", "/metrics")).body.decode()
    assert 'anabranch_producers_without_credit{worker="0"} 1.0' in metrics
    assert 'anabranch_producer_credit_waits_total{worker="0"} 1.0' in metrics
    assert await credit(client) == (100, None)
    assert 8.0 < brokers.loop.time() - began < 10.0
    assert totals.waiting == 0
    assert 8.0 < totals.seconds < 10.0


async def test_a_new_producer_waits_in_line_without_credit(brokers: Brokers) -> None:
    await set_rate(brokers, messages=10)
    client = await brokers.connect()
    await client.producer(wants_credit=True)
    assert await credit(client) == (None, 1)
    for number in range(30):
        client.publish(b"x", number)
    await client.producer(producer_id=2, wants_credit=True)
    assert await credit(client) == (0, None)
    assert await credit(client, 2) == (0, None)
    assert {await credit(client), await credit(client, 2)} == {(None, 1)}


async def test_a_producer_gets_all_credit_when_its_rate_is_removed(brokers: Brokers) -> None:
    await set_rate(brokers, messages=10)
    client = await brokers.connect()
    await client.producer(wants_credit=True)
    assert await credit(client) == (None, 1)
    assert (await Admin(brokers).ask("DELETE", f"{NAMESPACE}/publishRate")).status == 204
    assert await credit(client) == (None, None)
    await set_rate(brokers, messages=1000)
    assert await credit(client) == (None, 100)


async def test_a_producer_that_leaves_while_it_waits_leaves_the_line(brokers: Brokers) -> None:
    await set_rate(brokers, messages=1)
    client = await brokers.connect()
    await client.producer(wants_credit=True)
    for number in range(20):
        client.publish(b"x", number)
    for _ in range(20):
        await client.receipt()
    throttles = brokers[0].quotas.book.throttles
    assert [gate.waiting for gate in throttles.gates()] == [1]
    client.close()
    await settle()
    assert [gate.waiting for gate in throttles.gates()] == [0]
    assert throttles.credits.waiting == 0


async def test_a_client_that_ignores_its_credit_is_not_read(brokers: Brokers) -> None:
    await set_rate(brokers, size=1000)
    brokers[0].quotas.book.throttles.credits.overdraft_bytes = 100_000
    client = await brokers.connect()
    await client.producer(wants_credit=True)
    for number in range(20):
        client.publish(b"x" * 10_000, number)
        await asyncio.sleep(0.1)
    client.send(pb.CommandLookupTopic(topic=TOPIC, request_id=77))
    await asyncio.sleep(1.0)
    assert not client.has(pb.CommandLookupTopicResponse)
    assert len(client.has(SendReceipt)) < 20
