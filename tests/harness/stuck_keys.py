"""Stuck keys of a Key_Shared subscription, and the admin calls that show their lanes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.model.hashing import sticky_hash
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, settle, value_of

HELD = "persistent://public/default/held"
LANES = "/admin/v2/persistent/public/default/held/subscription/s/lanes"
LOWER, UPPER = (0, 32767), (32768, 65535)
STUCK, FREE = "k0", "k3"


def slot_of(key: str) -> int:
    return sticky_hash(key.encode())


def sticky(hashes: tuple[int, int]) -> pb.KeySharedMeta:
    ranges = [pb.IntRange(start=hashes[0], end=hashes[1])]
    return pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=ranges)


async def halves(brokers: Brokers, topic: str = HELD) -> tuple[WireClient, WireClient]:
    """A consumer without permits for the lower half of the hashes, and one with permits for the upper half.

    The first client has the producer too.
    """
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
    return one, two


async def store_keys(client: WireClient, keys: Iterable[str]) -> None:
    """Publish a message of each key, in this order, with its key and the key's count; all are stored."""
    counts: Counter[str] = Counter()
    for key in keys:
        client.publish(f"{key}:{counts[key]}".encode(), counts.total(), key=key)
        counts[key] += 1
    for _ in range(counts.total()):
        await client.receipt()
    await settle()


async def stuck_key(brokers: Brokers, count: int = 5, topic: str = HELD) -> tuple[WireClient, WireClient]:
    """A consumer without permits whose key waits, and a consumer that receives its own."""
    assert slot_of(STUCK) <= LOWER[1] < slot_of(FREE)
    one, two = await halves(brokers, topic)
    await store_keys(one, [STUCK, FREE] * count)
    assert len(two.has(Delivery)) == count
    # A short wait is not shown.
    await asyncio.sleep(2)
    return one, two


def park(brokers: Brokers, note: str) -> None:
    """Park the stuck key, as its consumer does when a handler gives up."""
    lanes = subscription_of(brokers).reading.lanes
    assert lanes is not None
    lanes.park(slot_of(STUCK), note)


async def parked_before_restart(brokers: Brokers, note: str) -> None:
    """A parked key of a broker that starts again and has no consumers yet."""
    _, two = await stuck_key(brokers)
    park(brokers, note)
    two.acknowledge(*two.has(Delivery))
    await settle()
    await brokers.restart()


def values(client: WireClient) -> list[bytes]:
    """The values of all deliveries to a client."""
    return [value_of(found) for found in client.has(Delivery)]


def of_stuck(*numbers: int) -> list[bytes]:
    """The values of these messages of the stuck key."""
    return [f"{STUCK}:{number}".encode() for number in numbers]


def subscription_of(brokers: Brokers, topic: str = HELD) -> Subscription:
    return brokers[0].logs.require(TopicName.parse(topic)).subscriptions["s"]


async def get_json(admin: Admin, path: str = LANES) -> Any:
    answer = await admin.ask("GET", path)
    assert answer.status == 200, answer.body
    return answer.json
