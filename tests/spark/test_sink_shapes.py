"""Streams that write in other ways than `writeStream.start()` to one topic, each message exactly once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.harness.spark_queries import check_numbers, publish_numbers, run_to_end

# A machine that is busy takes long to start Spark, and a query that is interrupted spoils all that follow.
pytestmark = pytest.mark.timeout(600)

COUNT = 300
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Segments that no subscription needs are removed as soon as they are sealed.
    settings = {"auto_scale.enabled": "false", "segment_retention_s": 0, "load_report_interval_s": 0.2}
    with BrokerProcess(tmp_path_factory.mktemp("shapes") / "data", settings) as process:
        yield process


def full(topic: str) -> TopicName:
    return TopicName.parse(f"topic://public/default/{topic}")


def numbers(spark: Any, broker: BrokerProcess, topic: str, **more: object) -> Any:
    """Return a stream of the numbers in a topic, in small batches."""
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 200, **more}
    reader = spark.readStream.format("anabranch").option("service.url", broker.url)
    return reader.options(**options).load().select("key", "value")


def written(stream: Any, broker: BrokerProcess, checkpoint: Path) -> Any:
    writer = stream.writeStream.format("anabranch").option("service.url", broker.url)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def failing_once(marker: Path, action: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """While the marker exists, a batch with rows fails once it is written."""

    def act(frame: Any, batch: int) -> None:
        action(frame, batch)
        if marker.exists() and not frame.isEmpty():
            marker.unlink()
            raise RuntimeError("the driver fails behind its writes")

    return act


def test_each_write_of_foreach_batch_counts_once_though_the_batch_is_repeated(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish_numbers(broker, "orders", range(COUNT))

    def write(frame: Any, batch: int) -> None:
        for name in ("left", "right"):
            writer = frame.write.format("anabranch").option("service.url", broker.url).mode("append")
            writer.options(delivery="exactly-once", sinkId=f"each-{name}").option("topic", name).save()

    marker = tmp_path / "fail"
    marker.touch()
    stream = (
        numbers(spark, broker, "orders")
        .writeStream.foreachBatch(failing_once(marker, write))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    assert run_to_end(stream, lambda: not marker.exists()) is None
    assert run_to_end(stream) is not None
    check_numbers(broker, "left", range(COUNT))
    check_numbers(broker, "right", range(COUNT))


def test_one_stream_writes_to_several_topics_though_its_commit_is_killed(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish_numbers(broker, "mixed", range(COUNT))
    stream = numbers(spark, broker, "mixed").selectExpr(
        "key", "value", "concat('part-', CAST(CAST(value AS STRING) AS INT) % 3) AS topic"
    )
    failpoints = Path(os.environ["ANABRANCH_FAILPOINTS"].removeprefix("@"))
    failpoints.write_text("sink.publishing=kill")
    writing = written(stream, broker, tmp_path / "checkpoint")
    assert run_to_end(writing, lambda: not failpoints.exists()) is None
    assert run_to_end(writing) is not None
    for part in range(3):
        check_numbers(broker, f"part-{part}", range(part, COUNT, 3))


def test_a_stream_to_a_table_writes_once_though_its_commit_is_killed(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish_numbers(broker, "listed", range(COUNT))
    with AdminClient(broker.http_url) as api:
        api.create_topic(full("table"), 2)
    spark.sql(
        f"CREATE TABLE target USING anabranch OPTIONS (`service.url` '{broker.url}', subscribe 'table')"
    )
    failpoints = Path(os.environ["ANABRANCH_FAILPOINTS"].removeprefix("@"))
    failpoints.write_text("sink.pinned=kill")

    class ToTable:
        """A stream whose start is `toTable`."""

        def start(self) -> Any:
            stream = numbers(spark, broker, "listed").writeStream.option("service.url", broker.url)
            stream = stream.options(topic="table", checkpointLocation=str(tmp_path / "checkpoint"))
            return stream.trigger(availableNow=True).toTable("target")

    try:
        assert run_to_end(ToTable(), lambda: not failpoints.exists()) is None
        assert run_to_end(ToTable()) is not None
        assert spark.table("target").count() == COUNT
    finally:
        spark.sql("DROP TABLE target")
    check_numbers(broker, "table", range(COUNT))


def test_retention_waits_for_the_subscription_of_a_query(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    stream = written(
        numbers(spark, broker, "waiting", subscription="lake"), broker, tmp_path / "checkpoint"
    ).option("topic", "lake")
    with AdminClient(broker.http_url) as api:

        def has_first_segment(topic: str) -> bool:
            return 0 in api.topic_metadata(full(topic)).segments

        def wait_until_removed(topic: str) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while has_first_segment(topic):
                assert time.monotonic() < deadline, f"retention keeps segment 0 of {topic}"
                time.sleep(0.05)

        for topic in ("waiting", "forgotten"):
            publish_numbers(broker, topic, range(100))
        run_to_end(stream)
        for topic in ("waiting", "forgotten"):
            publish_numbers(broker, topic, range(100, 300))
            api.split(full(topic), 0)
        wait_until_removed("forgotten")
        assert has_first_segment("waiting"), "the query has not read it"
        run_to_end(stream)
        publish_numbers(broker, "waiting", range(300, 400))
        # Spark commits the last batch of a run when the next run begins.
        run_to_end(stream)
        wait_until_removed("waiting")
    check_numbers(broker, "lake", range(400))
