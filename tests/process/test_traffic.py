"""Real brokers learn the load of each key: auto-scaling cuts where the load is, or says why it does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

from anabranch import AsyncClient
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.errors import ConflictError
from anabranch.model.hashing import bucket_index, key_hash
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from simulation.harness.process import BrokerProcess
from tests.process.conftest import MakeBroker

TOPIC = TopicName.parse("topic://public/default/orders")
PATIENCE_S = 20.0
SETTINGS: dict[str, object] = {
    "auto_scale_interval_s": 1,
    "load_report_interval_s": 2,
    "auto_scale.split_msg_rate_in_threshold": 300,
    "auto_scale.merge_msg_rate_in_threshold": 1,
}
ROUND = 100
"""Messages that a round of sending brings, about 20 times a second."""


def keys_within(part: HashRange, count: int) -> list[str]:
    found = (key for key in map("account-{}".format, range(10**7)) if key_hash(key) >> 16 in part)
    return list(islice(found, count))


async def send_until(
    process: BrokerProcess, keys: list[str], done: Callable[[], Any], size: int = ROUND
) -> Any:
    """Send messages with these keys in turns until `done` returns something."""
    turns = cycle(keys)
    deadline = time.monotonic() + PATIENCE_S
    async with AsyncClient(process.url) as client, await client.create_producer(str(TOPIC)) as producer:
        while time.monotonic() < deadline:
            await producer.send_many([b"v"] * size, keys=list(islice(turns, size)))
            found = await asyncio.to_thread(done)
            if found:
                return found
            await asyncio.sleep(0.03)
    raise AssertionError(f"nothing within {PATIENCE_S} s")


def skewed(hot: HashRange) -> list[str]:
    """Keys of which nine in ten lie in one range."""
    return [*keys_within(hot, 180), *keys_within(HashRange(hot.end + 1, 0xFFFF), 20)]


def segments_of(admin: AdminClient) -> dict[int, dict[str, Any]]:
    return {int(id_): about for id_, about in plain(admin.topic_stats(TOPIC))["segments"].items()}


def test_a_split_follows_the_load(make_broker: MakeBroker) -> None:
    hot = HashRange(0x4000, 0x5999)
    keys = skewed(hot)
    with make_broker(workers=2, **SETTINGS) as process, AdminClient(process.http_url) as admin:
        admin.create_topic(TOPIC, 1)

        def ranges() -> list[HashRange]:
            found = segments_of(admin)
            parts = [HashRange.parse(found[id_]["hashRange"]) for id_ in found if found[id_]["parentIds"]]
            return parts[: len(found[0]["childIds"])]

        asyncio.run(send_until(process, keys, lambda: plain(admin.why(TOPIC))["hotKeys"], 5))
        parts = asyncio.run(send_until(process, keys, ranges))
        counts = [sum(key_hash(key) >> 16 in part for key in keys) for part in parts]
        assert len(parts) > 1
        assert max(counts) < 1.7 * len(keys) / len(parts), (parts, counts)
        first = next(one for one in plain(admin.why(TOPIC))["decisions"] if one["outcome"])
        assert "cut by traffic" in first["reason"]


def test_one_hot_key_is_not_split_and_named(make_broker: MakeBroker) -> None:
    with make_broker(workers=2, **SETTINGS) as process, AdminClient(process.http_url) as admin:
        admin.create_topic(TOPIC, 2)

        def refusal() -> str | None:
            against = [text for one in plain(admin.why(TOPIC))["decisions"] for text in one["against"]]
            return next((text for text in against if "no cut would help" in text), None)

        # The load is known before it exceeds the threshold, as that of a topic that grows.
        asyncio.run(send_until(process, ["account-7"], lambda: plain(admin.why(TOPIC))["hotKeys"], 5))
        text = asyncio.run(send_until(process, ["account-7"], refusal))
        assert "one hot spot takes 100% of its traffic" in text
        assert "its hottest key is 'account-7', with 100%" in text
        assert len(segments_of(admin)) == 2
        (hottest,) = plain(admin.why(TOPIC))["hotKeys"].values()
        assert hottest == [{"key": "account-7", "trafficShare": 1.0}]
        (shown,) = [hot for segment in segments_of(admin).values() for hot in segment["hottest"]]
        assert shown["hash"] == f"{key_hash('account-7'):08x}"


def test_buckets_by_traffic_share_the_load_of_a_skewed_segment(make_broker: MakeBroker) -> None:
    settings = {**SETTINGS, "auto_scale.enabled": "false"}
    low = [key for key in keys_within(HashRange(0, 0xFFFF), 800) if key_hash(key) & 0xFFFF < 0x1000]
    keys = low[:40]
    with make_broker(**settings) as process, AdminClient(process.http_url) as admin:
        admin.create_topic(TOPIC, 1)

        def rebucket() -> bool:
            try:
                admin.rebucket(TOPIC, 0, bucket_count=4, by_traffic=True)
            except ConflictError:
                # The traffic is not known yet.
                return False
            return True

        asyncio.run(send_until(process, keys, rebucket))
        splits = plain(admin.topic_metadata(TOPIC))["segments"]["1"]["entryBucketSplits"]
        counts = [0] * 4
        for key in keys:
            counts[bucket_index(splits, key_hash(key) & 0xFFFF)] += 1
        assert max(counts) < 1.7 * len(keys) / 4, (splits, counts)
