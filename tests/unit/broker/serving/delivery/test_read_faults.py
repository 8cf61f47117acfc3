"""Entries that the disk cannot read, or that are damaged, under all types of subscription."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from anabranch import Checkpoint
from anabranch.broker.browsing import stats
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.client.bulk.segment_reader import RawEntry
from anabranch.errors import AnabranchError, DataLossError
from anabranch.ledger.storage import SegmentStorage
from anabranch.protocol.commands import Delivery
from anabranch.protocol.entry.entries import decode_columns
from anabranch.protocol.entry.gaps import is_gap
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.fakes.disk import DictDisk
from tests.harness.cluster import TOPIC, Brokers, drain
from tests.harness.segments import WHOLE
from tests.harness.storage import flip, make
from tests.harness.wire import WireClient, settle, value_of

KINDS = [
    pb.CommandSubscribe.Exclusive,
    pb.CommandSubscribe.Failover,
    pb.CommandSubscribe.Shared,
    pb.CommandSubscribe.Key_Shared,
]
COUNT = 6


@pytest.fixture
def disk() -> DictDisk:
    return DictDisk()


@pytest.fixture
def storage(disk: DictDisk) -> Callable[[], SegmentStorage]:
    """Storage that keeps nothing in memory once it is in a file."""
    return lambda: make(disk, cache_bytes=0, behind_bytes=1)


def break_reads(disk: DictDisk) -> None:
    def fault(call: str, file: str) -> OSError | None:
        return OSError(errno.EIO, "I/O error", file) if call == "read" else None

    disk.fault = fault


def repair_reads(disk: DictDisk) -> None:
    disk.fault = lambda call, file: None


def damage(disk: DictDisk, entry: int) -> None:
    """Flip a bit in the payload of an entry of the only ledger."""
    (file,) = (name for name in disk.files if name.endswith(".data"))
    size = len(disk.files[file]) // COUNT
    disk.files[file] = flip(disk.files[file], entry * size + size - 1)


async def published(brokers: Brokers) -> ServedLog:
    """A classic topic with six messages, one per entry and key."""
    producer = await brokers.connect()
    await producer.producer()
    for number in range(COUNT):
        producer.publish(b"%d" % number, number, key=str(number))
    await settle()
    await asyncio.sleep(1)
    return brokers[0].logs.served[0]


async def subscribed(brokers: Brokers, kind: int = pb.CommandSubscribe.Exclusive) -> WireClient:
    client = await brokers.connect()
    await client.subscribe(kind=kind, permits=100)
    return client


def values(client: WireClient) -> list[bytes]:
    return [value_of(delivery) for delivery in client.has(Delivery)]


ALL = [b"%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("kind", KINDS)
async def test_delivery_goes_on_by_itself_when_the_disk_can_be_read_again(
    brokers: Brokers, disk: DictDisk, kind: int
) -> None:
    log = await published(brokers)
    break_reads(disk)
    client = await subscribed(brokers, kind)
    await asyncio.sleep(30)
    assert values(client) == []
    subscription = log.subscriptions["sub"]
    shown = stats.subscription_stats(subscription, stats.WHOLE_STATS, 0.0, 60.0)
    assert shown.read_errors >= 3
    assert "Input/output error" in shown.troubles[0] or "I/O error" in shown.troubles[0]
    repair_reads(disk)
    await asyncio.sleep(10)
    assert values(client) == ALL
    assert subscription.troubles == []


@pytest.mark.parametrize("kind", KINDS)
async def test_delivery_stops_at_a_damaged_entry_and_says_so(
    brokers: Brokers, disk: DictDisk, kind: int
) -> None:
    log = await published(brokers)
    damage(disk, 2)
    whole = dict(disk.files)
    client = await subscribed(brokers, kind)
    await asyncio.sleep(30)
    assert values(client) == ALL[:2]
    (trouble,) = log.subscriptions["sub"].troubles
    assert "delivery stops at 1:2" in trouble
    assert "damaged_entries=skip" in trouble
    damage(disk, 2)
    assert disk.files != whole, "the flipped bit is back"
    await asyncio.sleep(120)
    assert values(client) == ALL, "a repaired file is read without another event"


@pytest.mark.brokers(damaged_entries="skip")
@pytest.mark.parametrize("kind", KINDS)
async def test_delivery_passes_exactly_the_damaged_entries_and_counts_them(
    brokers: Brokers, disk: DictDisk, kind: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = await published(brokers)
    for entry in (0, 3, 5):
        damage(disk, entry)
    client = await subscribed(brokers, kind)
    await asyncio.sleep(10)
    assert values(client) == [b"1", b"2", b"4"]
    for delivery in client.has(Delivery):
        client.acknowledge(delivery)
    await settle()
    subscription = log.subscriptions["sub"]
    assert subscription.backlog == 0
    shown = stats.subscription_stats(subscription, stats.WHOLE_STATS, 0.0, 60.0)
    assert (shown.damaged_entries, shown.damaged_messages) == (3, 3)
    assert shown.troubles == ["3 damaged entries were passed without delivery"]
    passed = [line for line in caplog.messages if "passes damaged entries (1, with" in line]
    assert len(passed) == 3
    assert "subscription sub" in passed[1]
    assert "at 1:3" in passed[1]


async def publish_to_topic(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=False)
        for number in range(COUNT):
            await producer.send(b"%d" % number, key="k")
    await asyncio.sleep(1)


async def test_a_sealed_parent_is_drained_once_it_can_be_read_again_and_why_tells_the_reason(
    brokers: Brokers, disk: DictDisk
) -> None:
    await publish_to_topic(brokers)
    controller = await brokers.controller()
    await controller.split(0)
    break_reads(disk)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        await asyncio.sleep(30)
        troubles = (await controller.explain())["troubles"]
        assert isinstance(troubles, dict)
        assert "cannot be read" in troubles["segment 0"]
        repair_reads(disk)
        found = await drain(consumer, timeout=20)
        assert [message.data for message in found] == ALL
        producer = await client.create_producer(TOPIC)
        await producer.send(b"child", key="k")
        assert (await consumer.receive(timeout=20)).data == b"child"
    assert (await controller.explain())["troubles"] == {}


@pytest.mark.brokers(damaged_entries="skip")
async def test_a_sealed_parent_with_a_damaged_end_is_drained_by_passing_it(
    brokers: Brokers, disk: DictDisk
) -> None:
    await publish_to_topic(brokers)
    controller = await brokers.controller()
    await controller.split(0)
    damage(disk, COUNT - 1)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        assert [message.data for message in await drain(consumer, timeout=5)] == ALL[:-1]
        producer = await client.create_producer(TOPIC)
        await producer.send(b"child", key="k")
        assert (await consumer.receive(timeout=20)).data == b"child"
        troubles = (await controller.explain())["troubles"]
    assert troubles == {"segment 0": "subscription s: 1 damaged entry was passed without delivery"}


@pytest.mark.parametrize("damaged", [0, 2, COUNT - 1])
async def test_checkpoint_reader_passes_a_gap_in_a_sealed_parent_or_names_it(
    brokers: Brokers, disk: DictDisk, damaged: int
) -> None:
    await publish_to_topic(brokers)
    await (await brokers.controller()).split(0)
    damage(disk, damaged)
    earliest = Checkpoint.earliest()
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        await producer.send(b"child", key="k")
        reader = await client.create_checkpoint_consumer(TOPIC, start=earliest, fail_on_data_loss=False)
        expected = [*ALL[:damaged], *ALL[damaged + 1 :], b"child"]
        assert [(await reader.receive(timeout=5)).data for _ in expected] == expected
        assert reader.bad_entry_count == 1
        careful = await client.create_checkpoint_consumer(TOPIC, start=earliest)
        for number in range(damaged):
            assert (await careful.receive(timeout=5)).data == ALL[number]
        with pytest.raises(DataLossError, match="segment 0 are damaged"):
            await careful.receive(timeout=5)


@pytest.mark.parametrize("damaged", [0, 2, COUNT - 1])
async def test_bulk_reader_gets_a_mark_that_cannot_be_decoded_in_place_of_a_damaged_entry(
    brokers: Brokers, disk: DictDisk, damaged: int
) -> None:
    await publish_to_topic(brokers)
    damage(disk, damaged)
    async with brokers.client() as client:
        reader = client.read_segment(WHOLE, 0, COUNT)
        found: list[RawEntry] = []
        while entries := await reader.read(timeout=5):
            found += entries
        assert [entry.first_index for entry in found] == list(range(COUNT))
        assert [is_gap(entry.data) for entry in found] == [number == damaged for number in range(COUNT)]
        with pytest.raises(AnabranchError):
            decode_columns(found[damaged].data, 1000)
