"""Stuck keys of a Key_Shared subscription, and the admin calls that show their lanes."""

from __future__ import annotations

import asyncio
from typing import Any

from anabranch.broker.serving.subscription import Subscription
from anabranch.model.hashing import sticky_hash
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, settle

HELD = "persistent://public/default/held"
LANES = "/admin/v2/persistent/public/default/held/subscription/s/lanes"
LOWER, UPPER = (0, 32767), (32768, 65535)
STUCK, FREE = "k0", "k3"


def slot_of(key: str) -> int:
    return sticky_hash(key.encode())


def sticky(hashes: tuple[int, int]) -> pb.KeySharedMeta:
    ranges = [pb.IntRange(start=hashes[0], end=hashes[1])]
    return pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=ranges)


async def stuck_key(brokers: Brokers, count: int = 5, topic: str = HELD) -> tuple[WireClient, WireClient]:
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


def subscription_of(brokers: Brokers, topic: str = HELD) -> Subscription:
    return brokers[0].logs.require(TopicName.parse(topic)).subscriptions["s"]


async def get_json(admin: Admin, path: str = LANES) -> Any:
    answer = await admin.ask("GET", path)
    assert answer.status == 200, answer.body
    return answer.json
