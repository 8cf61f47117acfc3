"""Trimming deletes old acknowledged entries, and no others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from anabranch.broker.catalog.trimming import ROUND_S, plan_trim
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.errors import PersistenceError
from anabranch.ledger.memory import MemoryLog, MemoryStorage
from anabranch.ledger.storage import SegmentLog, SegmentStorage
from anabranch.model.names import Place, TopicName
from anabranch.model.policies.retention import MEGABYTE
from anabranch.protocol.commands import NO_ID, Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import START_INDEX
from tests.fakes.disk import DictDisk
from tests.harness.cluster import Brokers
from tests.harness.storage import make
from tests.harness.wire import TOPIC, WireClient, batch, settle, values_of

RETENTION_S = 200.0
pytestmark = pytest.mark.brokers(segment_retention_s=RETENTION_S)
OTHER = "persistent://public/default/other"

Stored = Callable[[], SegmentStorage]


@pytest.fixture
def disk() -> DictDisk:
    return DictDisk()


@pytest.fixture(params=["memory", "files"])
def stored(request: pytest.FixtureRequest, disk: DictDisk) -> Stored:
    """How to open the storage, the first time and again after a stop; ledgers are small, memory is none."""
    if request.param == "memory":
        memory = MemoryStorage(ledger_entries_max=2)
        return lambda: memory

    def files() -> SegmentStorage:
        disk.locked = False
        return make(disk, ledger_bytes_max=200, cache_bytes=0, behind_bytes=1)

    return files


@pytest.fixture
def storage(request: pytest.FixtureRequest, storage: Stored) -> Stored:
    """Opens the storage of `brokers`: the parameter or the fixture `stored` of the test, else its marker."""
    if "stored" in request.fixturenames:
        storage = request.getfixturevalue("stored")
    return getattr(request, "param", storage)


def log_of(brokers: Brokers, topic: str = TOPIC) -> SegmentLog:
    log = brokers.storages[0].get(topic)
    assert log is not None
    return log


def segment_of(brokers: Brokers) -> ServedLog:
    return brokers[0].logs.require(TopicName.parse(TOPIC))


def drains_of(brokers: Brokers) -> list[str]:
    """A list that gets the subscriptions that drain the topic from now on."""
    told: list[str] = []
    topic = TopicName.parse(TOPIC).partitioned_topic.topic
    brokers[0].segments.on_drained(topic, lambda event: told.append(event.subscription))
    return told


async def produced(brokers: Brokers, count: int = 0) -> WireClient:
    """A client with a producer that has stored this many entries."""
    client = await brokers.connect()
    await client.producer()
    await publish(client, 0, count)
    return client


async def publish(client: WireClient, lo: int, hi: int) -> None:
    await client.publish_all([b"%d" % n for n in range(lo, hi)], first=lo)


async def aged(brokers: Brokers, old: int = 10, young: int = 10) -> WireClient:
    """A topic with a subscription at its start, entries just beyond the retention time, then fresh ones."""
    client = await produced(brokers)
    await client.subscribe(permits=0)
    await publish(client, 0, old)
    await asyncio.sleep(RETENTION_S - ROUND_S / 2)
    await publish(client, old, old + young)
    await asyncio.sleep(ROUND_S * 2)
    return client


async def acknowledge(client: WireClient, count: int) -> None:
    client.flow(count)
    found = await client.deliveries(count)
    await client.acknowledge_durably(found[-1], cumulative=True)


def values(lo: int, hi: int) -> list[bytes]:
    return [b"%d" % n for n in range(lo, hi)]


def test_the_slowest_cursor_and_the_retention_time_decide_together() -> None:
    assert plan_trim([40, 30, 50], 35, 100) == 30
    assert plan_trim([40, 30, 50], 20, 100) == 20


def test_without_cursors_the_retention_time_alone_decides() -> None:
    assert plan_trim([], 35, 100) == 35


def test_the_last_entry_stays_however_old_and_acknowledged() -> None:
    assert plan_trim([100], 100, 100) == 99
    assert plan_trim([], 0, 0) == 0


async def test_old_acknowledged_entries_are_dropped_and_young_ones_stay(
    brokers: Brokers, stored: Stored
) -> None:
    client = await aged(brokers)
    log = log_of(brokers)
    before = log.extent.size_bytes
    await acknowledge(client, 20)
    assert log.extent.first_ordinal == 0
    await asyncio.sleep(ROUND_S)
    assert 8 <= log.extent.first_ordinal <= 10
    assert log.extent.size_bytes < before * 0.7
    await asyncio.sleep(RETENTION_S)
    assert 18 <= log.extent.first_ordinal < 20
    assert log.extent.next_ordinal == 20


@pytest.mark.parametrize("minutes", [2, -1, None])
@pytest.mark.brokers(segment_retention_s=600.0)
async def test_a_namespace_may_have_a_retention_time_of_its_own(
    brokers: Brokers, stored: Stored, minutes: int | None
) -> None:
    if minutes is not None:
        await limit(brokers, minutes, -1)
    await produced(brokers, 10)
    await asyncio.sleep(2 * 60 + 2 * ROUND_S)
    assert (log_of(brokers).extent.first_ordinal > 0) == (minutes == 2)
    await asyncio.sleep(500)
    assert (log_of(brokers).extent.first_ordinal > 0) == (minutes != -1)


async def limit(brokers: Brokers, minutes: int, megabytes: int) -> None:
    policy = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    await brokers[0].records.namespaces.update_namespace(
        "public/default", lambda record: replace(record, policies={"retention_policies": policy})
    )


@pytest.mark.parametrize("megabytes", [1, -1, 0])
async def test_a_namespace_may_limit_what_a_topic_keeps_of_what_is_acknowledged(
    brokers: Brokers, stored: Stored, megabytes: int
) -> None:
    await limit(brokers, -1, megabytes)
    client = await produced(brokers)
    await client.subscribe(permits=0)
    await client.publish_all([bytes(400_000)] * 8)
    log = log_of(brokers)
    await asyncio.sleep(ROUND_S)
    assert log.extent.first_ordinal == 0
    await acknowledge(client, 8)
    await asyncio.sleep(ROUND_S)
    if megabytes == 1:
        assert MEGABYTE <= log.extent.size_bytes < MEGABYTE + 800_000
    else:
        assert log.extent.first_ordinal == 0


async def test_the_time_limit_holds_beside_a_size_that_is_not_reached(
    brokers: Brokers, stored: Stored
) -> None:
    await limit(brokers, 2, 100)
    await produced(brokers, 10)
    await asyncio.sleep(ROUND_S)
    assert log_of(brokers).extent.first_ordinal == 0
    await asyncio.sleep(2 * 60 + ROUND_S)
    assert log_of(brokers).extent.first_ordinal > 0


@pytest.mark.brokers(storage=lambda: MemoryStorage(ledger_entries_max=2))
async def test_how_much_of_a_segment_stays_is_left_to_the_leader_of_its_topic(brokers: Brokers) -> None:
    await limit(brokers, -1, 1)
    place = Place(TopicName.parse("segment://public/default/orders/0000-ffff-7"), 0)
    await brokers[0].segments.create(place, {}, 1)
    log = brokers[0].logs.require(place.name).log
    for _ in range(8):
        log.append(bytes(400_000), 1, 1_000, lambda appended, error: None)
    await asyncio.sleep(2 * ROUND_S)
    assert log.extent.first_ordinal == 0


@pytest.mark.parametrize(
    "storage",
    [
        pytest.param(lambda: MemoryStorage(ledger_age_max_s=50.0), id="memory"),
        pytest.param(lambda: make(DictDisk(), ledger_age_max_s=50.0), id="files"),
    ],
    indirect=True,
)
async def test_a_ledger_ends_when_it_is_old_so_that_a_slow_log_can_be_dropped_too(
    brokers: Brokers,
) -> None:
    client = await produced(brokers)
    for number in range(20):
        await publish(client, number, number + 1)
        await asyncio.sleep(30)
    log = log_of(brokers)
    positions = [
        log.extent.position_of(ordinal)
        for ordinal in range(log.extent.first_ordinal, log.extent.next_ordinal)
    ]
    assert len({position.ledger for position in positions}) > 1
    assert 8 <= log.extent.first_ordinal <= 14


@pytest.mark.parametrize("stored", ["files"], indirect=True)
async def test_dropped_files_are_deleted(brokers: Brokers, stored: Stored, disk: DictDisk) -> None:
    client = await aged(brokers)
    before = sum(name.endswith(".data") for name in disk.files)
    await acknowledge(client, 20)
    await asyncio.sleep(RETENTION_S + ROUND_S)
    assert sum(name.endswith(".data") for name in disk.files) == 1 < before


async def test_entries_that_one_subscription_has_not_acknowledged_stay(
    brokers: Brokers, stored: Stored
) -> None:
    client = await aged(brokers)
    await acknowledge(client, 20)
    await client.subscribe(subscription="slow", consumer_id=2, permits=0)
    await asyncio.sleep(5 * RETENTION_S)
    log = log_of(brokers)
    assert log.extent.first_ordinal == 0
    client.flow(20, consumer_id=2)
    found = await client.deliveries(20, consumer_id=2)
    assert values_of(found) == values(0, 20)
    # A hole at the seventh entry keeps that one and all behind it.
    client.acknowledge(*(d for at, d in enumerate(found) if at != 7), consumer_id=2)
    await asyncio.sleep(ROUND_S)
    assert 5 <= log.extent.first_ordinal <= 7


async def test_without_subscriptions_old_entries_go_by_their_age(brokers: Brokers, stored: Stored) -> None:
    client = await aged(brokers)
    client.send(pb.CommandUnsubscribe(consumer_id=1, request_id=90))
    await asyncio.sleep(ROUND_S)
    assert 8 <= log_of(brokers).extent.first_ordinal <= 10


async def test_a_log_that_no_client_has_used_since_the_start_is_trimmed_too(
    brokers: Brokers, stored: Stored
) -> None:
    await acknowledge(await aged(brokers), 20)
    brokers.storages[0] = stored()
    await brokers.restart()
    await asyncio.sleep(ROUND_S * 1.5)
    assert brokers[0].logs.served == ()
    assert 8 <= log_of(brokers).extent.first_ordinal <= 10


@pytest.mark.brokers(segment_retention_s=-1)
async def test_minus_one_keeps_everything_for_ever(brokers: Brokers, stored: Stored) -> None:
    await acknowledge(await aged(brokers), 20)
    await asyncio.sleep(10 * RETENTION_S)
    assert log_of(brokers).extent.first_ordinal == 0


@pytest.mark.brokers(storage=lambda: MemoryStorage(ledger_entries_max=2), segment_retention_s=RETENTION_S)
async def test_one_log_that_fails_is_logged_once_and_the_others_are_trimmed(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = MemoryLog.trim
    broken = [TOPIC]

    async def trim(self: MemoryLog, ordinal: int) -> None:
        if self.name in broken:
            raise PersistenceError("no")
        await whole(self, ordinal)

    monkeypatch.setattr(MemoryLog, "trim", trim)

    with caplog.at_level(logging.WARNING, logger="anabranch.broker.catalog.trimming"):
        client = await brokers.connect()
        for number, topic in enumerate((TOPIC, OTHER)):
            await client.producer(topic, producer_id=number)
            await client.publish_all(values(0, 10), producer_id=number)
        await asyncio.sleep(RETENTION_S + 5 * ROUND_S)
        assert log_of(brokers, OTHER).extent.first_ordinal == 8
        assert log_of(brokers).extent.first_ordinal == 0
        assert [TOPIC in record.getMessage() for record in caplog.records] == [True]
        broken.clear()
        await asyncio.sleep(ROUND_S)
        assert log_of(brokers).extent.first_ordinal == 8


async def trimmed(brokers: Brokers) -> WireClient:
    """As `aged`, with all entries acknowledged and the old ones trimmed; the consumer is closed."""
    client = await aged(brokers)
    await acknowledge(client, 20)
    await asyncio.sleep(ROUND_S)
    assert 8 <= log_of(brokers).extent.first_ordinal <= 10
    client.inbox.clear()
    return client


async def last_id(client: WireClient) -> pb.CommandGetLastMessageIdResponse:
    answer = await client.request(pb.CommandGetLastMessageId(consumer_id=1, request_id=0))
    assert isinstance(answer, pb.CommandGetLastMessageIdResponse)
    return answer


async def test_the_last_message_and_both_indexes_are_told(brokers: Brokers, stored: Stored) -> None:
    client = await trimmed(brokers)
    log = log_of(brokers)
    for _ in range(2):
        found = await last_id(client)
        assert found.last_message_id.entryId != NO_ID
        assert (found.last_message_id.ledgerId, found.last_message_id.entryId) == log.extent.position_of(19)
        assert (found.first_index, found.next_index) == (log.extent.first_index, 20)
        # Again when all of it is old: the last ledger is there still.
        await asyncio.sleep(2 * RETENTION_S)
    assert log.extent.first_index >= 18


async def test_indexes_count_messages_and_not_entries_behind_a_trim(brokers: Brokers, stored: Stored) -> None:
    client = await produced(brokers)
    for number in range(10):
        client.publish(b"", 3 * number, entry=batch([b"a", b"b", b"c"], 3 * number), messages=3)
        await client.receipt()
    await asyncio.sleep(RETENTION_S + 2 * ROUND_S)
    log = log_of(brokers)
    assert log.extent.first_ordinal >= 8
    assert (log.extent.first_index, log.extent.next_index) == (3 * log.extent.first_ordinal, 30)


async def test_a_seek_to_the_earliest_starts_at_the_first_stored_entry(
    brokers: Brokers, stored: Stored
) -> None:
    client = await trimmed(brokers)
    first = log_of(brokers).extent.first_ordinal
    aim = pb.MessageIdData(ledgerId=NO_ID, entryId=NO_ID)
    await client.request(pb.CommandSeek(consumer_id=1, request_id=0, message_id=aim))
    assert segment_of(brokers).subscriptions["sub"].backlog == 20 - first
    await client.subscribe()
    assert values_of(await client.deliveries(20 - first)) == values(first, 20)


@pytest.mark.parametrize("start", [None, 0, 3])
async def test_readers_that_start_before_a_trim_begin_at_the_first_stored_entry(
    brokers: Brokers, stored: Stored, start: int | None
) -> None:
    client = await trimmed(brokers)
    first = log_of(brokers).extent.first_ordinal
    asked = [] if start is None else [pb.KeyValue(key=START_INDEX, value=str(start))]
    await client.subscribe(subscription="reader", consumer_id=2, durable=False, metadata=asked)
    assert values_of(await client.deliveries(20 - first, consumer_id=2)) == values(first, 20)


async def test_a_restart_after_a_trim_finds_the_same_log_and_goes_on(
    brokers: Brokers, stored: Stored
) -> None:
    def ends() -> tuple[object, ...]:
        found = log_of(brokers).extent
        ordinals = found.first_ordinal, found.next_ordinal
        return *ordinals, found.first_index, found.next_index, found.position_of(19)

    client = await trimmed(brokers)
    before = ends()
    brokers.storages[0] = stored()
    await brokers.restart()
    assert ends() == before
    assert log_of(brokers).cursors["sub"].acks.mark == 20
    client = await brokers.connect()
    await client.subscribe()
    await client.producer()
    await publish(client, 20, 23)
    assert values_of(await client.deliveries(3)) == values(20, 23)


KINDS = [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reader_that_was_overtaken_goes_on_at_the_first_stored_entry(
    brokers: Brokers, stored: Stored, kind: int
) -> None:
    client = await produced(brokers, 10)
    await client.subscribe(subscription="reader", kind=kind, durable=False, permits=2)
    await client.deliveries(2)
    await asyncio.sleep(RETENTION_S)
    await publish(client, 10, 14)
    await asyncio.sleep(2 * ROUND_S)
    first = log_of(brokers).extent.first_ordinal
    assert 8 <= first <= 10
    found = segment_of(brokers).subscriptions["reader"]
    assert found.backlog == 14 - first
    assert found.reading.unacked == 0
    # Entries that the consumer received and asks for again are trimmed; no others may come instead.
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    client.flow(100)
    await settle()
    assert values_of(client.has(Delivery)) == values(first, 14)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cursor_that_a_seek_left_below_a_trim_can_be_drained(
    brokers: Brokers, stored: Stored, kind: int
) -> None:
    client = await trimmed(brokers)
    client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=90))
    segment = segment_of(brokers)
    told = drains_of(brokers)
    # As a seek that came between the decision and the commit of the trim.
    segment.subscriptions["sub"].cursor.reset(0)
    await segment.seal()
    await client.subscribe(kind=kind)
    first = segment.log.extent.first_ordinal
    found = await client.deliveries(20 - first)
    assert values_of(found) == values(first, 20)
    assert told == []
    await client.acknowledge_durably(*found)
    await settle()
    assert told == ["sub"]


async def test_a_deleted_log_is_not_taken_for_a_drained_one(brokers: Brokers) -> None:
    client = await aged(brokers)
    told = drains_of(brokers)
    await segment_of(brokers).seal()
    client.flow(1)
    await brokers[0].logs.drop(TopicName.parse(TOPIC))
    await asyncio.sleep(2 * ROUND_S)
    assert told == []
