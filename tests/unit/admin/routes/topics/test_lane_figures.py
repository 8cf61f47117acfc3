"""Lanes in stats, metrics and `why`, over partitions and segments."""

from __future__ import annotations

import asyncio

import pytest

from anabranch import AsyncClient, AsyncStreamConsumer
from anabranch.broker.browsing.logs import Logs
from anabranch.broker.serving.lanes import lane_totals
from anabranch.model.names import Place, TopicName
from anabranch.protocol.commands import Delivery
from tests.harness.admin import ORDERS, Admin
from tests.harness.cluster import Brokers
from tests.harness.stuck_keys import (
    HELD,
    LANES,
    LOWER,
    STUCK,
    get_json,
    halves,
    parked_before_restart,
    slot_of,
    store_keys,
    stuck_key,
    subscription_of,
)
from tests.harness.wire import settle


async def test_stats_and_metrics_separate_the_backlog_in_lanes_from_the_rest(brokers: Brokers) -> None:
    one, two = await stuck_key(brokers)
    admin = Admin(brokers)
    stats = await get_json(admin, LANES.replace("/subscription/s/lanes", "/stats"))
    found = stats["subscriptions"]["s"]
    assert found["msgBacklog"] == 10, "no message is acknowledged yet"
    assert (found["lanes"], found["laneEntries"], found["laneMessages"]) == (1, 5, 5)
    assert (found["consumableBacklog"], found["consumableBacklogMessages"]) == (5, 5)
    assert found["laneBytes"] > 0
    labels = f'{{worker="0",topic="{HELD}",subscription="s"}}'
    text = (await admin.ask("GET", "/metrics")).body.decode()
    for name, value in (("lanes", 1), ("lane_messages", 5), ("backlog_consumable_messages", 5)):
        assert f"anabranch_{name}{labels} {value}\n" in text
    two.acknowledge(*two.has(Delivery))
    one.flow(10)
    await settle()
    found = (await get_json(admin, LANES.replace("/subscription/s/lanes", "/stats")))["subscriptions"]["s"]
    assert (found["msgBacklog"], found["lanes"], found["consumableBacklog"]) == (5, 0, 5)


async def test_many_lanes_are_estimated_from_some_of_them(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_totals, "LANES_COUNTED", 10)
    one, _ = await halves(brokers)
    await store_keys(one, [key for n in range(200) if slot_of(key := f"k{n}") <= LOWER[1]][:40] * 3)
    await asyncio.sleep(2)
    found = lane_totals.lane_totals(subscription_of(brokers).reading.lanes)
    assert (found.lanes, found.entries) == (40, 120)


async def test_a_lane_has_the_share_of_its_keys_in_the_traffic(brokers: Brokers) -> None:
    await stuck_key(brokers, count=200)
    (lane,) = await get_json(Admin(brokers))
    assert lane["trafficShare"] == pytest.approx(0.5, abs=0.1)


async def test_a_lane_of_a_partitioned_topic_has_the_partition_in_its_name(brokers: Brokers) -> None:
    admin = Admin(brokers)
    parts = "/admin/v2/persistent/public/default/parts"
    assert (await admin.ask("PUT", f"{parts}/partitions", 2)).status == 204
    await stuck_key(brokers, topic="persistent://public/default/parts-partition-1")
    (lane,) = await get_json(admin, f"{parts}/subscription/s/lanes")
    assert lane["lane"] == f"1:{slot_of(STUCK)}"
    assert (await get_json(admin, f"{parts}/subscription/s/lanes/{lane['lane']}"))["heldEntries"] == 5
    (same,) = await get_json(admin, f"{parts}-partition-1/subscription/s/lanes")
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
        lanes = await get_json(admin, SCALABLE)
        assert {lane["waitsFor"] for lane in lanes} <= {"h0", "h1"}
        assert {lane["lane"].partition(":")[0] for lane in lanes} == {"0", "1"}
        for lane in lanes:
            again = await get_json(admin, f"{SCALABLE}/{lane['lane']}")
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
        lanes = await get_json(admin, SCALABLE)
        held = sum(lane["heldEntries"] for lane in lanes)
        why = await get_json(admin, f"{ORDERS}/why")
        assert [lane["lane"] for lane in why["lanes"]["s"]] == [lane["lane"] for lane in lanes[:5]]
        found = (await get_json(admin, f"{ORDERS}/stats"))["subscriptions"]["s"]
        assert (found["lanes"], found["laneEntries"], found["laneMessages"]) == (len(lanes), held, held)
        assert found["consumableBacklog"] == found["backlog"] - held
        for task in tasks:
            task.cancel()


async def test_a_look_at_hot_spots_loads_no_unused_log_and_finds_its_parked_lane(brokers: Brokers) -> None:
    await parked_before_restart(brokers, "broken")
    logs, place = Logs(brokers[0]), Place(TopicName.parse(HELD), 0)
    assert [lane["note"] for lane in (await logs.hot_spots(place, 5))["lanes"]["s"]] == ["broken"]
    assert await logs.lane_figures(place) == {}
    assert brokers[0].logs.loaded(place.name) is None
