"""A query that was stopped while retention removed segments of its topic on a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from anabranch.admin.client import AdminClient
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.harness.spark_queries import check_numbers, publish_numbers, run_to_end

# A machine that is busy takes long to start Spark.
pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 60.0
ORDERS = TopicName.parse("topic://public/default/orders")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    # Segments that no subscription needs are removed as soon as they are sealed.
    settings = {"auto_scale.enabled": "false", "segment_retention_s": 0, "load_report_interval_s": 0.2}
    with BrokerProcess(tmp_path / "data", settings) as process:
        yield process


def copy_stream(spark: Any, broker: BrokerProcess, checkpoint: Path) -> Any:
    options = {"service.url": broker.url, "subscribe": "orders", "startingOffsets": "earliest"}
    rows = spark.readStream.format("anabranch").options(**options).load().select("key", "value")
    writer = rows.writeStream.format("anabranch").options(**{"service.url": broker.url, "topic": "copy"})
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def split_and_prune(api: AdminClient, *segments: int) -> None:
    for segment in segments:
        api.split(ORDERS, segment)
    deadline = time.monotonic() + PATIENCE_S
    while set(segments) & set(api.topic_metadata(ORDERS).segments):
        assert time.monotonic() < deadline, f"retention keeps one of the segments {segments}"
        time.sleep(0.05)


def test_segments_that_were_read_may_go_and_others_are_missed(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    stream = copy_stream(spark, broker, tmp_path / "checkpoint")
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 1)
        publish_numbers(broker, "orders", range(200))
        run_to_end(stream)
        # Two generations go; the query has read all of the first, and the second was empty.
        split_and_prune(api, 0)
        split_and_prune(api, 1, 2)
        publish_numbers(broker, "orders", range(200, 500))
        run_to_end(stream)
        check_numbers(broker, "copy", range(500))
        publish_numbers(broker, "orders", range(500, 600))
        split_and_prune(api, 3, 4, 5, 6)
        publish_numbers(broker, "orders", range(600, 700))
        with pytest.raises(StreamingQueryException, match="DataLossError"):
            run_to_end(stream)
    check_numbers(broker, "copy", range(500))
