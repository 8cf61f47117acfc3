"""Busy consumers of a keyed subscription: their other keys go to consumers with room, for a while."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict

import pytest

from anabranch.model.hashing import equal_bucket_splits
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import TOPIC, WireClient, settle, value_of

KEYS = [f"k{n}" for n in range(40)]
BUCKETS = 32


def auto_split() -> pb.KeySharedMeta:
    return pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT)


def ranges(count: int) -> list[pb.IntRange]:
    splits = [0, *equal_bucket_splits(count), 65536]
    return [pb.IntRange(start=start, end=end - 1) for start, end in itertools.pairwise(splits)]


def buckets() -> pb.KeySharedMeta:
    return pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=ranges(BUCKETS), entryBucketDispatch=True)


def sticky(half: int) -> pb.KeySharedMeta:
    return pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[ranges(2)[half]])


async def publish(client: WireClient, first: int, rounds: int = 1) -> None:
    numbers = itertools.count(first * len(KEYS))
    for number in range(first, first + rounds):
        for key in KEYS:
            client.publish(f"{key}:{number}".encode(), next(numbers), key=key)
    for _ in range(rounds * len(KEYS)):
        await client.receipt()


def by_key(client: WireClient) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for delivery in client.has(Delivery):
        key, number = value_of(delivery).decode().split(":")
        found[key].append(int(number))
    return found


async def pair(brokers: Brokers, *metas: pb.KeySharedMeta) -> tuple[WireClient, WireClient]:
    """A consumer with one permit and one with many, after the messages of one round were published."""
    busy, free = await brokers.connect(), await brokers.connect()
    await free.producer()
    await busy.subscribe(kind=pb.CommandSubscribe.Key_Shared, name="a", permits=1, keySharedMeta=metas[0])
    await free.subscribe(kind=pb.CommandSubscribe.Key_Shared, consumer_id=2, name="b", keySharedMeta=metas[1])
    await publish(free, 0)
    await settle()
    assert len(busy.has(Delivery)) == 1
    return busy, free


def troubles(brokers: Brokers) -> list[str]:
    return brokers[0].logs.require(TopicName.parse(TOPIC)).subscriptions["sub"].troubles


@pytest.mark.parametrize("meta", [auto_split(), buckets()], ids=["keys", "buckets"])
async def test_other_keys_of_a_busy_consumer_go_to_one_with_room(
    brokers: Brokers, meta: pb.KeySharedMeta
) -> None:
    busy, free = await pair(brokers, meta, meta)
    held, before = set(by_key(busy)), set(by_key(free))
    await asyncio.sleep(3)
    assert set(by_key(free)) == before, "a short wait moves nothing"
    await asyncio.sleep(8)
    after = set(by_key(free))
    assert before < after
    assert not after & held, "the key that the busy consumer holds stays with it"
    assert any("because its consumer a is busy with slot" in text for text in troubles(brokers))
    await publish(free, 1)
    await settle()
    assert all(numbers == sorted(numbers) for numbers in by_key(free).values())


async def test_ranges_that_consumers_chose_are_not_moved(brokers: Brokers) -> None:
    _, free = await pair(brokers, sticky(0), sticky(1))
    before = set(by_key(free))
    await asyncio.sleep(60)
    assert set(by_key(free)) == before
    assert troubles(brokers) == []


async def test_keys_return_when_their_consumer_has_room_again(brokers: Brokers) -> None:
    busy, free = await pair(brokers, auto_split(), auto_split())
    before = set(by_key(free))
    await asyncio.sleep(12)
    moved = set(by_key(free)) - before
    assert moved
    free.acknowledge(*free.has(Delivery), consumer_id=2)
    busy.acknowledge(*busy.has(Delivery))
    busy.flow(1000)
    await asyncio.sleep(30)
    assert troubles(brokers) == []
    busy.inbox.clear()
    await publish(free, 1)
    await settle()
    assert moved <= set(by_key(busy))


async def test_a_stream_consumer_takes_buckets_of_a_busy_one(brokers: Brokers) -> None:
    topic = "topic://public/default/orders"
    async with brokers.client() as client:
        consumers = [
            await client.subscribe_stream(topic, "s", name=name, receiver_queue_size=size)
            for name, size in (("a", 1), ("b", 1000))
        ]
        async with await client.create_producer(topic) as producer:
            for key in KEYS:
                await producer.send(b"0", key=key)
        await asyncio.sleep(3)
        mine = {message.key for message in await consumers[1].receive_many(100, timeout=1)}
        assert mine < set(KEYS)
        relieved = await consumers[1].receive_many(100, timeout=60)
        assert relieved, "a bucket of the busy consumer came"
        assert not mine & {message.key for message in relieved}
        await consumers[1].acknowledge_cumulative(relieved[-1])
