"""Rates of publishing and delivery, as clients notice them, on virtual time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from anabranch.protocol.commands import Delivery, SendReceipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.segments import WHOLE
from tests.harness.wire import TOPIC, WireClient, look_up, settle

NAMESPACE = "/admin/v2/namespaces/public/default"
QUIET = "persistent://quiet/main/orders"


async def set_rate(brokers: Brokers, name: str, messages: int = -1, size: int = -1) -> None:
    verb = "publish" if name == "publishRate" else "dispatch"
    body = {f"{verb}ThrottlingRateInMsg": messages, f"{verb}ThrottlingRateInByte": size}
    assert (await Admin(brokers).ask("POST", f"{NAMESPACE}/{name}", body)).status == 204
    await settle()


async def publish_for(client: WireClient, seconds: float) -> int:
    """Publish as fast as receipts come, 10 entries at once; return how many receipts came."""
    sent = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                await client.publish_all([b"x" * 100] * 10, first=sent)
                sent += 10
    return sent


async def test_a_producer_is_slowed_to_the_rate_of_its_topic(brokers: Brokers) -> None:
    await set_rate(brokers, "publishRate", messages=100)
    client = await brokers.connect()
    await client.producer()
    assert 1000 <= await publish_for(client, 10.0) <= 1000 + 100 + 30


async def test_bytes_are_limited_too(brokers: Brokers) -> None:
    await set_rate(brokers, "publishRate", size=10_000)
    client = await brokers.connect()
    await client.producer()
    assert 600 <= await publish_for(client, 10.0) <= 1130


@pytest.mark.brokers(publish_messages_per_s=50)
async def test_the_setting_of_the_broker_holds_where_the_namespace_has_no_policy(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    assert await publish_for(client, 10.0) <= 50 * 11 + 30
    await set_rate(brokers, "publishRate", messages=5000)
    assert await publish_for(client, 10.0) > 5000


async def test_a_new_rate_holds_at_once_and_the_end_of_a_rate_too(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await set_rate(brokers, "publishRate", messages=1)
    client.publish(b"x", 0)
    await client.receipt()
    for number in range(1, 200):
        client.publish(b"x", number)
    client.send(pb.CommandPing())
    await asyncio.sleep(3.0)
    assert not client.has(pb.CommandPong)
    assert (await Admin(brokers).ask("DELETE", f"{NAMESPACE}/publishRate")).status == 204
    for _ in range(1, 200):
        await client.receipt()


async def test_a_slowed_connection_stays_connected(brokers: Brokers) -> None:
    await set_rate(brokers, "publishRate", size=100)
    client = await brokers.connect()
    await client.producer()
    client.publish(b"x" * 50_000, 0)
    await client.receipt()
    client.publish(b"next", 1)
    # The entry costs 500 seconds; PINGs of the client are not read meanwhile.
    await asyncio.sleep(400.0)
    assert not client.hung_up
    assert not client.has(SendReceipt)
    await asyncio.sleep(200.0)
    assert not client.hung_up
    await client.receipt()


async def test_connections_far_back_in_the_line_stay_connected(brokers: Brokers) -> None:
    await set_rate(brokers, "publishRate", messages=1)
    clients = [await brokers.connect() for _ in range(150)]
    for number, client in enumerate(clients):
        await client.producer(producer_name=f"p{number}")
        client.publish(b"x", 0)
    await asyncio.sleep(120.0)
    assert sum(bool(client.has(SendReceipt)) for client in clients) < 130
    assert not any(client.hung_up for client in clients)


async def test_quotas_hold_after_a_restart(brokers: Brokers) -> None:
    await set_rate(brokers, "publishRate", messages=50)
    body = {"publishRate": {"publishThrottlingRateInMsg": 20}}
    assert (await Admin(brokers).ask("POST", "/admin/v2/tenants/public/quotas", body)).status == 204
    await brokers.restart()
    client = await brokers.connect()
    await client.producer()
    assert await publish_for(client, 10.0) <= 20 * 11 + 30
    assert len(list(brokers[0].quotas.book.throttles.gates())) == 2


async def test_new_connections_do_not_exceed_the_rate_together(brokers: Brokers) -> None:
    await set_rate(brokers, "publishRate", size=1000)
    first = await brokers.connect()
    await first.producer()
    first.publish(b"x" * 50_000, 0)
    await first.receipt()
    for number in range(10):
        client = await brokers.connect()
        assert isinstance(await client.producer(producer_name=f"p{number}"), pb.CommandProducerSuccess)
        client.publish(b"x" * 50_000, 0)
        await asyncio.sleep(0.1)
        assert not client.has(SendReceipt)
    await asyncio.sleep(60.0)
    (log,) = brokers[0].logs.served
    assert log.log.extent.next_ordinal == 2


async def test_a_lost_connection_leaves_the_line(brokers: Brokers) -> None:
    await set_rate(brokers, "publishRate", messages=1)
    clients = [await brokers.connect() for _ in range(3)]
    for number, client in enumerate(clients):
        await client.producer(producer_name=f"p{number}")
        for sequence_id in range(50):
            client.publish(b"x", sequence_id)
    await asyncio.sleep(0.1)
    (gate,) = brokers[0].quotas.book.throttles.gates()
    assert gate.waiting == 3
    for connection in list(brokers[0].connections):
        connection.hang_up()
    await asyncio.sleep(6.0)
    assert gate.waiting == 0


async def test_a_subscription_without_consumers_leaves_the_line(brokers: Brokers) -> None:
    await set_rate(brokers, "dispatchRate", messages=1)
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"x"] * 10)
    await client.subscribe()
    await asyncio.sleep(0.1)
    (gate,) = brokers[0].quotas.book.throttles.gates()
    assert gate.waiting == 1
    await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0))
    await asyncio.sleep(0.1)
    assert gate.waiting == 0


async def test_others_are_not_slowed(brokers: Brokers) -> None:
    admin = Admin(brokers)
    await admin.ask("PUT", "/admin/v2/tenants/quiet", {"allowedClusters": ["standalone"]})
    await admin.ask("PUT", "/admin/v2/namespaces/quiet/main")
    await admin.ask(
        "POST", "/admin/v2/tenants/public/quotas", {"publishRate": {"publishThrottlingRateInMsg": 10}}
    )
    await settle()
    noisy, other, quiet = [await brokers.connect() for _ in range(3)]
    await noisy.producer()
    await other.producer("persistent://public/default/other")
    await quiet.producer(QUIET)
    counts = await asyncio.gather(*(publish_for(client, 10.0) for client in (noisy, other, quiet)))
    # Two topics of one tenant share its rate.
    assert 100 <= counts[0] + counts[1] <= 10 * 11 + 60
    assert min(counts[:2]) >= 30
    assert counts[2] > 5000


async def test_connections_over_the_rate_go_on_in_turn(brokers: Brokers) -> None:
    await set_rate(brokers, "publishRate", messages=100)
    clients = [await brokers.connect() for _ in range(5)]
    for number, client in enumerate(clients):
        await client.producer(producer_name=f"p{number}")
    counts = await asyncio.gather(*(publish_for(client, 20.0) for client in clients))
    assert sum(counts) <= 100 * 21 + 100
    assert min(counts) >= 0.7 * max(counts)


async def received_in(client: WireClient, seconds: float, consumer_id: int = 1) -> int:
    await asyncio.sleep(seconds)
    return sum(1 for found in client.has(Delivery) if found.consumer_id == consumer_id)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate"])
async def test_deliveries_are_slowed_to_the_rate(brokers: Brokers, kind: str, policy: str) -> None:
    await set_rate(brokers, policy, messages=20)
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"%d" % number for number in range(500)])
    await client.subscribe(kind=pb.CommandSubscribe.SubType.Value(kind))
    assert 20 * 10 <= await received_in(client, 10.0) <= 20 * 11 + 2


async def test_each_subscription_has_its_own_rate(brokers: Brokers) -> None:
    await set_rate(brokers, "subscriptionDispatchRate", messages=20)
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"%d" % number for number in range(500)])
    for number in (1, 2):
        await client.subscribe(subscription=f"s{number}", consumer_id=number, permits=1000)
    await asyncio.sleep(10.0)
    for number in (1, 2):
        assert 200 <= await received_in(client, 0.0, number) <= 222
    assert (await Admin(brokers).ask("DELETE", f"{NAMESPACE}/subscriptionDispatchRate")).status == 204
    await asyncio.sleep(1.0)
    assert await received_in(client, 0.0, 1) == 500


async def test_the_subscriptions_of_a_topic_share_its_rate(brokers: Brokers) -> None:
    await set_rate(brokers, "dispatchRate", messages=20)
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"%d" % number for number in range(500)])
    for number in (1, 2):
        await client.subscribe(subscription=f"s{number}", consumer_id=number, permits=1000)
    await asyncio.sleep(20.0)
    counts = [await received_in(client, 0.0, number) for number in (1, 2)]
    assert 400 <= sum(counts) <= 20 * 21 + 4
    assert min(counts) >= 100


async def test_the_segments_of_a_topic_share_its_rate(brokers: Brokers) -> None:
    await set_rate(brokers, "publishRate", messages=50)
    client = await brokers.connect()
    await look_up(client)
    await client.producer(WHOLE)
    assert await publish_for(client, 5.0) <= 50 * 6 + 30
    # The whole rate goes to the topic: a child continues with the debt of its parent.
    throttle = brokers[0].quotas.book.throttles
    assert [gate.of for gate in throttle.gates()] == ["topic://public/default/orders"]


async def test_a_relative_rate_of_delivery_follows_publishing(brokers: Brokers) -> None:
    body = {"dispatchThrottlingRateInMsg": 10, "relativeToPublishRate": True, "ratePeriodInSecond": 1}
    assert (await Admin(brokers).ask("POST", f"{NAMESPACE}/dispatchRate", body)).status == 204
    await settle()
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"%d" % number for number in range(1000)])
    await client.subscribe(permits=10_000)
    # 1000 messages within the last 10 seconds are 100 a second, and 10 more.
    assert await received_in(client, 5.0) > 300
    await asyncio.sleep(20.0)
    before = await received_in(client, 0.0)
    assert before == 1000


async def test_a_topic_without_limits_has_no_gate(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer(TOPIC)
    await client.subscribe()
    await client.publish_all([b"x"] * 10)
    assert list(brokers[0].quotas.book.throttles.gates()) == []


async def test_waiting_is_visible_in_stats_and_why_and_metrics(brokers: Brokers) -> None:
    await set_rate(brokers, "publishRate", messages=1)
    client = await brokers.connect()
    await look_up(client)
    await client.producer(WHOLE)
    client.publish(b"x", 0)
    client.publish(b"x", 1)
    await client.receipt()
    await asyncio.sleep(0.1)
    admin = Admin(brokers)
    waits = "1 producer or connection waits for publishRate of topic://public/default/orders"
    why = (await admin.ask("GET", "/admin/v2/scalable/public/default/orders/why")).json
    assert any(waits in text for text in why["troubles"].values()), why
    stats = await admin.ask("GET", "/admin/v2/scalable/public/default/orders/segments/0/stats")
    assert stats.json["publishRateLimitedTimes"] == 1
    metrics = (await admin.ask("GET", "/metrics")).body.decode()
    labels = '{worker="0",policy="publishRate",of="topic://public/default/orders"}'
    assert f"anabranch_rate_held{labels} 1" in metrics
    assert f"anabranch_rate_holds_total{labels} 1" in metrics


PERSISTENT = "/admin/v2/persistent/public/default"


async def rate_of_topic(brokers: Brokers, topic: str, messages: int) -> None:
    body = {"publishThrottlingRateInMsg": messages}
    assert (await Admin(brokers).ask("POST", f"{PERSISTENT}/{topic}/publishRate", body)).status == 204
    await settle()


async def test_a_rate_of_a_topic_replaces_that_of_its_namespace(brokers: Brokers) -> None:
    await set_rate(brokers, "publishRate", messages=10)
    slow, free = await brokers.connect(), await brokers.connect()
    await slow.producer("persistent://public/default/slow")
    await free.producer("persistent://public/default/free")
    await rate_of_topic(brokers, "slow", 50)
    await rate_of_topic(brokers, "free", -1)
    assert 400 <= await publish_for(slow, 10.0) <= 50 * 11 + 30
    assert await publish_for(free, 10.0) > 1000
    await brokers.restart()
    slow = await brokers.connect()
    await slow.producer("persistent://public/default/slow")
    assert 400 <= await publish_for(slow, 10.0) <= 50 * 11 + 30


async def test_each_partition_has_the_rate_of_its_topic(brokers: Brokers) -> None:
    assert (await Admin(brokers).ask("PUT", f"{PERSISTENT}/parts/partitions", 2)).status == 204
    await rate_of_topic(brokers, "parts", 50)
    client = await brokers.connect()
    await client.producer("persistent://public/default/parts-partition-1")
    assert 400 <= await publish_for(client, 10.0) <= 50 * 11 + 30


async def test_a_rate_of_delivery_of_a_topic_holds(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"x"] * 200)
    body = {"dispatchThrottlingRateInMsg": 10}
    topic = TOPIC.rpartition("/")[2]
    for name in ("dispatchRate", "subscriptionDispatchRate"):
        assert (await Admin(brokers).ask("POST", f"{PERSISTENT}/{topic}/{name}", body)).status == 204
    await settle()
    await client.subscribe()
    await asyncio.sleep(5.0)
    assert 40 <= len(client.has(Delivery)) <= 70
