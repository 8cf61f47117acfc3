"""`verify` over real brokers and over files: healthy topics hold, and each planted fault is named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.client.api import AsyncClient
from anabranch.model.hashing import key_hash
from anabranch.model.names import TopicName
from anabranch.protocol.batches import MessageBatch
from anabranch.spark.decide.pipelines.verify_report import VerifyReport
from anabranch.spark.pipelines.progress import silent
from anabranch.spark.pipelines.proofs.verify_pass import Expectations
from anabranch.spark.pipelines.proofs.verifying import verify
from anabranch.spark.pipelines.topic_places import TopicPlace
from simulation.harness.process import BrokerProcess
from tests.spark.files import PUBLISHED_MS, FilesSource, FileTopic

pytestmark = pytest.mark.timeout(600)

KEYS = 37
ORDERS = TopicName.parse("topic://public/default/orders")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Without deduplication the broker stores what a faulty producer repeats.
    settings = {"auto_scale.enabled": "false", "deduplication": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("verify") / "data", settings) as process:
        yield process


def publish(broker: BrokerProcess, topic: str, numbers: Sequence[int], **options: Any) -> None:
    """Send numbers, each to key number modulo KEYS, with the number inside the key as a header."""

    async def send() -> None:
        async with AsyncClient(broker.url) as client:
            producer = await client.create_producer(topic, **options)
            for n in numbers:
                header = {"number": str(n // KEYS)}
                await producer.enqueue(str(n).encode(), key=f"key-{n % KEYS}", properties=header)
            await producer.flush()

    asyncio.run(send())


def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient(broker.http_url)


def place(broker: BrokerProcess, topic: str) -> TopicPlace:
    return TopicPlace(topic, broker.url)


def test_a_topic_that_was_split_and_merged_holds(spark: Any, broker: BrokerProcess) -> None:
    with admin(broker) as api:
        api.create_topic(ORDERS, 1)
        publish(broker, "orders", range(1000))
        api.split(ORDERS, 0)
        publish(broker, "orders", range(1000, 2000))
        api.merge(ORDERS, [1, 2])
        publish(broker, "orders", range(2000, 3000))
        api.split(ORDERS, 3, parts=3)
        publish(broker, "orders", range(3000, 4000))
    expect = Expectations(sequence_header="number", sequence_first=0, dense_producers=True, complete=True)
    report = verify(spark, place(broker, "orders"), expect, silent)
    assert report.findings == ()
    assert report.summary == (
        "4,000 messages of 37 keys from 4 producers: nothing lost, doubled or out of order"
    )
    assert report.unproved == ()
    assert report.counts.segments == 7


def test_a_message_that_a_producer_stored_twice_is_named(spark: Any, broker: BrokerProcess) -> None:
    with admin(broker) as api:
        api.create_topic(TopicName.parse("topic://public/default/twice"), 1)
    publish(broker, "twice", range(500), name="p")
    # The producer starts again and repeats messages 400 to 499 with their sequence ids.
    publish(broker, "twice", range(400, 600), name="p", initial_sequence_id=399)
    report = verify(spark, place(broker, "twice"), Expectations(sequence_header="number"), silent)
    by_producer, by_application = report.findings
    for found in report.findings:
        assert (found.kind, found.topic, found.segment, found.position) == ("repeated", "twice", 0, 500)
        assert (found.producer, found.count) == ("p", 100)
        assert "of segment 0" in found.found
    assert by_producer.expected.startswith("sequence id 4")
    assert by_application.key == by_producer.key
    assert report.summary == "700 messages of 37 keys from 1 producer: 200 repeated"


@pytest.fixture
def files(tmp_path: Path) -> FileTopic:
    return FileTopic(tmp_path, "orders").create(1)


def store(
    topic: FileTopic,
    *messages: tuple[str | None, int, int],
    segment: int = 0,
    age_ms: int = 0,
    name: str = "p",
) -> None:
    """Store one entry of messages, each with its key, its sequence id and the application's own number."""
    batch = MessageBatch()
    for key, sequence, number in messages:
        batch.add(json.dumps({"n": number}).encode(), key, sequence)
    topic.append_entry(segment, batch.build(name, PUBLISHED_MS - age_ms), batch.count)


def check(spark: Any, topic: FileTopic, **expect: Any) -> VerifyReport:
    at = TopicPlace(topic.name, str(topic.root))
    return verify(spark, at, Expectations(**expect), silent, source=FilesSource)


def plant(topic: FileTopic) -> dict[str, int]:
    """Store a topic with one fault of each kind, each on a key of its own; return the home of some keys."""
    store(topic, *(("trimmed", n, n) for n in range(4)))
    store(topic, ("late", 10, 0), ("late", 11, 1), ("gap", 12, 0))
    store(topic, ("gap", 13, 1), ("gap", 14, 2))
    store(topic, ("gap", 15, 3), ("swapped", 16, 1), ("swapped", 17, 0))
    store(topic, (None, 20, 0), (None, 19, 0), (None, 20, 0))
    topic.lose(0, [0, 2])
    topic.split(0)
    homes = {key: 1 if key_hash(key) >> 16 < 0x8000 else 2 for key in ("late", "stray", "clock")}
    store(topic, ("late", 5, 2), ("late", 18, 3), segment=homes["late"])
    store(topic, ("clock", 30, 0), segment=homes["clock"])
    store(topic, ("clock", 31, 1), segment=homes["clock"], age_ms=59_000)
    store(topic, ("clock", 32, 2), segment=homes["clock"], age_ms=61_000)
    store(topic, ("stray", 33, 0), segment=3 - homes["stray"])
    return homes


def test_each_planted_fault_is_named_at_its_place(spark: Any, files: FileTopic) -> None:
    homes = plant(files)
    behind = {segment: files.tail(segment).next for segment in (1, 2)}
    report = check(spark, files)
    found = [(one.kind, one.segment, one.position, one.key, one.count, one.found) for one in report.findings]
    wrong = 3 - homes["stray"]
    assert sorted(found, key=str) == sorted(
        [
            ("missing", 0, 7, None, 2, "no message is stored there"),
            ("misplaced", wrong, behind[wrong] - 1, b"stray", 1, f"slot {key_hash('stray') >> 16:04x}"),
            ("repeated", 0, 14, None, 1, "also at position 12 of segment 0"),
            ("reordered", homes["late"], 0, b"late", 1, "sequence id 5"),
            ("clock", homes["clock"], last_of_clock(homes), b"clock", 1, "2023-11-14 22:12:19.123"),
        ],
        key=str,
    )
    assert "messages 0 to 3 of segment 0 are no longer stored" in report.unproved
    assert (report.counts.without_key, report.counts.keys) == (3, 5)
    assert report.proved == ()


def last_of_clock(homes: dict[str, int]) -> int:
    return 4 if homes["clock"] == homes["late"] else 2


def test_the_application_and_the_operator_may_expect_more(spark: Any, files: FileTopic) -> None:
    plant(files)
    report = check(spark, files, sequence_path="$.n", sequence_first=0, dense_producers=True, complete=True)
    found = [(one.kind, one.segment, one.position, one.expected, one.found) for one in report.findings]
    assert ("missing", 0, 0, "messages from position 0 on", "the first message stored is 4") in found
    assert ("missing", 0, 9, "number 1 of the key", "number 3") in found
    assert ("reordered", 0, 11, "a number of the key above 1", "number 0") in found
    assert ("missing", 0, 9, "sequence id 13 of the producer", "sequence id 15") in found
    assert len(found) == 5 + 3 + 3


def test_numbers_at_the_ends_of_their_type_are_compared_too(spark: Any, files: FileTopic) -> None:
    lowest, highest = -(2**63), 2**63 - 1
    store(files, ("high", 0, highest - 1), ("high", 1, highest), ("high", 2, highest))
    store(files, ("low", 3, lowest), ("low", 4, lowest + 1), ("gap", 5, lowest + 1))
    report = check(spark, files, sequence_path="$.n", sequence_first=lowest)
    found = [(one.kind, one.position, one.count, one.expected, one.found) for one in report.findings]
    assert sorted(found) == [
        ("missing", 0, 2, f"number {lowest} of the key", f"number {highest - 1}"),
        ("repeated", 2, 1, f"number {highest} of the key once", "also at position 1 of segment 0"),
    ]


def test_an_empty_topic_holds(spark: Any, files: FileTopic) -> None:
    assert check(spark, files, sequence_path="$.n", dense_producers=True).holds
