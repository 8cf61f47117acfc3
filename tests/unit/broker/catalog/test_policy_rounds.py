"""Time to live and backlog quotas: messages are expired, producers refused, and nothing else changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.errors import PublishRefusedError, SendTimeoutError
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import TOPIC, WireClient, error_of, settle, values_of

CHECK_S = 10.0
pytestmark = pytest.mark.brokers(policy_check_s=CHECK_S, log_idle_s=1.0)

NAMESPACE = "/admin/v2/namespaces/public/default"
CLASSIC = "/admin/v2/persistent/public/default/orders"
SCALABLE = "/admin/v2/scalable/public/default/orders"
SLOW = "topic://public/default/orders"


async def set_policy(brokers: Brokers, path: str, body: object) -> None:
    assert (await Admin(brokers).ask("POST", path, body)).status == 204
    await settle()


async def limit_backlog(brokers: Brokers, action: str, size: int, path: str = NAMESPACE) -> None:
    await set_policy(brokers, f"{path}/backlogQuota", {"limitSize": size, "policy": action})


def pending(brokers: Brokers, subscription: str = "sub", topic: str = TOPIC) -> int:
    log = brokers[0].stores.get(topic)
    assert log is not None
    return log.cursors[subscription].acks.pending_count(log.extent.next_ordinal)


async def filled(brokers: Brokers, count: int = 10, size: int = 100) -> WireClient:
    """A client with a producer, and a subscription without permits that leaves these entries pending."""
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(permits=0)
    await client.publish_all([b"%d" % n + bytes(size) for n in range(count)])
    return client


async def test_messages_beyond_their_time_to_live_are_acknowledged_and_younger_ones_stay(
    brokers: Brokers,
) -> None:
    await set_policy(brokers, f"{NAMESPACE}/messageTTL", 30)
    client = await filled(brokers)
    await asyncio.sleep(25)
    assert pending(brokers) == 10
    await client.publish_all([b"young"], first=10)
    await asyncio.sleep(2 * CHECK_S)
    assert pending(brokers) == 1
    client.flow(10)
    (left,) = await client.deliveries(1)
    assert values_of([left]) == [b"young"]
    assert not client.has(pb.CommandCloseConsumer)


async def test_a_topic_may_have_a_longer_time_than_its_namespace(brokers: Brokers) -> None:
    await filled(brokers)
    await set_policy(brokers, f"{CLASSIC}/messageTTL", 1000)
    await set_policy(brokers, f"{NAMESPACE}/messageTTL", 5)
    await asyncio.sleep(100)
    assert pending(brokers) == 10
    assert (await Admin(brokers).ask("DELETE", f"{CLASSIC}/messageTTL")).status == 204
    await asyncio.sleep(2 * CHECK_S)
    assert pending(brokers) == 0


async def test_messages_of_a_log_that_no_client_uses_expire_and_the_log_stays_unloaded(
    brokers: Brokers,
) -> None:
    client = await filled(brokers)
    client.close()
    await asyncio.sleep(20)
    logs = brokers[0].logs
    assert logs.loaded(TopicName.parse(TOPIC)) is None
    await set_policy(brokers, f"{NAMESPACE}/messageTTL", 5)
    await asyncio.sleep(3 * CHECK_S)
    assert pending(brokers) == 0
    resumed = logs.resumed
    await asyncio.sleep(5 * CHECK_S)
    assert logs.resumed == resumed
    assert logs.loaded(TopicName.parse(TOPIC)) is None


async def test_messages_of_a_shared_subscription_expire_also_while_a_consumer_holds_them(
    brokers: Brokers,
) -> None:
    await set_policy(brokers, f"{NAMESPACE}/messageTTL", 30)
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(kind=pb.CommandSubscribe.Shared, permits=3)
    await client.publish_all([b"%d" % n for n in range(5)])
    held = await client.deliveries(3)
    await asyncio.sleep(30 + 2 * CHECK_S)
    assert pending(brokers) == 0
    client.acknowledge(*held)
    await client.publish_all([b"next"], first=5)
    client.flow(5)
    assert values_of(await client.deliveries(1)) == [b"next"]


async def test_messages_of_a_scalable_topic_expire_and_its_stream_goes_on(brokers: Brokers) -> None:
    assert (await Admin(brokers).ask("PUT", SCALABLE)).status == 204
    await set_policy(brokers, f"{SCALABLE}/messageTTL", 30)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(SLOW, "s", initial_position="earliest")
        await consumer.close()
        producer = await client.create_producer(SLOW)
        await producer.send(b"old", key="a")
        await asyncio.sleep(30 + 2 * CHECK_S)
        await producer.send(b"new", key="a")
        consumer = await client.subscribe_stream(SLOW, "s")
        assert (await consumer.receive(timeout=5)).data == b"new"


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("producer_request_hold", pb.ProducerBlockedQuotaExceededError),
        ("producer_exception", pb.ProducerBlockedQuotaExceededException),
    ],
)
async def test_producers_of_a_topic_beyond_its_backlog_are_disconnected_and_refused(
    brokers: Brokers, action: str, code: int
) -> None:
    await limit_backlog(brokers, action, 2000)
    client = await filled(brokers)
    await asyncio.sleep(2 * CHECK_S)
    assert not client.has(pb.CommandCloseProducer)
    await client.publish_all([bytes(1000)] * 2, first=10)
    await asyncio.sleep(2 * CHECK_S)
    assert client.has(pb.CommandCloseProducer)
    refused = await client.producer(producer_id=2)
    assert error_of(refused) == code
    assert "backlogQuota=2000" in refused.message
    client.flow(12)
    found = await client.deliveries(12)
    await client.acknowledge_durably(found[-1], cumulative=True)
    assert isinstance(await client.producer(producer_id=3), pb.CommandProducerSuccess)


async def test_an_old_message_holds_producers_by_its_age(brokers: Brokers) -> None:
    age = {"limitTime": 60, "policy": "producer_exception"}
    await set_policy(brokers, f"{NAMESPACE}/backlogQuota?backlogQuotaType=message_age", age)
    client = await filled(brokers, 1)
    assert isinstance(await client.producer(producer_id=2), pb.CommandProducerSuccess)
    await asyncio.sleep(61)
    assert error_of(await client.producer(producer_id=3)) == pb.ProducerBlockedQuotaExceededException


async def test_eviction_acknowledges_the_oldest_messages_and_no_more(brokers: Brokers) -> None:
    await limit_backlog(brokers, "consumer_backlog_eviction", 3000)
    client = await filled(brokers, 20, 200)
    await asyncio.sleep(2 * CHECK_S)
    left = pending(brokers)
    assert 5 <= left < 13
    client.flow(20)
    found = await client.deliveries(left)
    assert [value.rstrip(b"\0") for value in values_of(found)] == [b"%d" % n for n in range(20 - left, 20)]
    assert not client.has(pb.CommandCloseProducer)
    await asyncio.sleep(2 * CHECK_S)
    assert pending(brokers) == left


async def test_a_topic_without_subscriptions_has_no_backlog(brokers: Brokers) -> None:
    await limit_backlog(brokers, "producer_exception", 10)
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([bytes(100)] * 5)
    await asyncio.sleep(2 * CHECK_S)
    assert not client.has(pb.CommandCloseProducer)


async def test_our_producer_waits_while_it_is_held_and_loses_nothing(brokers: Brokers) -> None:
    assert (await Admin(brokers).ask("PUT", SCALABLE)).status == 204
    await limit_backlog(brokers, "producer_request_hold", 500, SCALABLE)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(SLOW, "s", initial_position="earliest")
        producer = await client.create_producer(SLOW, send_timeout=120)
        for number in range(6):
            await producer.send(b"%d" % number + bytes(100), key="a")
        await asyncio.sleep(2 * CHECK_S)
        waiting = asyncio.ensure_future(producer.send(b"6", key="a"))
        await asyncio.sleep(30)
        assert not waiting.done()
        got = []
        for _ in range(6):
            message = await consumer.receive(timeout=5)
            got.append(message.data.rstrip(b"\0"))
            await consumer.acknowledge(message)
        await waiting
        got.append((await consumer.receive(timeout=60)).data)
        assert got == [b"%d" % number for number in range(7)]


async def test_our_producer_fails_at_once_where_the_quota_says_so(brokers: Brokers) -> None:
    assert (await Admin(brokers).ask("PUT", SCALABLE)).status == 204
    await limit_backlog(brokers, "producer_exception", 500, SCALABLE)
    async with brokers.client() as client:
        await client.subscribe_queue(SLOW, "s", initial_position="earliest")
        producer = await client.create_producer(SLOW, send_timeout=60)
        await producer.send(bytes(1000), key="a")
        await asyncio.sleep(2 * CHECK_S)
        with pytest.raises((PublishRefusedError, SendTimeoutError)):
            await producer.send(b"more", key="a")


def numbers(found: list[Delivery]) -> list[Any]:
    return [(one.ledger, one.entry) for one in found]


async def test_a_restart_forgets_no_expiry(brokers: Brokers) -> None:
    await set_policy(brokers, f"{NAMESPACE}/messageTTL", 30)
    await filled(brokers)
    await asyncio.sleep(30 + 2 * CHECK_S)
    await brokers.restart()
    assert pending(brokers) == 0
    client = await brokers.connect()
    assert isinstance(await client.subscribe(), pb.CommandSuccess)
    await settle()
    assert not numbers(client.has(Delivery))
