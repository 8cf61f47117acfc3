"""A driver with stateful queries over topics, until it is killed or has read all; tests run it.

Arguments: the URL of the broker, a directory, and JSON with the names of the topics, the options of the
source, and whether the driver ends when all is read. Each topic has two queries: `windows` counts events by
key and window behind a watermark, and `digests` makes a number of each key out of all its values in order.
Values are event times in milliseconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StatefulProcessor

from anabranch.spark import pipelines, read_stream

WINDOW = "30 minutes"
DELAY = "20 minutes"
MODULUS = 2**31 - 1
CONF = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # The sort in front of a stateful operator spills, which ends the order of a key.
    "spark.shuffle.spill.numElementsForceSpillThreshold": "10",
}


class Digest(StatefulProcessor):  # type: ignore[misc]
    """Folds the values of a key in their order, which only segment and position tell after a shuffle."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("digest", "count bigint, digest bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        count, digest = self._state.get() if self._state.exists() else (0, 0)
        for row in sorted(rows, key=lambda row: (row.segment, row.position)):
            count, digest = count + 1, (digest * 31 + row.event_ms) % MODULUS
        self._state.update((count, digest))
        yield Row(name=key[0], count=count, digest=digest)

    def close(self) -> None:
        """Nothing is open."""


def windows(rows: Any) -> Any:
    spans = sql.window("event", WINDOW)
    found = rows.withWatermark("event", DELAY).groupBy(spans, "name").count()
    return found.select(sql.unix_millis("window.start").alias("start"), "name", "count")


def digests(rows: Any) -> Any:
    return rows.groupBy("name").transformWithState(
        statefulProcessor=Digest(),
        outputStructType="name string, count bigint, digest bigint",
        outputMode="Update",
        timeMode="None",
    )


def write_to(directory: Path) -> Callable[[Any, int], None]:
    """A batch that is repeated replaces what it has written."""

    def write(frame: Any, batch: int) -> None:
        found = [row.asDict() for row in frame.collect()]
        (directory / f"{batch}.json").write_text(json.dumps(found))

    return write


def start(rows: Any, make: Callable[[Any], Any], mode: str, root: Path, *, ends: bool) -> Any:
    (root / "rows").mkdir(parents=True, exist_ok=True)
    writer = make(rows).writeStream.outputMode(mode).foreachBatch(write_to(root / "rows"))
    writer = writer.option("checkpointLocation", str(root / "checkpoint"))
    return (writer.trigger(availableNow=True) if ends else writer).start()


def main(url: str, root: Path, chosen: dict[str, Any]) -> None:
    spark = pipelines.make_session("state", master="local[2,4]", conf=CONF)
    options = {"startingOffsets": "earliest", **chosen["source"]}
    running = []
    for topic in chosen["topics"]:
        rows = (
            read_stream(spark, url, topic, options=options)
            .withColumn("event_ms", sql.col("value").cast("string").cast("bigint"))
            .withColumn("event", sql.timestamp_millis("event_ms"))
            .withColumn("name", sql.col("key").cast("string"))
        )
        for make, mode in ((windows, "append"), (digests, "update")):
            place = root / topic / make.__name__
            running.append(start(rows, make, mode, place, ends=chosen["ends"]))
    for query in running:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
