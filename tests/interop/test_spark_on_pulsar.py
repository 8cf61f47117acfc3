"""The Spark source on a real Apache Pulsar, which numbers no messages: 4.0.7 and 5.0.0-M1.

Each server is started once. Its ledgers are short, so that every read crosses several of them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.errors import DataLossError, TopicNotFoundError, UnsupportedFeatureError
from anabranch.spark import pipelines
from anabranch.spark.decide.source.places import place_of
from anabranch.spark.service import BrokerService, close_sessions
from tests.interop.engines import SCALABLE, PulsarServers
from tests.interop.pulsar_topics import PulsarQuery, PulsarTopics, by_key, expected, path

# The first run downloads some 250 MB for each server.
pytestmark = pytest.mark.timeout(900)

VERSIONS = os.environ.get("PULSAR_VERSIONS", f"4.0.7 {SCALABLE}").split()


@pytest.fixture(scope="module", params=VERSIONS)
def topics(request: pytest.FixtureRequest, pulsar_servers: PulsarServers) -> PulsarTopics:
    return PulsarTopics(pulsar_servers.started(request.param))


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_sessions()


def wait_for(look: Callable[[], int], good: Callable[[int], bool]) -> int:
    """Look again until the answer is good; return the last one after half a minute."""
    deadline = time.monotonic() + 30
    while not good(found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_stream_reads_a_classic_topic_once_and_in_order(topics: PulsarTopics, partitions: int) -> None:
    name = f"classic-{partitions}"
    topics.create_classic(name, partitions)
    topics.publish(name, 0, 300, batch=7)
    query = PulsarQuery(topics, name, maxOffsetsPerTrigger="60")
    for _ in range(5):
        query.step(replay=True)
    topics.publish(name, 300, 400, batch=1)
    query.restart()
    for _ in range(3):
        query.step(replay=True)
    topics.publish(name, 400, 1200, batch=50, compression="ZLib")
    query.drain()
    assert by_key(query.rows) == expected(1200)
    # The limit holds about: an entry is never cut, and each partition takes at least one.
    assert max(query.batches) <= 60 + 50 * max(1, partitions)
    ledgers = {place_of(position).ledger for _, _, _, position in query.rows}
    assert len(ledgers) >= 3, "the ledgers should be short"
    in_sql_order = sorted(query.rows, key=lambda row: row[2:])
    assert by_key(in_sql_order) == expected(1200)


@pytest.mark.parametrize("topics", [SCALABLE], indirect=True)
def test_a_stream_follows_splits_and_merges_of_a_scalable_topic(topics: PulsarTopics) -> None:
    change = "scalable/public/default/scaled"
    topics.call("PUT", f"{change}?numInitialSegments=1")
    topics.publish_by_ours("scaled", 0, 400)
    query = PulsarQuery(topics, "scaled", maxOffsetsPerTrigger="120")
    for _ in range(3):
        query.step(replay=True)
    topics.call("POST", f"{change}/split/0")
    topics.publish_by_ours("scaled", 400, 800)
    query.restart()
    query.step(replay=True)
    topics.call("POST", f"{change}/split/1")
    topics.publish_by_ours("scaled", 800, 1000)
    at_once = PulsarQuery(topics, "scaled", bucketsPerSegment="2")
    at_once.drain()
    assert by_key(at_once.rows) == expected(1000)
    assert max(at_once.batches) > 400, "a micro-batch holds more than the first generation"
    topics.call("POST", f"{change}/merge/2/4")
    topics.publish_by_ours("scaled", 1000, 1300)
    query.drain()
    assert by_key(query.rows) == expected(1300)
    assert {segment for _, _, segment, _ in query.rows} == {0, 1, 2, 3, 4, 5}
    assert by_key(topics.batch("scaled", ordering="key")) == expected(1300)


def test_a_cut_written_by_hand_names_places(topics: PulsarTopics) -> None:
    topics.create_classic("by-hand")
    topics.publish("by-hand", 0, 100, batch=10)
    rows = topics.batch("by-hand")
    middle = place_of(rows[34][3])
    assert middle.batch == 4, "the cut lies inside an entry"
    cut = f'{{"v": 1, "topics": {{"by-hand": {{"segs": {{"0": "{middle}"}}}}}}}}'
    before = topics.batch("by-hand", endingOffsets=cut)
    behind = topics.batch("by-hand", startingOffsets=cut)
    assert [row[1] for row in before] == [*range(34)]
    assert [row[1] for row in behind] == [*range(34, 100)]


def test_a_query_starts_and_ends_at_a_time(topics: PulsarTopics) -> None:
    topics.create_classic("timed", 2)
    topics.publish("timed", 0, 50, batch=10)
    time.sleep(0.05)
    between = str(time.time_ns() // 1_000_000)
    time.sleep(0.05)
    topics.publish("timed", 50, 100, batch=10)
    assert sorted(row[1] for row in topics.batch("timed", endingTimestamp=between)) == [*range(50)]
    assert sorted(row[1] for row in topics.batch("timed", startingTimestamp=between)) == [*range(50, 100)]


def test_a_pattern_finds_topics(topics: PulsarTopics) -> None:
    topics.create_classic("found-1")
    topics.create_classic("found-2", 2)
    topics.publish("found-1", 0, 13, batch=5)
    topics.publish("found-2", 13, 26, batch=5)
    rows = topics.batch_of_pattern("persistent://public/default/found-.*")
    assert sorted(row[1] for row in rows) == [*range(26)]


def test_messages_removed_before_they_were_read_fail_the_query(topics: PulsarTopics) -> None:
    name = "public/brief/trimmed"
    topics.call("PUT", "namespaces/public/brief")
    topics.create_classic(name)
    # Twenty entries, which fill a ledger.
    topics.publish(name, 0, 100, batch=5)
    query = PulsarQuery(topics, f"persistent://{name}", maxOffsetsPerTrigger="40")
    caught_up = PulsarQuery(topics, f"persistent://{name}")
    caught_up.drain()
    query.step()
    query.step()
    assert 0 < len(query.rows) < 100
    topics.publish(name, 100, 130, batch=10)
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    topics.call("POST", "namespaces/public/brief/retention", nothing)

    def first_after_trimming() -> int:
        topics.call("POST", f"{path(name)}/trim")
        return min(row[1] for row in topics.batch(f"persistent://{name}"))

    assert wait_for(first_after_trimming, lambda first: first > 0) == 100
    # The reader of a running query learns where the removed ledger ended, and that it was read to its end.
    caught_up.drain()
    assert sorted(row[1] for row in caught_up.rows) == [*range(130)]
    assert by_key(caught_up.rows) == expected(130)
    query.restart()
    with pytest.raises(DataLossError, match="the first message still stored is"):
        query.step()
    lenient = PulsarQuery(topics, f"persistent://{name}", failOnDataLoss="false")
    lenient.go_on_from(query)
    lenient.drain()
    assert [row[1] for row in lenient.rows] == [*range(100, 130)]


def test_a_topic_that_does_not_exist_is_an_error(topics: PulsarTopics) -> None:
    with pytest.raises(TopicNotFoundError):
        topics.batch("missing")


def test_a_sink_that_writes_exactly_once_is_refused(topics: PulsarTopics) -> None:
    with pytest.raises(UnsupportedFeatureError, match="delivery=at-least-once"):
        BrokerService(topics.server.url).sink("public/default", "copies")


def test_spark_copies_a_topic_and_resumes_from_its_checkpoint(
    topics: PulsarTopics, spark: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    scalable = SCALABLE in request.node.name
    if scalable:
        topics.call("PUT", "scalable/public/default/spark-in?numInitialSegments=2")
    else:
        topics.create_classic("spark-in", 2)
    topics.create_classic("spark-out", 3)
    for at in range(0, 600, 300):
        topics.publish_by_ours("spark-in", at, at + 300)
        stream = (
            connected(spark.readStream, topics)
            .option("subscribe", "spark-in")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "250")
            .load()
            .select("key", "value")
        )
        query = (
            connected(stream.writeStream, topics)
            .option("topic", "persistent://public/default/spark-out")
            .option("delivery", "at-least-once")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        if scalable and at == 0:
            topics.call("POST", "scalable/public/default/spark-in/split/0")
    rows = connected(spark.read, topics).load("persistent://public/default/spark-out").collect()
    assert by_key([(row.key.decode(), int(row.value), 0, 0) for row in rows]) == expected(600)


def test_an_archive_of_a_topic_is_complete_and_can_be_replayed(
    topics: PulsarTopics, spark: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    scalable = SCALABLE in request.node.name
    if scalable:
        topics.call("PUT", "scalable/public/default/archived?numInitialSegments=2")
    else:
        topics.create_classic("archived", 2)
    place, lake = pipelines.TopicPlace("archived", topics.server.url), str(tmp_path / "lake")
    options = pipelines.ArchiveOptions(buckets=2, rows_per_commit=120, join_from=3)
    for at, badly in ((0, "fail"), (300, "skip")):
        topics.publish_by_ours("archived", at, at + 300)
        given = dataclasses.replace(place, options={"badEntries": badly})
        done = pipelines.archive(spark, given, lake, options, pipelines.silent)
        assert (done.rows, done.total_rows) == (300, at + 300)
        if scalable and at == 0:
            topics.call("POST", "scalable/public/default/archived/split/0")
    # Positions are places in the log of Pulsar, so the distance between two of them is not a number of rows.
    commits = [json.loads(record.read_text()) for record in Path(lake).glob("_anabranch/commits/*.json")]
    assert sum(commit.get("rows", 0) for commit in commits) == 600
    assert len([commit for commit in commits if commit.get("rows")]) >= 4
    topics.publish_by_ours("archived", 600, 700)
    assert numbers_of(pipelines.read_archive(spark, lake)) == expected(600)
    assert numbers_of(pipelines.replay(spark, lake, place)) == expected(700)
    report = pipelines.verify(spark, place, pipelines.Expectations(), pipelines.silent)
    assert (report.findings, report.counts.messages, report.counts.keys) == ((), 700, 13)
    assert "that all stored messages are there: Apache Pulsar does not count them" in report.unproved


def numbers_of(frame: Any) -> dict[str, list[int]]:
    rows = frame.orderBy("segment", "position").collect()
    return by_key([(row.key.decode(), int(row.value), 0, 0) for row in rows])


def connected(builder: Any, topics: PulsarTopics) -> Any:
    return builder.format("anabranch").option("service.url", topics.server.url)
