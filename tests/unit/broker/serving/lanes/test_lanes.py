"""Lanes: a stuck key delays only itself, also through restarts, and costs few reads."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import pytest

from anabranch.broker.dispatch.lanes import LaneReason
from anabranch.broker.serving.lanes.lane_entries import LOOK_ASIDE_BYTES
from anabranch.broker.serving.lanes.subscription_lanes import SubscriptionLanes
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.errors import DamagedEntriesError
from anabranch.ledger.memory import MemoryLog
from anabranch.ledger.storage import Entry
from anabranch.model.hashing import sticky_hash
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, settle, value_of

KEY_SHARED = pb.CommandSubscribe.Key_Shared
KEYS = [f"k{n}" for n in range(40)]
LOW = [key for key in KEYS if sticky_hash(key.encode()) < 32768]
HIGH = [key for key in KEYS if key not in LOW]


def sticky(start: int, end: int) -> pb.KeySharedMeta:
    return pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=start, end=end)])


LOWER, UPPER = sticky(0, 32767), sticky(32768, 65535)


def slot_of(key: str) -> int:
    return sticky_hash(key.encode())


def served(brokers: Brokers) -> Subscription:
    (log,) = brokers[0].logs.served
    return log.subscriptions["sub"]


def lanes_of(brokers: Brokers) -> SubscriptionLanes:
    lanes = served(brokers).reading.lanes
    assert lanes is not None
    return lanes


class KeyRounds:
    """Publishes numbered messages, one of each key in a round."""

    def __init__(self, client: WireClient) -> None:
        self.client = client
        self.sequence = 0
        self.numbers: dict[str, int] = defaultdict(int)

    async def rounds(self, count: int, keys: Sequence[str], size: int = 0) -> None:
        for _ in range(count):
            for key in keys:
                text = f"{key}:{self.numbers[key]}".encode()
                self.numbers[key] += 1
                self.client.publish(text.ljust(size), self.sequence, key=key)
                self.sequence += 1
        await settle()


def by_key(deliveries: Sequence[Delivery]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for delivery in deliveries:
        key, number = value_of(delivery).decode().split(":")
        found[key].append(int(number))
    return found


def take(client: WireClient) -> list[Delivery]:
    got = client.has(Delivery)
    client.inbox.clear()
    return got


async def receive(client: WireClient, consumer_id: int, count: int) -> list[Delivery]:
    """Take and acknowledge deliveries until there are `count`."""
    got: list[Delivery] = []
    for _ in range(2000):
        await settle()
        new = take(client)
        if new:
            got += new
            client.acknowledge(*new, consumer_id=consumer_id)
            client.flow(len(new), consumer_id)
        if len(got) >= count:
            break
    await settle()
    return got


async def two(brokers: Brokers, permits: int = 0) -> tuple[WireClient, WireClient, KeyRounds]:
    """A consumer of the lower half of the hashes with few permits, one of the upper half, a publisher."""
    one, other = await brokers.connect(), await brokers.connect()
    await other.producer()
    await one.subscribe(kind=KEY_SHARED, permits=permits, keySharedMeta=LOWER)
    await other.subscribe(kind=KEY_SHARED, consumer_id=2, keySharedMeta=UPPER)
    return one, other, KeyRounds(other)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let all but the last few entries be read from disk; return the ordinals at which reads began."""
    remembered, each = MemoryLog.read_cached, MemoryLog.read_each_cached
    began: list[int] = []

    def read_cached(self: MemoryLog, ordinal: int, *limits: int) -> Sequence[Entry] | None:
        return None if ordinal < self.extent.next_ordinal - 50 else remembered(self, ordinal, *limits)

    def read_each_cached(self: MemoryLog, ordinals: Sequence[int], size: int) -> Sequence[Entry] | None:
        return None if ordinals[0] < self.extent.next_ordinal - 50 else each(self, ordinals, size)

    async def read(self: MemoryLog, ordinal: int, *limits: int) -> Sequence[Entry]:
        began.append(ordinal)
        return remembered(self, ordinal, *limits)

    async def read_each(self: MemoryLog, ordinals: Sequence[int], size: int) -> Sequence[Entry]:
        return each(self, ordinals, size)

    for made in (read_cached, read_each_cached, read, read_each):
        monkeypatch.setattr(MemoryLog, made.__name__, made)
    return began


async def test_other_keys_go_on_however_many_entries_wait(brokers: Brokers) -> None:
    one, other, publisher = await two(brokers)
    for _ in range(12):
        await publisher.rounds(1000, LOW[:1])
    await publisher.rounds(10, HIGH)
    got = await receive(other, 2, 10 * len(HIGH))
    assert {tuple(numbers) for numbers in by_key(got).values()} == {tuple(range(10))}
    assert lanes_of(brokers).dispatch.waiting == 12_000
    one.flow(500)
    held = await receive(one, 1, 12_000)
    assert by_key(held) == {LOW[0]: list(range(12_000))}
    assert served(brokers).backlog == 0


@pytest.mark.brokers(keyed_dispatch="window")
async def test_the_window_stops_after_ten_thousand_entries(brokers: Brokers) -> None:
    _, other, publisher = await two(brokers)
    for _ in range(11):
        await publisher.rounds(1000, LOW[:1])
    await publisher.rounds(1, HIGH)
    assert take(other)[20:] == []
    assert lanes_of(brokers).dispatch.waiting == 10_000
    assert "10000 entries wait" in served(brokers).troubles[0]


@pytest.mark.usefixtures("cold")
async def test_entries_are_read_about_once_while_permits_cycle(brokers: Brokers) -> None:
    one, other, publisher = await two(brokers, permits=3)
    before = served(brokers).counters.entries_read
    await publisher.rounds(100, KEYS)
    late, got = [], []
    for _ in range(1000):
        await settle()
        fast = take(other)
        got += fast
        if fast:
            other.acknowledge(*fast, consumer_id=2)
            other.flow(len(fast), 2)
        slow = take(one)
        late += slow
        if slow:
            one.acknowledge(*slow)
            one.flow(len(slow))
    late += await receive(one, 1, 100 * len(LOW) - len(late))
    total = 100 * len(KEYS)
    assert served(brokers).backlog == 0
    assert {tuple(numbers) for numbers in by_key(late + got).values()} == {tuple(range(100))}
    assert served(brokers).counters.entries_read - before < 1.2 * total


@pytest.mark.usefixtures("cold")
async def test_entries_of_keys_that_are_stuck_for_long_are_fetched_from_disk_once(brokers: Brokers) -> None:
    one, other, publisher = await two(brokers)
    for _ in range(150):
        await publisher.rounds(1, KEYS, size=3000)
        fast = take(other)
        other.acknowledge(*fast, consumer_id=2)
        other.flow(len(fast), 2)
    counters = served(brokers).counters
    assert counters.entries_fetched == 0
    assert 150 * len(LOW) * 3000 > 1.5 * LOOK_ASIDE_BYTES
    one.flow(100)
    late = await receive(one, 1, 150 * len(LOW))
    assert {tuple(numbers) for numbers in by_key(late).values()} == {tuple(range(150))}
    assert served(brokers).backlog == 0
    assert 0 < counters.entries_fetched < 1.2 * len(late)


async def test_consumers_without_permits_cause_no_reads(brokers: Brokers) -> None:
    one, other, publisher = await two(brokers, permits=3)
    await publisher.rounds(5, LOW)
    reads = served(brokers).counters.entries_read
    other.send(pb.CommandCloseConsumer(consumer_id=2, request_id=77))
    await settle()
    await publisher.rounds(20, LOW)
    assert served(brokers).counters.entries_read <= reads + 1000 + len(LOW)
    before = served(brokers).counters.entries_read
    await publisher.rounds(20, LOW)
    assert served(brokers).counters.entries_read == before
    assert len(take(one)) == 3


@pytest.mark.parametrize("killed", [True, False])
async def test_after_a_restart_other_keys_come_first_and_every_key_in_order(
    brokers: Brokers, killed: bool, cold: list[int]
) -> None:
    _, other, publisher = await two(brokers)
    for _ in range(15):
        await publisher.rounds(1000, LOW[:2])
    await publisher.rounds(2, HIGH)
    outstanding = by_key(take(other))
    assert set(outstanding) == set(HIGH)
    await asyncio.sleep(5)
    cold.clear()
    if killed:
        brokers.kill()
        await brokers.start()
    else:
        await brokers.restart()
    one, other, publisher.client = [await brokers.connect() for _ in range(3)]
    await other.subscribe(kind=KEY_SHARED, consumer_id=2, keySharedMeta=UPPER)
    await settle()
    again = take(other)
    assert by_key(again) == outstanding, "entries that were outstanding come again, in order"
    assert min(cold, default=30_000) >= 20_000, "only the channel of lanes reads entries that were held"
    other.acknowledge(*again, consumer_id=2)
    await one.subscribe(kind=KEY_SHARED, permits=100, keySharedMeta=LOWER)
    await publisher.client.producer()
    await publisher.rounds(2, KEYS)
    held = await receive(one, 1, 30_000 + 2 * len(LOW))
    found = by_key(held)
    assert found[LOW[0]] == found[LOW[1]] == list(range(15_002))
    await receive(other, 2, 2 * len(HIGH))
    assert served(brokers).backlog == 0


@pytest.mark.brokers(log_idle_s=5.0)
async def test_lanes_outlast_the_leave_of_all_consumers_and_the_unloading_of_the_log(
    brokers: Brokers,
) -> None:
    one, other, publisher = await two(brokers)
    for _ in range(12):
        await publisher.rounds(1000, LOW[:1])
    other.acknowledge(*take(other), consumer_id=2)
    await settle()
    lanes_of(brokers).park(slot_of(HIGH[0]), "broken")
    one.close()
    other.close()
    await settle()
    assert lanes_of(brokers).dispatch.waiting == 12_000, "the lanes stay while the log is loaded"
    await asyncio.sleep(30)
    assert not brokers[0].logs.served
    one = await brokers.connect()
    await one.subscribe(kind=KEY_SHARED, permits=100, keySharedMeta=sticky(0, 65535))
    await one.producer()
    one.publish(f"{HIGH[0]}:0".encode(), 0, key=HIGH[0])
    one.publish(f"{HIGH[1]}:0".encode(), 1, key=HIGH[1])
    found = by_key(await receive(one, 1, 12_001))
    assert found == {LOW[0]: list(range(12_000)), HIGH[1]: [0]}
    lane = lanes_of(brokers).view(slot_of(HIGH[0]))
    assert lane is not None
    assert (lane.reason, lane.note, lane.entries) == (LaneReason.PARKED, "broken", 1)
    assert lanes_of(brokers).release(slot_of(HIGH[0]))
    served(brokers).schedule()
    assert by_key(await receive(one, 1, 1)) == {HIGH[0]: [0]}


async def test_a_key_that_is_stuck_released_and_stuck_again_stays_in_order(brokers: Brokers) -> None:
    one, other, publisher = await two(brokers)
    got: list[Delivery] = []
    for _ in range(5):
        await publisher.rounds(30, [LOW[0], HIGH[0]])
        one.flow(30)
        await settle()
        new = take(one)
        one.acknowledge(*new)
        got += new
    assert by_key(got) == {LOW[0]: list(range(150))}
    assert by_key(take(other)) == {HIGH[0]: list(range(150))}


async def test_a_lane_is_shown_with_its_reason_after_a_while(brokers: Brokers) -> None:
    _, _, publisher = await two(brokers)
    await publisher.rounds(7, LOW[:1])
    assert lanes_of(brokers).listed() == []
    await asyncio.sleep(1.5)
    (lane,) = lanes_of(brokers).listed()
    assert lane[:2] == (slot_of(LOW[0]), LaneReason.BUSY)
    assert (lane.entries, lane.first_ordinal) == (7, 0)
    assert lane.size_bytes > 7 * 4
    assert lanes_of(brokers).ordinals(lane.slot, 3) == [0, 1, 2]
    assert lanes_of(brokers).view(slot_of(HIGH[0])) is None


async def test_a_key_whose_message_is_not_acknowledged_in_time_leaves_permits_to_others(
    brokers: Brokers,
) -> None:
    one, _, publisher = await two(brokers, permits=20)
    await publisher.rounds(15, LOW[:1])
    hot = take(one)
    assert len(hot) == 15
    await asyncio.sleep(40)
    (lane,) = lanes_of(brokers).listed()
    assert (lane.reason, lane.entries) == (LaneReason.UNACKNOWLEDGED, 0)
    await publisher.rounds(100, LOW[:1])
    await publisher.rounds(1, LOW[1:4])
    assert set(by_key(take(one))) == set(LOW[1:4])
    one.acknowledge(*hot)
    await settle()
    assert by_key(take(one)) == {LOW[0]: [15, 16]}


async def test_a_consumer_that_acknowledges_rarely_goes_on_while_it_has_permits(brokers: Brokers) -> None:
    one, _, publisher = await two(brokers, permits=100)
    for count in range(100, 1000, 100):
        await publisher.rounds(100, LOW[:1])
        assert len(one.has(Delivery)) == count
        one.flow(100)
        await asyncio.sleep(40)


async def test_a_paused_slot_goes_on_by_itself_and_a_skipped_one_is_acknowledged(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(kind=KEY_SHARED)
    publisher = KeyRounds(client)
    lanes = lanes_of(brokers)
    lanes.pause(slot_of("k0"), brokers.clock.wall_ms() + 5000)
    await publisher.rounds(3, ["k0", "k1"])
    assert set(by_key(take(client))) == {"k1"}
    lane = lanes.view(slot_of("k0"))
    assert lane is not None
    assert (lane.reason, lane.entries) == (LaneReason.RETRY, 3)
    assert lanes.skip(slot_of("k0"), 1) == 1
    await asyncio.sleep(6)
    assert by_key(take(client)) == {"k0": [1, 2]}
    assert served(brokers).backlog == 5


@pytest.mark.brokers(lane_max=5)
async def test_at_a_bound_of_lanes_reading_stops_and_says_so(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, publisher = await two(brokers)
    await publisher.rounds(1, LOW[:8])
    await publisher.rounds(1, HIGH[:1])
    for _ in range(3):
        await publisher.rounds(100, HIGH[:1])
    assert len(take(other)) < 301
    assert "lane_max" in served(brokers).troubles[0]
    assert served(brokers).counters.lane_bounds == 1
    assert sum("lane_max" in record.getMessage() for record in caplog.records) == 1
    one.flow(100)
    await settle()
    assert len(take(one)) == 8
    assert served(brokers).troubles == []


async def test_a_damaged_entry_stops_its_lane_and_no_other(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    each, damaged = MemoryLog.read_each_cached, {0}

    async def read_each(self: MemoryLog, ordinals: Sequence[int], size: int) -> Sequence[Entry]:
        if ordinals[0] in damaged:
            raise DamagedEntriesError("rotten", ordinals[0], ordinals[0] + 1)
        return each(self, [ordinal for ordinal in ordinals if ordinal not in damaged], size)

    one, _, publisher = await two(brokers)
    await publisher.rounds(60, LOW[:2], size=100_000)
    monkeypatch.setattr(MemoryLog, "read_each_cached", lambda *_: None)
    monkeypatch.setattr(MemoryLog, "read_each", read_each)
    one.flow(1000)
    await settle()
    assert by_key(take(one)) == {LOW[1]: list(range(60))}
    assert "stops at" in served(brokers).troubles[0]
    damaged.clear()
    await asyncio.sleep(70)
    assert by_key(take(one)) == {LOW[0]: list(range(60))}
    assert served(brokers).troubles == []
