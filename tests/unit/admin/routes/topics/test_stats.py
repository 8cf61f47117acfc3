"""The stats of a classic topic: the keys of Pulsar, and figures that move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import CLASSIC, Admin
from tests.harness.wire import WireClient, settle

NAME = "persistent://public/default/classic"

TOPIC_KEYS = """
    msgRateIn msgThroughputIn msgRateOut msgThroughputOut bytesInCounter msgInCounter bytesOutCounter
    msgOutCounter averageMsgSize msgChunkPublished storageSize backlogSize offloadedStorageSize
    oldestBacklogMessageAgeSeconds publishers waitingPublishers subscriptions replication
    deduplicationStatus topicEpoch ownerBroker topicCreationTimeStamp lastPublishTimeStamp compaction
    ongoingTxnCount abortedTxnCount committedTxnCount
"""
PUBLISHER_KEYS = """
    accessMode msgRateIn msgThroughputIn averageMsgSize chunkedMessageRate producerId
    supportsPartialProducer producerName address connectedSince clientVersion metadata
"""
SUBSCRIPTION_KEYS = """
    msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver messageAckRate msgBacklog
    backlogSize msgBacklogNoDelayed msgDelayed msgInReplay unackedMessages
    blockedSubscriptionOnUnackedMsgs type activeConsumerName msgRateExpired lastConsumedTimestamp
    lastAckedTimestamp lastMarkDeleteAdvancedTimestamp consumers isDurable durable isReplicated
    replicated allowOutOfOrderDelivery keySharedMode subscriptionProperties
"""
CONSUMER_KEYS = """
    consumerName availablePermits unackedMessages avgMessagesPerEntry blockedConsumerOnUnackedMsgs
    msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver messageAckRate address
    connectedSince clientVersion lastAckedTimestamp lastConsumedTimestamp keyHashRanges metadata
"""


TIMES = ("lastConsumedTimestamp", "lastAckedTimestamp", "lastConsumedFlowTimestamp")
MOVED = "lastMarkDeleteAdvancedTimestamp"
KINDS = {
    "Exclusive": pb.CommandSubscribe.Exclusive,
    "Failover": pb.CommandSubscribe.Failover,
    "Shared": pb.CommandSubscribe.Shared,
    "Key_Shared": pb.CommandSubscribe.Key_Shared,
}


async def stats_of(admin: Admin, query: str = "") -> Any:
    return (await admin.ask("GET", f"{CLASSIC}/stats{query}")).json


async def sub_of(admin: Admin) -> Any:
    return (await stats_of(admin))["subscriptions"]["sub"]


async def redeliver(client: WireClient) -> None:
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    await settle()


async def test_stats_have_the_keys_of_pulsar(admin: Admin) -> None:
    client = await admin.brokers.connect()
    await client.producer(NAME)
    await client.subscribe(NAME)
    shown = await stats_of(admin)
    sub = shown["subscriptions"]["sub"]
    assert set(TOPIC_KEYS.split()) <= set(shown)
    assert set(PUBLISHER_KEYS.split()) <= set(shown["publishers"][0])
    assert set(SUBSCRIPTION_KEYS.split()) <= set(sub)
    assert set(CONSUMER_KEYS.split()) <= set(sub["consumers"][0])
    assert set(shown["compaction"]) == {
        "lastCompactionRemovedEventCount",
        "lastCompactionSucceedTimestamp",
        "lastCompactionFailedTimestamp",
        "lastCompactionDurationTimeInMills",
    }


async def test_publishers_and_consumers_are_left_out_on_request(admin: Admin) -> None:
    client = await admin.brokers.connect()
    await client.producer(NAME)
    await client.subscribe(NAME)
    whole, lean = (
        await stats_of(admin),
        await stats_of(admin, "?excludePublishers=true&excludeConsumers=true"),
    )
    assert (len(whole["publishers"]), len(whole["subscriptions"]["sub"]["consumers"])) == (1, 1)
    assert (lean["publishers"], lean["subscriptions"]["sub"]["consumers"]) == ([], [])


@pytest.mark.parametrize("kind", KINDS)
async def test_rates_follow_the_counters_and_fall_to_zero(admin: Admin, kind: str) -> None:
    client = await admin.brokers.connect()
    await client.producer(NAME, producer_name="p")
    await client.subscribe(NAME, kind=KINDS[kind])
    for _ in range(4):
        await client.publish_all([b"x"] * 10, first=len(client.inbox))
        client.inbox.clear()
        await asyncio.sleep(1)
    shown = await stats_of(admin)
    publisher, sub = shown["publishers"][0], shown["subscriptions"]["sub"]
    consumer = sub["consumers"][0]
    assert 0 < publisher["msgRateIn"] == shown["msgRateIn"]
    assert 0 < publisher["msgThroughputIn"] == shown["msgThroughputIn"]
    assert 0 < consumer["msgRateOut"] == sub["msgRateOut"] == shown["msgRateOut"]
    assert 0 < consumer["msgThroughputOut"] == sub["msgThroughputOut"] == shown["msgThroughputOut"]
    assert publisher["chunkedMessageRate"] == sub["msgRateRedeliver"] == sub["messageAckRate"] == 0
    await asyncio.sleep(600)
    shown = await stats_of(admin)
    consumer = shown["subscriptions"]["sub"]["consumers"][0]
    assert shown["publishers"][0]["msgRateIn"] == consumer["msgRateOut"] == 0
    assert consumer["msgOutCounter"] > 0


@pytest.mark.parametrize("kind", KINDS)
async def test_acknowledged_and_redelivered_messages_have_rates(admin: Admin, kind: str) -> None:
    client = await admin.brokers.connect()
    await client.producer(NAME)
    await client.subscribe(NAME, kind=KINDS[kind])
    await client.publish_all([b"x"] * 10)
    sent = await client.deliveries(10)
    await client.acknowledge_durably(*sent[:4])
    sub = await sub_of(admin)
    (consumer,) = sub["consumers"]
    assert consumer["messageAckRate"] == sub["messageAckRate"] == pytest.approx(sub["msgRateOut"] * 0.4)
    await redeliver(client)
    await client.deliveries(6)
    sub = await sub_of(admin)
    (consumer,) = sub["consumers"]
    assert consumer["msgRateRedeliver"] == sub["msgRateRedeliver"] > 0
    assert sub["msgRateRedeliver"] == pytest.approx(sub["messageAckRate"] * 1.5)
    client.close()
    await settle()
    left = await sub_of(admin)
    assert left["messageAckRate"] == sub["messageAckRate"]
    assert left["msgRateRedeliver"] == sub["msgRateRedeliver"]


async def test_timestamps_move_with_their_events_and_outlive_the_consumer(admin: Admin) -> None:
    client = await admin.brokers.connect()
    assert (await admin.ask("PUT", CLASSIC)).status == 204
    assert (await admin.ask("PUT", f"{CLASSIC}/subscription/sub", "earliest")).status == 204
    before = await sub_of(admin)
    assert [before[name] for name in (*TIMES, MOVED, "lastExpireTimestamp", "type")] == [0, 0, 0, 0, 0, ""]
    await client.producer(NAME)
    await client.subscribe(NAME, kind=pb.CommandSubscribe.Shared)
    await client.publish_all([b"x"] * 3)
    sent = await client.deliveries(3)
    await asyncio.sleep(5)
    await client.acknowledge_durably(sent[1])
    held = await sub_of(admin)
    assert held["lastAckedTimestamp"] > held["lastConsumedTimestamp"] >= held["lastConsumedFlowTimestamp"] > 0
    assert held[MOVED] == 0
    await asyncio.sleep(5)
    await client.acknowledge_durably(sent[0])
    moved = await sub_of(admin)
    assert moved[MOVED] == moved["lastAckedTimestamp"] >= held["lastAckedTimestamp"] + 5000
    client.close()
    await asyncio.sleep(5)
    left = await sub_of(admin)
    assert left["consumers"] == []
    assert left["type"] == "Shared"
    assert [left[name] for name in (*TIMES, MOVED)] == [moved[name] for name in (*TIMES, MOVED)]


async def test_expired_messages_have_a_time_and_a_rate_and_move_the_mark(admin: Admin) -> None:
    client = await admin.brokers.connect()
    await client.producer(NAME)
    await client.subscribe(NAME, permits=0)
    await client.publish_all([b"x"] * 3)
    await asyncio.sleep(20)
    assert (await stats_of(admin))["oldestBacklogMessageAgeSeconds"] == 20
    assert (await admin.ask("POST", f"{CLASSIC}/subscription/sub/expireMessages/10")).status == 204
    shown = await stats_of(admin)
    sub = shown["subscriptions"]["sub"]
    assert (sub["msgBacklog"], shown["oldestBacklogMessageAgeSeconds"]) == (0, -1)
    assert sub["msgRateExpired"] > 0
    assert sub["lastExpireTimestamp"] == sub[MOVED] >= shown["lastPublishTimeStamp"] + 20_000


@pytest.mark.brokers(max_unacked_per_consumer=2, max_unacked_per_subscription=3)
async def test_a_consumer_and_a_subscription_are_shown_as_blocked(admin: Admin) -> None:
    client = await admin.brokers.connect()
    await client.producer(NAME)
    await client.subscribe(NAME, kind=pb.CommandSubscribe.Shared)
    await client.publish_all([b"x"] * 2)
    await client.deliveries(2)
    sub = await sub_of(admin)
    assert (sub["consumers"][0]["blockedConsumerOnUnackedMsgs"], sub["unackedMessages"]) == (True, 2)
    assert sub["blockedSubscriptionOnUnackedMsgs"] is False
    await client.subscribe(NAME, kind=pb.CommandSubscribe.Shared, consumer_id=2)
    await client.publish_all([b"x"] * 2, first=2)
    await client.deliveries(1, consumer_id=2)
    assert (await sub_of(admin))["blockedSubscriptionOnUnackedMsgs"] is True


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
async def test_delayed_messages_are_counted_apart(admin: Admin, kind: str) -> None:
    client = await admin.brokers.connect()
    await client.producer(NAME)
    await client.subscribe(NAME, kind=KINDS[kind])
    later_ms = admin.broker.clock.wall_ms() + 60_000
    client.publish(b"later", 0, key="k", deliver_at_ms=later_ms)
    client.publish(b"now", 1, key="other")
    await client.deliveries(1)
    sub = await sub_of(admin)
    assert (sub["msgBacklog"], sub["msgDelayed"], sub["msgBacklogNoDelayed"]) == (2, 1, 1)
    await asyncio.sleep(61)
    await client.deliveries(1)
    assert (await sub_of(admin))["msgDelayed"] == 0


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
async def test_entries_that_wait_for_another_delivery_are_counted(admin: Admin, kind: str) -> None:
    client = await admin.brokers.connect()
    await client.producer(NAME)
    await client.subscribe(NAME, kind=KINDS[kind], permits=3)
    await client.publish_all([b"x"] * 3)
    await client.deliveries(3)
    await redeliver(client)
    assert (await sub_of(admin))["msgInReplay"] == 3
    client.flow(3)
    await client.deliveries(3)
    assert (await sub_of(admin))["msgInReplay"] == 0


async def test_only_ordered_subscriptions_have_an_active_consumer(admin: Admin) -> None:
    client = await admin.brokers.connect()
    sticky = pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=0, end=65535)])
    found: dict[str, tuple[str, str | None]] = {}
    for number, (kind, value) in enumerate(KINDS.items()):
        options: dict[str, Any] = {"keySharedMeta": sticky} if kind == "Key_Shared" else {}
        await client.subscribe(NAME, subscription=kind, kind=value, consumer_id=number, name=kind, **options)
    for kind, sub in (await stats_of(admin))["subscriptions"].items():
        found[kind] = sub["activeConsumerName"], sub["keySharedMode"]
        assert (sub["type"], sub["allowOutOfOrderDelivery"]) == (kind, False)
    assert found == {
        "Exclusive": ("Exclusive", None),
        "Failover": ("Failover", None),
        "Shared": ("", None),
        "Key_Shared": ("", "STICKY"),
    }


async def test_chunks_are_shown(admin: Admin) -> None:
    async with admin.brokers.client() as client:
        producer = await client.create_producer(NAME, chunking=True)
        await producer.send(b"small")
        assert (await stats_of(admin))["msgChunkPublished"] is False
        await producer.send(bytes(6 * 2**20))
        shown = await stats_of(admin)
        assert shown["msgChunkPublished"] is True
        assert shown["publishers"][0]["chunkedMessageRate"] > 0


async def test_a_compaction_is_shown(admin: Admin) -> None:
    client = await admin.brokers.connect()
    await client.producer(NAME)
    await client.publish_all([b"x", b"y", b"z"], key="k")
    assert not any((await stats_of(admin))["compaction"].values())
    assert (await admin.ask("PUT", f"{CLASSIC}/compaction")).status == 204
    await asyncio.sleep(1)
    compaction = (await stats_of(admin))["compaction"]
    assert compaction["lastCompactionRemovedEventCount"] == 2
    assert compaction["lastCompactionSucceedTimestamp"] > compaction["lastCompactionFailedTimestamp"] == 0


async def test_the_stats_of_partitions_are_added_up(admin: Admin) -> None:
    parts = "/admin/v2/persistent/public/default/parts"
    assert (await admin.ask("PUT", f"{parts}/partitions", 2)).status == 204
    client = await admin.brokers.connect()
    for number in range(2):
        name = f"persistent://public/default/parts-partition-{number}"
        await client.producer(name, producer_id=number)
        await client.subscribe(name, consumer_id=number)
        await client.publish_all([b"x"] * 5, producer_id=number)
    await client.deliveries(10)
    await asyncio.sleep(7)
    shown = (await admin.ask("GET", f"{parts}/partitioned-stats")).json
    each = shown["partitions"].values()
    sub = shown["subscriptions"]["sub"]
    assert sub["msgRateOut"] == sum(one["subscriptions"]["sub"]["msgRateOut"] for one in each) > 0
    assert (shown["oldestBacklogMessageAgeSeconds"], sub["type"]) == (7, "Exclusive")
