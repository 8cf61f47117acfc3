"""The lanes of stuck keys over the admin API: listed, looked into, released and skipped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch import AsyncClient, AsyncStreamConsumer
from anabranch.admin import lane_reports
from anabranch.broker.serving import lane_totals
from anabranch.broker.serving.keyed_reading import KeyedReading
from anabranch.broker.serving.subscription import Subscription
from anabranch.model.hashing import sticky_hash
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import ORDERS, Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, batch, settle, value_of

TOPIC = "persistent://public/default/held"
PATH = "/admin/v2/persistent/public/default/held/subscription/s/lanes"
LOWER, UPPER = (0, 32767), (32768, 65535)
STUCK, FREE = "k0", "k3"


def slot_of(key: str) -> int:
    return sticky_hash(key.encode())


def sticky(hashes: tuple[int, int]) -> pb.KeySharedMeta:
    ranges = [pb.IntRange(start=hashes[0], end=hashes[1])]
    return pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=ranges)


async def stuck_key(brokers: Brokers, count: int = 5, topic: str = TOPIC) -> tuple[WireClient, WireClient]:
    """A consumer without permits whose key waits, and a consumer that receives its own."""
    assert slot_of(STUCK) <= LOWER[1] < slot_of(FREE)
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer(topic)
    for client, hashes, permits in ((one, LOWER, 0), (two, UPPER, 1000)):
        await client.subscribe(
            topic,
            "s",
            kind=pb.CommandSubscribe.Key_Shared,
            permits=permits,
            keySharedMeta=sticky(hashes),
            name=f"reader-{hashes[0]}",
        )
    for number in range(count):
        for at, key in enumerate((STUCK, FREE)):
            one.publish(f"{key}:{number}".encode(), 2 * number + at, key=key)
    for _ in range(2 * count):
        await one.receipt()
    await settle()
    assert len(two.has(Delivery)) == count
    # A short wait is not shown.
    await asyncio.sleep(2)
    return one, two


def subscription_of(brokers: Brokers, topic: str = TOPIC) -> Subscription:
    return brokers[0].logs.require(TopicName.parse(topic)).subscriptions["s"]


async def get(admin: Admin, path: str = PATH) -> Any:
    answer = await admin.ask("GET", path)
    assert answer.status == 200, answer.body
    return answer.json


async def test_a_stuck_key_is_listed_with_its_reason_size_and_consumer(brokers: Brokers) -> None:
    await stuck_key(brokers)
    admin = Admin(brokers)
    (lane,) = await get(admin)
    assert lane["lane"] == str(slot_of(STUCK))
    assert lane["slot"] == slot_of(STUCK)
    assert lane["reason"] == "busy"
    assert lane["heldEntries"] == 5
    assert lane["heldBytes"] > 5 * len(f"{STUCK}:0")
    assert lane["waitsFor"] == "reader-0"
    assert lane["sampleKey"] == STUCK
    assert lane["log"] == TOPIC
    assert await get(admin, f"{PATH}/{lane['lane']}") == lane


@pytest.mark.brokers(lane_after_s=60.0)
async def test_a_short_wait_is_shown_by_its_slot_only(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer(TOPIC)
    meta = sticky(LOWER)
    await two.subscribe(TOPIC, "s", kind=pb.CommandSubscribe.Key_Shared, permits=0, keySharedMeta=meta)
    other = sticky(UPPER)
    await one.subscribe(TOPIC, "s", kind=pb.CommandSubscribe.Key_Shared, permits=9, keySharedMeta=other)
    one.publish(b"0", 0, key=STUCK)
    await one.receipt()
    await settle()
    admin = Admin(brokers)
    assert await get(admin) == []
    assert (await get(admin, f"{PATH}/{slot_of(STUCK)}"))["heldEntries"] == 1


async def test_a_peek_shows_the_first_messages_and_delivers_nothing(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers)
    admin = Admin(brokers)
    messages = await get(admin, f"{PATH}/{slot_of(STUCK)}/messages?count=2")
    assert [message["payload"] for message in messages] == [f"{STUCK}:0", f"{STUCK}:1"]
    assert [message["key"] for message in messages] == [STUCK, STUCK]
    assert messages[0]["sizeBytes"] == len(f"{STUCK}:0")
    assert one.has(Delivery) == []
    assert (await get(admin, f"{PATH}/{slot_of(STUCK)}"))["heldEntries"] == 5
    one.flow(10)
    await settle()
    assert [value_of(found) for found in one.has(Delivery)] == [f"{STUCK}:{n}".encode() for n in range(5)]


async def test_a_peek_counts_messages_of_batches_and_leaves_acknowledged_ones_out(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers, count=0)
    one.publish(b"", 100, entry=batch([b"a", b"b", b"c"], 100, key=STUCK), messages=3)
    one.publish(b"", 103, entry=batch([b"d", b"e"], 103, key=STUCK), messages=2)
    for _ in range(2):
        await one.receipt()
    await settle()
    subscription = subscription_of(brokers)
    subscription.cursor.acknowledge_part(0, 0b101, 3)
    path = f"{PATH}/{slot_of(STUCK)}/messages"
    shown = await get(Admin(brokers), f"{path}?count=3")
    assert [message["payload"] for message in shown] == ["a", "c", "d"]
    assert [message["messageId"].rpartition(":")[2] for message in shown] == ["0", "2", "0"]


async def test_a_skip_of_the_last_messages_of_a_sealed_log_ends_it(brokers: Brokers) -> None:
    one, two = await stuck_key(brokers)
    two.acknowledge(*two.has(Delivery))
    admin = Admin(brokers)
    assert (await admin.ask("POST", PATH.replace("/subscription/s/lanes", "/terminate"))).status == 200
    await settle()
    assert two.has(pb.CommandReachedEndOfTopic) == []
    assert (await admin.ask("POST", f"{PATH}/{slot_of(STUCK)}/skip")).json == {"skippedEntries": 5}
    await settle()
    assert len(two.has(pb.CommandReachedEndOfTopic)) == 1
    assert len(one.has(pb.CommandReachedEndOfTopic)) == 1


async def test_a_long_payload_is_shortened(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers, count=0)
    one.publish(b"x" * 5000, 100, key=STUCK)
    await one.receipt()
    await settle()
    (message,) = await get(Admin(brokers), f"{PATH}/{slot_of(STUCK)}/messages")
    assert message["sizeBytes"] == 5000
    assert message["payload"] == "x" * 200


async def test_skipped_messages_never_reach_the_consumer(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers)
    admin = Admin(brokers)
    answer = await admin.ask("POST", f"{PATH}/{slot_of(STUCK)}/skip?count=2")
    assert answer.json == {"skippedEntries": 2}
    one.flow(10)
    await settle()
    assert [value_of(found) for found in one.has(Delivery)] == [f"{STUCK}:{n}".encode() for n in (2, 3, 4)]


async def test_a_skip_of_the_whole_lane_ends_it(brokers: Brokers) -> None:
    await stuck_key(brokers)
    admin = Admin(brokers)
    before = subscription_of(brokers).backlog
    answer = await admin.ask("POST", f"{PATH}/{slot_of(STUCK)}/skip")
    assert answer.json == {"skippedEntries": 5}
    assert await get(admin) == []
    assert subscription_of(brokers).backlog == before - 5
    again = await admin.ask("POST", f"{PATH}/{slot_of(STUCK)}/skip")
    assert again.status == 404


async def test_a_large_lane_is_skipped_in_slices(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_reports, "SKIP_ENTRIES", 2)
    one, _ = await stuck_key(brokers)
    answer = await Admin(brokers).ask("POST", f"{PATH}/{slot_of(STUCK)}/skip?count=3")
    assert answer.json == {"skippedEntries": 3}
    one.flow(10)
    await settle()
    assert [value_of(found) for found in one.has(Delivery)] == [f"{STUCK}:{n}".encode() for n in (3, 4)]


async def test_a_parked_lane_goes_on_after_its_release(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers)
    admin = Admin(brokers)
    reading = subscription_of(brokers).reading
    assert isinstance(reading, KeyedReading)
    reading.park_slot(slot_of(STUCK), "three attempts failed")
    one.flow(10)
    await settle()
    assert one.has(Delivery) == []
    shown = await get(admin, f"{PATH}/{slot_of(STUCK)}")
    assert (shown["reason"], shown["note"]) == ("parked", "three attempts failed")
    assert (await admin.ask("POST", f"{PATH}/{slot_of(STUCK)}/release")).status == 204
    await settle()
    assert [value_of(found) for found in one.has(Delivery)] == [f"{STUCK}:{n}".encode() for n in range(5)]


async def test_a_key_that_a_consumer_parks_is_shown_with_its_note_and_released(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers)
    one.flow(2)
    first, second = await one.deliveries(2)
    ids = [pb.MessageIdData(ledgerId=first.ledger, entryId=first.entry)]
    command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids, park="bad order")
    one.send(command)
    one.flow(10)
    await settle()
    await asyncio.sleep(2)
    admin = Admin(brokers)
    (lane,) = await get(admin)
    assert (lane["reason"], lane["note"], lane["heldEntries"]) == ("parked", "bad order", 5)
    assert one.has(Delivery) == []
    assert (await admin.ask("POST", f"{PATH}/{lane['lane']}/skip?count=1")).json == {"skippedEntries": 1}
    assert (await admin.ask("POST", f"{PATH}/{lane['lane']}/release")).status == 204
    await settle()
    assert [value_of(found) for found in one.has(Delivery)] == [f"{STUCK}:{n}".encode() for n in range(1, 5)]
    assert value_of(second) == f"{STUCK}:1".encode()


async def test_a_lane_that_waits_for_its_consumer_cannot_be_released(brokers: Brokers) -> None:
    await stuck_key(brokers)
    answer = await Admin(brokers).ask("POST", f"{PATH}/{slot_of(STUCK)}/release")
    assert answer.status == 409
    assert "reader-0" in answer.json["reason"]


async def test_a_parked_lane_is_listed_and_released_before_consumers_are_back(brokers: Brokers) -> None:
    _, two = await stuck_key(brokers)
    reading = subscription_of(brokers).reading
    assert isinstance(reading, KeyedReading)
    reading.park_slot(slot_of(STUCK), "three attempts failed")
    two.acknowledge(*two.has(Delivery))
    await settle()
    await brokers.restart()
    admin = Admin(brokers)
    (lane,) = await get(admin)
    assert (lane["reason"], lane["note"], lane["heldEntries"]) == ("parked", "three attempts failed", None)
    assert await get(admin, f"{PATH}/{lane['lane']}") == lane
    assert (await admin.ask("GET", f"{PATH}/{lane['lane']}/messages")).status == 409
    assert (await admin.ask("POST", f"{PATH}/{lane['lane']}/skip")).status == 409
    assert (await admin.ask("POST", f"{PATH}/{lane['lane']}/release")).status == 204
    assert [again["reason"] for again in await get(admin)] == ["no consumer"]
    back = await brokers.connect()
    await back.subscribe(TOPIC, "s", kind=pb.CommandSubscribe.Key_Shared, keySharedMeta=sticky(LOWER))
    await settle()
    assert [value_of(found) for found in back.has(Delivery)] == [f"{STUCK}:{n}".encode() for n in range(5)]


@pytest.mark.parametrize(
    ("method", "rest", "status"),
    [
        ("GET", "/1", 404),
        ("GET", "/x", 412),
        ("GET", "/0:1", 404),
        ("GET", "/1/messages", 404),
        ("POST", "/1/release", 404),
        ("POST", "/1/skip", 404),
        ("POST", f"/{slot_of(STUCK)}/skip?count=0", 412),
        ("GET", f"/{slot_of(STUCK)}/messages?count=-1", 412),
    ],
)
async def test_wrong_lanes_and_counts_are_refused(
    brokers: Brokers, method: str, rest: str, status: int
) -> None:
    await stuck_key(brokers)
    assert (await Admin(brokers).ask(method, PATH + rest)).status == status


async def test_an_unknown_subscription_has_no_lanes(brokers: Brokers) -> None:
    await stuck_key(brokers)
    assert (await Admin(brokers).ask("GET", PATH.replace("/s/", "/t/"))).status == 404


async def test_a_subscription_without_keys_has_no_lanes(brokers: Brokers) -> None:
    one = await brokers.connect()
    await one.subscribe(TOPIC, "s")
    assert await get(Admin(brokers)) == []


async def test_stats_and_metrics_separate_the_backlog_in_lanes_from_the_rest(brokers: Brokers) -> None:
    one, two = await stuck_key(brokers)
    admin = Admin(brokers)
    stats = await get(admin, PATH.replace("/subscription/s/lanes", "/stats"))
    found = stats["subscriptions"]["s"]
    assert found["msgBacklog"] == 10, "no message is acknowledged yet"
    assert (found["lanes"], found["laneEntries"], found["laneMessages"]) == (1, 5, 5)
    assert (found["consumableBacklog"], found["consumableBacklogMessages"]) == (5, 5)
    assert found["laneBytes"] > 0
    labels = f'{{worker="0",topic="{TOPIC}",subscription="s"}}'
    text = (await admin.ask("GET", "/metrics")).body.decode()
    for name, value in (("lanes", 1), ("lane_messages", 5), ("backlog_consumable_messages", 5)):
        assert f"anabranch_{name}{labels} {value}\n" in text
    two.acknowledge(*two.has(Delivery))
    one.flow(10)
    await settle()
    found = (await get(admin, PATH.replace("/subscription/s/lanes", "/stats")))["subscriptions"]["s"]
    assert (found["msgBacklog"], found["lanes"], found["consumableBacklog"]) == (5, 0, 5)


async def test_many_lanes_are_estimated_from_some_of_them(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_totals, "LANES_COUNTED", 10)
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer(TOPIC)
    for client, hashes, permits in ((one, LOWER, 0), (two, UPPER, 1000)):
        meta = sticky(hashes)
        kind = pb.CommandSubscribe.Key_Shared
        await client.subscribe(TOPIC, "s", kind=kind, permits=permits, keySharedMeta=meta)
    keys = [key for n in range(200) if slot_of(key := f"k{n}") <= LOWER[1]][:40]
    for number in range(3 * len(keys)):
        one.publish(b"%d" % number, number, key=keys[number % len(keys)])
    for _ in range(3 * len(keys)):
        await one.receipt()
    await settle()
    await asyncio.sleep(2)
    found = lane_totals.lane_totals(subscription_of(brokers))
    assert (found.lanes, found.entries) == (40, 120)


async def test_a_lane_has_the_share_of_its_keys_in_the_traffic(brokers: Brokers) -> None:
    await stuck_key(brokers, count=200)
    (lane,) = await get(Admin(brokers))
    assert lane["trafficShare"] == pytest.approx(0.5, abs=0.1)


async def test_a_lane_of_a_partitioned_topic_has_the_partition_in_its_name(brokers: Brokers) -> None:
    admin = Admin(brokers)
    parts = "/admin/v2/persistent/public/default/parts"
    assert (await admin.ask("PUT", f"{parts}/partitions", 2)).status == 204
    await stuck_key(brokers, topic="persistent://public/default/parts-partition-1")
    (lane,) = await get(admin, f"{parts}/subscription/s/lanes")
    assert lane["lane"] == f"1:{slot_of(STUCK)}"
    assert (await get(admin, f"{parts}/subscription/s/lanes/{lane['lane']}"))["heldEntries"] == 5
    (same,) = await get(admin, f"{parts}-partition-1/subscription/s/lanes")
    assert same["lane"] == str(slot_of(STUCK))
    assert (await admin.ask("POST", f"{parts}/subscription/s/lanes/0:1/skip")).status == 404


SCALABLE = f"{ORDERS}/subscriptions/s/lanes"


async def stuck_buckets(brokers: Brokers, client: AsyncClient) -> list[asyncio.Task[None]]:
    """Two consumers that never receive beside two that do; returns the tasks of these."""
    assert (await Admin(brokers).ask("PUT", f"{ORDERS}?numInitialSegments=2", None)).status == 204
    for name in ("h0", "h1"):
        await client.subscribe_stream("orders", "s", name=name, receiver_queue_size=1)
    readers = [await client.subscribe_stream("orders", "s", name=name) for name in ("r0", "r1")]
    tasks = [asyncio.create_task(acknowledge_all(reader)) for reader in readers]
    producer = await client.create_producer("orders", batching=False)
    for number in range(400):
        await producer.send(b"%d" % number, key=f"key-{number % 40}")
    await asyncio.sleep(2)
    return tasks


async def acknowledge_all(reader: AsyncStreamConsumer[bytes]) -> None:
    async for message in reader:
        await reader.acknowledge_cumulative(message)


@pytest.mark.brokers(count=2)
async def test_lanes_of_a_scalable_topic_are_found_in_every_segment_at_any_broker(brokers: Brokers) -> None:
    async with brokers.client(0) as client:
        tasks = await stuck_buckets(brokers, client)
        admin = Admin(brokers)
        lanes = await get(admin, SCALABLE)
        assert {lane["waitsFor"] for lane in lanes} <= {"h0", "h1"}
        assert {lane["lane"].partition(":")[0] for lane in lanes} == {"0", "1"}
        for lane in lanes:
            again = await get(admin, f"{SCALABLE}/{lane['lane']}")
            assert (again["slot"], again["hashRange"]) == (lane["slot"], lane["hashRange"])
        assert (await admin.ask("GET", f"{SCALABLE}/{lanes[0]['slot']}")).status == 412
        assert (await admin.ask("GET", f"{SCALABLE}/9:1")).status == 404
        skipped = await admin.ask("POST", f"{SCALABLE}/{lanes[0]['lane']}/skip")
        assert skipped.json == {"skippedEntries": lanes[0]["heldEntries"]}
        for task in tasks:
            task.cancel()


@pytest.mark.brokers(count=2)
async def test_why_and_stats_of_a_scalable_topic_have_the_lanes_of_all_segments(brokers: Brokers) -> None:
    async with brokers.client(0) as client:
        tasks = await stuck_buckets(brokers, client)
        admin = Admin(brokers)
        lanes = await get(admin, SCALABLE)
        held = sum(lane["heldEntries"] for lane in lanes)
        why = await get(admin, f"{ORDERS}/why")
        assert [lane["lane"] for lane in why["lanes"]["s"]] == [lane["lane"] for lane in lanes[:5]]
        found = (await get(admin, f"{ORDERS}/stats"))["subscriptions"]["s"]
        assert (found["lanes"], found["laneEntries"], found["laneMessages"]) == (len(lanes), held, held)
        assert found["consumableBacklog"] == found["backlog"] - held
        for task in tasks:
            task.cancel()
