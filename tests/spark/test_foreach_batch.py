"""Exactly-once writes in `foreachBatch`: a repeated batch is skipped, and a second write is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from anabranch.spark import register
from simulation.harness.process import BrokerProcess

pytestmark = pytest.mark.timeout(600)


class BatchStoppedError(Exception):
    """A function of foreachBatch failed behind its write."""


def write(frame: Any, broker: BrokerProcess, topic: str, sink_id: str) -> None:
    given = {"service.url": broker.url, "topic": topic, "delivery": "exactly-once", "sinkId": sink_id}
    frame.write.format("anabranch").options(**given).mode("append").save()


def run(spark: Any, root: Path, function: Callable[[Any, int], None]) -> None:
    stream = spark.readStream.text(str(root / "in")).selectExpr("value")
    writer = stream.writeStream.foreachBatch(function).option("checkpointLocation", str(root / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


def rows(spark: Any, broker: BrokerProcess, topic: str) -> list[str]:
    found = spark.read.format("anabranch").option("service.url", broker.url).load(topic)
    return sorted(bytes(row.value).decode() for row in found.collect())


def test_a_second_write_with_one_sink_is_refused_and_a_repeated_batch_is_not(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    register(spark)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.txt").write_text("a\nb\nc\n")

    def both(frame: Any, batch: int) -> None:
        write(frame, broker, "left", "same")
        write(frame, broker, "right", "same")

    with pytest.raises(StreamingQueryException, match="give each write in foreachBatch its own sinkId"):
        run(spark, tmp_path, both)

    def stopped(frame: Any, batch: int) -> None:
        write(frame, broker, "left", "same")
        raise BatchStoppedError

    # Another run of the query repeats the batch; its rows do not count as a second write there.
    with pytest.raises(StreamingQueryException, match="BatchStoppedError"):
        run(spark, tmp_path, stopped)

    def apart(frame: Any, batch: int) -> None:
        write(frame, broker, "left", "same")
        write(frame, broker, "right", "other")

    run(spark, tmp_path, apart)
    (tmp_path / "in" / "two.txt").write_text("d\n")
    run(spark, tmp_path, apart)
    assert rows(spark, broker, "left") == rows(spark, broker, "right") == ["a", "b", "c", "d"]
