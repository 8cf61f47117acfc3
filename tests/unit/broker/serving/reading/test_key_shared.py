"""Key_Shared and bucket dispatch on the wire."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest

from anabranch.model.hashing import bucket_hash, bucket_index, equal_bucket_splits, key_hash, sticky_hash
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, batch, error_of, settle, value_of, values_of

KEY_SHARED = pb.CommandSubscribe.Key_Shared
KEYS = [f"k{n}" for n in range(20)]


def auto_split() -> pb.KeySharedMeta:
    return pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT)


def sticky(*ranges: tuple[int, int]) -> pb.KeySharedMeta:
    return pb.KeySharedMeta(
        keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=start, end=end) for start, end in ranges]
    )


def buckets(count: int) -> pb.KeySharedMeta:
    splits = [0, *equal_bucket_splits(count), 65536]
    meta = sticky(*[(start, end - 1) for start, end in itertools.pairwise(splits)])
    meta.entryBucketDispatch = True
    return meta


async def publish(client: WireClient, rounds: int, first: int = 0) -> None:
    sequence = first
    for number in range(rounds):
        for key in KEYS:
            client.publish(f"{key}:{number}".encode(), sequence, key=key)
            sequence += 1
    for _ in range(rounds * len(KEYS)):
        await client.receipt()


def by_key(deliveries: list[Delivery]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for delivery in deliveries:
        key, number = value_of(delivery).decode().split(":")
        found[key].append(int(number))
    return found


async def test_each_key_goes_to_one_consumer_in_order(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer()
    await one.subscribe(kind=KEY_SHARED, keySharedMeta=auto_split())
    await two.subscribe(kind=KEY_SHARED, consumer_id=2, keySharedMeta=auto_split())
    await publish(one, 5)
    await settle()
    first, second = by_key(one.has(Delivery)), by_key(two.has(Delivery))
    assert first.keys() | second.keys() == set(KEYS)
    assert not first.keys() & second.keys()
    assert first
    assert second
    assert {tuple(numbers) for numbers in (first | second).values()} == {(0, 1, 2, 3, 4)}


@pytest.mark.brokers(keyed_consistent_hashing=False)
async def test_without_consistent_hashing_each_consumer_has_one_range(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer()
    await one.subscribe(kind=KEY_SHARED, keySharedMeta=auto_split())
    await two.subscribe(kind=KEY_SHARED, consumer_id=2, keySharedMeta=auto_split())
    await publish(one, 1)
    await settle()
    lower = {key for key in KEYS if sticky_hash(key.encode()) <= 0x8000}
    assert by_key(two.has(Delivery)).keys() == lower
    assert by_key(one.has(Delivery)).keys() == set(KEYS) - lower
    two.close()
    await settle()
    assert by_key(one.has(Delivery)).keys() == set(KEYS)


async def test_one_consumer_without_permits_does_not_stop_the_others(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer()
    await one.subscribe(kind=KEY_SHARED, permits=0, keySharedMeta=sticky((0, 32767)))
    await two.subscribe(kind=KEY_SHARED, consumer_id=2, keySharedMeta=sticky((32768, 65535)))
    await publish(one, 10)
    await settle()
    assert one.has(Delivery) == []
    mine = by_key(two.has(Delivery))
    assert {tuple(numbers) for numbers in mine.values()} == {tuple(range(10))}
    one.flow(1000)
    await settle()
    others = by_key(one.has(Delivery))
    assert others.keys() | mine.keys() == set(KEYS)
    assert {tuple(numbers) for numbers in others.values()} == {tuple(range(10))}


async def test_a_key_moves_to_a_newcomer_only_when_it_is_acknowledged(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer()
    await one.subscribe(kind=KEY_SHARED, keySharedMeta=auto_split())
    await publish(one, 1)
    before = await one.deliveries(20)
    await two.subscribe(kind=KEY_SHARED, consumer_id=2, keySharedMeta=auto_split())
    for number, key in enumerate(KEYS, 20):
        one.publish(f"{key}:1".encode(), number, key=key)
    await settle()
    assert two.has(Delivery) == [], "every key is held by the first consumer still"
    stayed = by_key(one.has(Delivery))
    one.acknowledge(*before)
    await settle()
    moved = by_key(two.has(Delivery))
    assert moved
    assert stayed.keys() | moved.keys() == set(KEYS)
    assert not stayed.keys() & moved.keys()


async def test_entries_of_a_lost_consumer_go_out_again_in_order(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await two.producer()
    await one.subscribe(kind=KEY_SHARED, keySharedMeta=auto_split())
    await two.subscribe(kind=KEY_SHARED, consumer_id=2, keySharedMeta=auto_split())
    await publish(two, 3)
    await settle()
    mine = by_key(two.has(Delivery))
    two.inbox.clear()
    one.close()
    await settle()
    taken = by_key(two.has(Delivery))
    assert mine.keys() | taken.keys() == set(KEYS)
    assert {tuple(numbers) for numbers in taken.values()} == {(0, 1, 2)}
    assert {d.redelivery_count for d in two.has(Delivery)} == {0}


async def test_an_entry_acknowledged_before_its_redelivery_does_not_come_again(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await two.producer()
    await one.subscribe(kind=KEY_SHARED, keySharedMeta=auto_split())
    await publish(two, 1)
    got = await one.deliveries(20)
    await two.subscribe(kind=KEY_SHARED, consumer_id=2, permits=0, keySharedMeta=auto_split())
    one.close()
    await settle()
    two.acknowledge(*got[5:], consumer_id=2)
    two.flow(100, 2)
    await settle()
    assert values_of(two.has(Delivery)) == values_of(got[:5])
    stats = await two.request(pb.CommandConsumerStats(consumer_id=2, request_id=0))
    assert (stats.availablePermits, stats.unackedMessages) == (95, 5)


async def test_an_entry_acknowledged_in_part_while_it_waits_costs_only_what_is_left(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await two.producer()
    await one.subscribe(kind=KEY_SHARED, keySharedMeta=auto_split())
    two.publish(b"", 0, entry=batch([b"a", b"b", b"c", b"d"], key="k"), messages=4)
    await two.receipt()
    entry = (await one.deliveries(1))[0]
    await two.subscribe(kind=KEY_SHARED, consumer_id=2, permits=0, keySharedMeta=auto_split())
    one.close()
    await settle()
    part = pb.MessageIdData(ledgerId=entry.ledger, entryId=entry.entry, ack_set=[0b1000])
    two.send(pb.CommandAck(consumer_id=2, ack_type=pb.CommandAck.Individual, message_id=[part]))
    two.flow(10, 2)
    await settle()
    assert [d.ack_set for d in two.has(Delivery)] == [(0b1000,)]
    stats = await two.request(pb.CommandConsumerStats(consumer_id=2, request_id=0))
    assert (stats.availablePermits, stats.unackedMessages) == (9, 1)


async def test_a_redelivered_entry_stays_ahead_of_its_key(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(kind=KEY_SHARED, permits=1, keySharedMeta=auto_split())
    for number in range(3):
        client.publish(f"k:{number}".encode(), number, key="k")
    first = (await client.deliveries(1))[0]
    again = pb.MessageIdData(ledgerId=first.ledger, entryId=first.entry)
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[again]))
    client.flow(10)
    got = await client.deliveries(3)
    assert [(value_of(d), d.redelivery_count) for d in got] == [(b"k:0", 1), (b"k:1", 0), (b"k:2", 0)]


async def test_sticky_ranges_must_be_named_and_free(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.subscribe(kind=KEY_SHARED, keySharedMeta=sticky((0, 100), (200, 300)))
    for bad in (sticky(), sticky((250, 400)), sticky((500, 70000)), sticky((600, 700), (650, 800))):
        answer = await client.subscribe(kind=KEY_SHARED, consumer_id=2, keySharedMeta=bad)
        assert error_of(answer) == pb.ConsumerAssignError
    answer = await client.subscribe(kind=KEY_SHARED, consumer_id=2, keySharedMeta=auto_split())
    assert error_of(answer) == pb.ConsumerBusy
    await client.subscribe(kind=KEY_SHARED, consumer_id=2, keySharedMeta=sticky((101, 199)))


async def test_buckets_go_to_consumers_by_name_and_must_be_the_same_for_all(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer()
    await one.subscribe(kind=KEY_SHARED, name="a", keySharedMeta=buckets(4))
    other = await two.subscribe(kind=KEY_SHARED, consumer_id=2, name="b", keySharedMeta=buckets(3))
    assert error_of(other) == pb.ConsumerAssignError
    broken = buckets(4)
    del broken.hashRanges[1]
    answer = await two.subscribe(kind=KEY_SHARED, consumer_id=2, name="b", keySharedMeta=broken)
    assert error_of(answer) == pb.ConsumerAssignError
    await two.subscribe(kind=KEY_SHARED, consumer_id=2, name="b", keySharedMeta=buckets(4))
    await publish(one, 3)
    await settle()
    splits = equal_bucket_splits(4)
    for client, owned in ((one, {0, 1}), (two, {2, 3})):
        got = by_key(client.has(Delivery))
        assert {bucket_index(splits, bucket_hash(key_hash(key))) for key in got} <= owned
        assert {tuple(numbers) for numbers in got.values()} == {(0, 1, 2)}


async def test_a_stamp_decides_the_bucket(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer()
    await one.subscribe(kind=KEY_SHARED, name="a", keySharedMeta=buckets(2))
    await two.subscribe(kind=KEY_SHARED, consumer_id=2, name="b", keySharedMeta=buckets(2))
    one.publish(b"low", 0, key="k", hash_range=(5, 9))
    one.publish(b"high", 1, key="k", hash_range=(40000, 40001))
    await settle()
    assert values_of(one.has(Delivery)) == [b"low"]
    assert values_of(two.has(Delivery)) == [b"high"]


async def test_a_stamp_means_nothing_to_consumers_that_share_by_keys(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer()
    await one.subscribe(kind=KEY_SHARED, name="a", keySharedMeta=auto_split())
    await two.subscribe(kind=KEY_SHARED, consumer_id=2, name="b", keySharedMeta=auto_split())
    for number, key in enumerate(KEYS):
        # As if all keys were of one bucket, which goes to one consumer where buckets are shared.
        one.publish(f"{key}:0".encode(), number, key=key, hash_range=(5, 9))
    await settle()
    assert {len(by_key(client.has(Delivery))) for client in (one, two)} != {0, len(KEYS)}
    answer = await two.subscribe(kind=KEY_SHARED, consumer_id=3, name="c", keySharedMeta=buckets(4))
    assert error_of(answer) == pb.ConsumerBusy


async def test_consumers_with_another_key_shared_mode_cannot_join(brokers: Brokers) -> None:
    client = await brokers.connect()
    same_ranges = buckets(4)
    same_ranges.entryBucketDispatch = False
    for first, second in itertools.permutations((buckets(4), auto_split(), same_ranges), 2):
        await client.subscribe(kind=KEY_SHARED, name="a", keySharedMeta=first)
        answer = await client.subscribe(kind=KEY_SHARED, consumer_id=2, name="b", keySharedMeta=second)
        assert error_of(answer) == pb.ConsumerBusy
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0))


@pytest.mark.parametrize("lost", [False, True])
async def test_entries_that_a_reader_of_buckets_leaves_behind_go_out_again_in_order(
    brokers: Brokers, lost: bool
) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await two.producer()
    await one.subscribe(kind=KEY_SHARED, name="a", keySharedMeta=buckets(4))
    await two.subscribe(kind=KEY_SHARED, consumer_id=2, name="b", keySharedMeta=buckets(4))
    await publish(two, 3)
    await settle()
    mine, theirs = by_key(two.has(Delivery)), by_key(one.has(Delivery))
    assert mine.keys() | theirs.keys() == set(KEYS)
    two.inbox.clear()
    if lost:
        one.close()
    else:
        answer = await one.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0))
        assert isinstance(answer, pb.CommandSuccess)
    await settle()
    assert by_key(two.has(Delivery)) == theirs
    two.inbox.clear()
    for number, key in enumerate(KEYS, 60):
        two.publish(f"{key}:3".encode(), number, key=key)
    await settle()
    assert set(by_key(two.has(Delivery))) == set(KEYS)
    assert not lost or one.hung_up


async def test_a_delayed_entry_holds_its_key_and_no_other(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(kind=KEY_SHARED, keySharedMeta=auto_split())
    client.publish(b"a:0", 0, key="a", deliver_at_ms=1_700_000_000_000 + 15_000)
    client.publish(b"a:1", 1, key="a")
    client.publish(b"b:0", 2, key="b")
    assert values_of(await client.deliveries(1)) == [b"b:0"]
    assert client.has(Delivery) == []
    assert values_of(await client.deliveries(2)) == [b"a:0", b"a:1"]
