"""Operators of Spark over the rows of the source, and options of Spark beside the sink."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sql

from anabranch.admin.client import AdminClient
from anabranch.model.hashing import key_hash
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.harness.spark_queries import KEYS, check_numbers, publish_numbers, run_to_end

# A machine that is busy takes long to start Spark, and a query that is interrupted spoils all that follow.
pytestmark = pytest.mark.timeout(600)

COUNT = 4000
ORDERS = TopicName.parse("topic://public/default/orders")
SIGNED = 2**31


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a topic of numbers, whose only active segment has parents."""
    data = tmp_path_factory.mktemp("operators") / "data"
    with BrokerProcess(data, {"auto_scale.enabled": "false"}) as process:
        with AdminClient(process.http_url) as api:
            api.create_topic(ORDERS, 2)
            publish_numbers(process, "orders", range(1000))
            api.merge(ORDERS, [0, 1])
        # Several requests, so that there are many entries.
        for lo in range(1000, COUNT, 500):
            publish_numbers(process, "orders", range(lo, lo + 500))
        yield process


def options(broker: BrokerProcess, **more: str) -> dict[str, str]:
    return {"service.url": broker.url, "subscribe": "orders", "startingOffsets": "earliest", **more}


def frame(spark: Any, broker: BrokerProcess, **more: str) -> Any:
    return spark.read.format("anabranch").options(**options(broker, **more)).load()


def tasks_of(rows: Any) -> dict[int, list[tuple[str, int]]]:
    """Keys and numbers of each task, in the order in which it has them."""
    found: dict[int, list[tuple[str, int]]] = {}
    numbered = rows.select("key", "value", sql.spark_partition_id().alias("task"))
    for row in numbered.collect():
        found.setdefault(row.task, []).append((bytes(row.key).decode(), int(bytes(row.value))))
    return found


def in_key_order(tasks: dict[int, list[tuple[str, int]]]) -> bool:
    """Whether each key is in one task, with its numbers in order."""
    homes: dict[str, int] = {}
    latest: dict[str, int] = {}
    for task, rows in tasks.items():
        for key, number in rows:
            if homes.setdefault(key, task) != task or number <= latest.get(key, -1):
                return False
            latest[key] = number
    return True


def numbers_of(tasks: dict[int, list[tuple[str, int]]]) -> Sequence[int]:
    return sorted(number for rows in tasks.values() for _, number in rows)


def test_some_operators_keep_the_order_of_a_key_and_round_robin_does_not(
    spark: Any, broker: BrokerProcess
) -> None:
    rows = frame(spark, broker, ordering="key").select("key", "value")
    kept = {
        "none": rows,
        "narrow": rows.filter("length(value) > 0").mapInArrow(lambda batches: batches, rows.schema),
        "coalesce": rows.coalesce(1),
        "by key": rows.repartition(3, "key"),
    }
    for name, plan in kept.items():
        found = tasks_of(plan)
        assert numbers_of(found) == list(range(COUNT)), name
        assert in_key_order(found), name
    # The guide warns of this one; the sink would write the rows as they come.
    assert not in_key_order(tasks_of(rows.repartition(3)))


@pytest.mark.parametrize("more", [{}, {"maxPartitions": "2"}, {"chainSegments": "false"}])
def test_more_tasks_than_segments_keep_the_order_of_a_key(
    spark: Any, broker: BrokerProcess, tmp_path: Path, more: dict[str, str]
) -> None:
    batches: list[dict[int, list[tuple[str, int]]]] = []
    stream = spark.readStream.format("anabranch").options(**options(broker, minPartitions="5", **more))
    writing = (
        stream.load()
        .writeStream.foreachBatch(lambda rows, _: batches.append(tasks_of(rows)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    run_to_end(writing)
    assert sorted(number for found in batches for number in numbers_of(found)) == list(range(COUNT))
    assert all(in_key_order(found) for found in batches)
    assert len(batches[-1]) == 5
    latest: dict[str, int] = {}
    for found in batches:
        for key, number in (row for rows in found.values() for row in rows):
            assert number > latest.get(key, -1)
            latest[key] = number


def test_hashes_of_keys_add_up_without_an_overflow(spark: Any, broker: BrokerProcess) -> None:
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    row = frame(spark, broker, includeHash="true").agg(sql.sum("keyHash").alias("sum")).collect()[0]
    hashes = [key_hash(f"key-{n % KEYS}") for n in range(COUNT)]
    assert row.sum == sum((value + SIGNED) % 2**32 - SIGNED for value in hashes)


def test_progress_stored_now_and_then_is_refused_by_an_exactly_once_sink(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    def writing(delivery: str) -> Any:
        rows = spark.readStream.format("anabranch").options(**options(broker)).load()
        writer = rows.select("key", "value").writeStream.format("anabranch")
        writer = writer.options(**{"service.url": broker.url, "topic": delivery, "delivery": delivery})
        writer = writer.options(asyncProgressTrackingEnabled="true")
        # Spark lets only sinks that it knows track progress so, unless it is told not to check.
        writer = writer.option("_asyncProgressTrackingOverrideSinkSupportCheck", "true")
        return writer.option("checkpointLocation", str(tmp_path / delivery))

    query = writing("exactly-once").start()
    with pytest.raises(StreamingQueryException, match="delivery=exactly-once cannot hold"):
        query.awaitTermination(300)
    query = writing("at-least-once").start()
    try:
        deadline = time.monotonic() + 120
        while not query.recentProgress or query.recentProgress[-1].numInputRows:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        query.stop()
    check_numbers(broker, "at-least-once", range(COUNT))


def test_the_error_of_a_task_is_that_of_the_query_after_an_abort(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        raise RuntimeError("a task that fails behind its rows")

    rows = frame(spark, broker).select("key", "value")
    failing = rows.mapInArrow(fail, rows.schema)
    for delivery in ("exactly-once", "at-least-once"):
        writer = failing.write.format("anabranch").options(**{"service.url": broker.url, "topic": "failed"})
        with pytest.raises(Exception, match="a task that fails behind its rows"):
            writer.option("delivery", delivery).mode("append").save()
        if delivery == "exactly-once":
            check_numbers(broker, "failed", [])
