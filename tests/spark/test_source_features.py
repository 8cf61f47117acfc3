"""Patterns, times, lag, subscriptions and hand-overs, through Spark and a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch import Checkpoint, Client
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.model.names import TopicName
from anabranch.spark import LagListener, checkpoint_to_cut, cut_to_checkpoint, lag_of
from simulation.harness.process import BrokerProcess
from tests.harness.spark_queries import run_to_end

# A machine that is busy takes long to start Spark, and a query that is interrupted spoils all that follow.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("features") / "data"
    with BrokerProcess(data, {"auto_scale.enabled": "false"}) as process:
        yield process


def full(topic: str) -> TopicName:
    return TopicName.parse(f"topic://public/default/{topic}")


def create(broker: BrokerProcess, topic: str) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(full(topic), 1)


def split(broker: BrokerProcess, topic: str, segment: int) -> None:
    with AdminClient(broker.http_url) as api:
        api.split(full(topic), segment)


def publish(broker: BrokerProcess, topic: str, lo: int, hi: int) -> None:
    with Client(broker.url) as client:
        producer = client.create_producer(topic)
        producer.send_many([b"%d" % n for n in range(lo, hi)], [f"key-{n % 17}" for n in range(lo, hi)])


def options(broker: BrokerProcess, **given: str) -> dict[str, str]:
    return {"service.url": broker.url, "startingOffsets": "earliest", **given}


def batch(spark: Any, broker: BrokerProcess, **given: str) -> list[int]:
    rows = spark.read.format("anabranch").options(**options(broker, **given)).load().collect()
    return sorted(int(bytes(row.value)) for row in rows)


class StreamRun:
    """Runs of one query, which collects its numbers in a table in memory."""

    def __init__(self, spark: Any, broker: BrokerProcess, checkpoint: Path, **given: str) -> None:
        self._spark, self._checkpoint = spark, checkpoint
        self._given = options(broker, **given)
        self.rows: list[int] = []

    def available(self) -> Any:
        """Read all that is there, and return the last progress with rows, if any."""
        name = f"q{time.monotonic_ns()}"
        writing = (
            self._spark.readStream.format("anabranch")
            .options(**self._given)
            .load()
            .selectExpr("CAST(CAST(value AS STRING) AS INT) AS number", "topic")
            .writeStream.foreachBatch(self._take)
            .queryName(name)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
        )
        query = run_to_end(writing)
        return query.recentProgress[-1] if query.recentProgress else None

    def _take(self, frame: Any, _: int) -> None:
        self.rows += [row.number for row in frame.collect()]


def test_a_pattern_finds_topics_that_appear_and_a_list_of_paths_names_some(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    for name in ("shop-a", "shop-b", "other"):
        publish(broker, name, 0, 10)
    run = StreamRun(spark, broker, tmp_path / "c", subscribePattern="shop-.*")
    run.available()
    publish(broker, "shop-c", 10, 15)
    run.available()
    assert sorted(run.rows) == sorted([*range(10), *range(10), *range(10, 15)])
    reader = spark.read.format("anabranch").options(**options(broker))
    assert reader.load(["shop-a", "shop-c"]).count() == 15


def test_times_cut_a_split_topic(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    create(broker, "timed")
    borders = []
    for step in range(3):
        borders.append(str(time.time_ns() // 1_000_000))
        publish(broker, "timed", 100 * step, 100 * step + 100)
        if step == 0:
            split(broker, "timed", 0)
        time.sleep(0.01)
    found = []
    for lo, hi in zip(borders, [*borders[1:], "2999-01-01"], strict=True):
        found.append(batch(spark, broker, subscribe="timed", startingTimestamp=lo, endingTimestamp=hi))
    assert found == [list(range(100 * step, 100 * step + 100)) for step in range(3)]
    publish(broker, "timeless", 900, 910)
    ends = json.dumps({"timed": int(borders[1]), "timeless": "2999-01-01"})
    by_topic = batch(spark, broker, subscribe="timed,timeless", endingOffsetsByTimestamp=ends)
    assert by_topic == [*range(100), *range(900, 910)]
    run = StreamRun(
        spark,
        broker,
        tmp_path / "c",
        subscribe="timed",
        startingOffsetsByTimestamp=f'{{"timed": {borders[2]}}}',
    )
    run.available()
    assert sorted(run.rows) == list(range(200, 300))


def test_the_lag_of_a_query_counts_messages_of_later_generations(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    listener = LagListener()
    spark.streams.addListener(listener)
    create(broker, "lagging")
    publish(broker, "lagging", 0, 60)
    split(broker, "lagging", 0)
    publish(broker, "lagging", 60, 100)
    run = StreamRun(spark, broker, tmp_path / "c", subscribe="lagging", maxOffsetsPerTrigger="50")
    try:
        progress = run.available()
        found = lag_of(progress)
        assert found is not None
        assert found.messages == 0
        deadline = time.monotonic() + 60
        while not any(lag.messages == 0 for lag in listener.lags.values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        (history,) = listener.history.values()
        assert [lag.messages for _, lag in history] == [50, 0]
    finally:
        spark.streams.removeListener(listener)


def test_a_subscription_follows_the_query_and_starts_the_next_one(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    create(broker, "mirrored")
    publish(broker, "mirrored", 0, 60)
    split(broker, "mirrored", 0)
    publish(broker, "mirrored", 60, 100)
    run = StreamRun(spark, broker, tmp_path / "c", subscribe="mirrored", subscription="lake")
    run.available()
    publish(broker, "mirrored", 100, 120)
    # Spark commits the last batch of a run when the next run begins.
    run.available()
    assert sorted(run.rows) == list(range(120))
    with AdminClient(broker.http_url) as api:
        assert "lake" in plain(api.topic_stats(full("mirrored")))["subscriptions"]
    command = [sys.executable, "-m", "anabranch.cli.main", "topic", "show", "mirrored"]
    shown = subprocess.run([*command, "--admin-url", broker.http_url], capture_output=True, text=True)
    assert "subscription lake, stream, 1 consumer, backlog 20\n" in shown.stdout
    given = {"subscribe": "mirrored", "subscription": "lake", "startingOffsets": "subscription"}
    assert batch(spark, broker, **given) == list(range(100, 120))


def test_a_query_and_a_checkpoint_consumer_hand_over_to_each_other(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    create(broker, "handed")
    publish(broker, "handed", 0, 60)
    split(broker, "handed", 0)
    publish(broker, "handed", 60, 100)
    given = {"subscribe": "handed", "maxOffsetsPerTrigger": "33"}
    run = StreamRun(spark, broker, tmp_path / "a", **given)
    progress = run.available()
    publish(broker, "handed", 100, 150)
    start = cut_to_checkpoint(broker.url, progress.sources[0].endOffset)
    with Client(broker.url) as client:
        consumer = client.create_checkpoint_consumer("handed", start=Checkpoint.from_bytes(start.to_bytes()))
        received: list[int] = []
        while len(received) < 31:
            some = consumer.receive_many(31 - len(received), timeout=30)
            received += [int(message.data) for message in some]
        reached = consumer.checkpoint()
    offsets = checkpoint_to_cut(broker.url, "handed", reached)
    last = StreamRun(spark, broker, tmp_path / "b", subscribe="handed", startingOffsets=json.dumps(offsets))
    last.available()
    assert sorted([*run.rows, *received, *last.rows]) == list(range(150))
