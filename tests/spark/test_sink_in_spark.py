"""Exactly-once writes of Spark to a real broker: failed tasks, killed commits, repeated batches and jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as sql

from anabranch.admin.client import AdminClient
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.harness.spark_queries import KEYS, check_numbers, publish_numbers, run_to_end

# A machine that is busy takes long to start Spark, and a query that is interrupted spoils all that follow.
pytestmark = pytest.mark.timeout(600)

ORDERS = TopicName.parse("topic://public/default/orders")
COPY = TopicName.parse("topic://public/default/copy")


def failing_once(marker: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Rows pass; while the marker exists, one task fails after half of them."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if batch.num_rows > 1 and os.path.exists(marker):
                os.unlink(marker)
                raise RuntimeError("a task that fails after half of its rows")
            yield batch.slice(batch.num_rows // 2)

    return pass_on


def copy_stream(spark: Any, broker: BrokerProcess, scratch: Path) -> Any:
    rows = (
        spark.readStream.format("anabranch")
        .options(**{"service.url": broker.url, "subscribe": "orders"})
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="300")
        .load()
        .select("key", "value")
    )
    return (
        rows.mapInArrow(failing_once(str(scratch / "fail")), "key binary, value binary")
        .repartition(2, "key")
        .writeStream.format("anabranch")
        .options(**{"service.url": broker.url, "topic": "copy", "flushBytes": "2k"})
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
    )


def gone(fault: Path) -> Callable[[], bool]:
    """Return a condition that holds once the fault has happened, which removes its file."""
    return lambda: not fault.exists()


def test_a_stream_writes_once_though_tasks_fail_and_commits_are_killed(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    failpoints = Path(os.environ["ANABRANCH_FAILPOINTS"].removeprefix("@"))
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 2)
        api.create_topic(COPY, 2)
        publish_numbers(broker, "orders", range(1500))
        (tmp_path / "fail").touch()
        changes: dict[str, Callable[[AdminClient], object]] = {
            "pinned": lambda api: api.split(COPY, 0),
            "publishing": lambda api: api.merge(COPY, [1, 3]),
            "done": lambda api: api.split(COPY, 4),
        }
        for step in ("", "staged", "pinned", "publishing", "published", "done"):
            if step:
                failpoints.write_text(f"sink.{step}=kill")
            fault = failpoints if step else tmp_path / "fail"
            assert run_to_end(copy_stream(spark, broker, tmp_path), gone(fault)) is None
            if step in changes:
                changes[step](api)
        run_to_end(copy_stream(spark, broker, tmp_path))
    check_numbers(broker, "copy", range(1500))


def test_a_batch_job_that_is_run_again_writes_nothing_more(spark: Any, broker: BrokerProcess) -> None:
    options = {"service.url": broker.url, "topic": "copy", "delivery": "exactly-once", "sinkId": "job"}
    rows = (
        spark.range(0, 2000)
        .select(
            sql.concat(sql.lit("key-"), (sql.col("id") % KEYS).cast("string")).alias("key"),
            sql.col("id").cast("string").alias("value"),
        )
        .repartition(2, "key")
        .sortWithinPartitions(sql.col("value").cast("bigint"))
    )
    for _ in range(2):
        rows.write.format("anabranch").options(**options, txnId="monday").mode("append").save()
    check_numbers(broker, "copy", range(2000))
