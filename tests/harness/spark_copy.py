"""A driver that copies one topic to another, exactly once, until it is killed or has read all; tests run it.

Arguments: the URL of the broker, a directory, and JSON with the options of the source, the master, settings
of Spark, whether rows are shuffled, whether one task of each batch is slow, so that Spark starts a copy of
it, whether the driver ends when all is read, and options of a batch that then counts the copied messages.
The topics are `orders` and `copy`, unless `from` and `to` name others.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from anabranch.spark import pipelines, read_stream

SLOW_S = 5.0
COPIED = ("key", "value", "headers")


def slow_at_first(root: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Rows pass; the first attempt of task 0 is slow, and a copy that runs meanwhile leaves a file."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0:
            marker = root / f"slow-{context.stageId()}"
            if context.attemptNumber() == 0:
                marker.write_text(str(os.getpid()))
                time.sleep(SLOW_S)
                marker.unlink()
            # An attempt whose process is gone was killed with its executor.
            elif marker.exists() and Path("/proc", marker.read_text()).exists():
                (root / "speculated").touch()
        yield from batches

    return pass_on


def main(url: str, root: Path, chosen: dict[str, Any]) -> None:
    conf = {"spark.driver.memory": "1g", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    conf |= chosen["conf"]
    spark = pipelines.make_session("copy", master=chosen["master"], conf=conf)
    options = {"startingOffsets": "earliest", "subscription": "spark", **chosen["source"]}
    rows = read_stream(spark, url, chosen.get("from", "orders"), options=options)
    rows = rows.select([name for name in rows.columns if name in COPIED])
    if chosen["shuffled"] or chosen["slow"]:
        rows = rows.repartition(2, "key")
    if chosen["slow"]:
        rows = rows.mapInArrow(slow_at_first(root), rows.schema)
    writer = rows.writeStream.format("anabranch").option("service.url", url)
    writer = writer.option("topic", chosen.get("to", "copy"))
    writer = writer.option("checkpointLocation", str(root / "checkpoint"))
    if chosen["ends"]:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    if "recount" in chosen:
        copied = spark.read.format("anabranch").option("service.url", url).option("subscribe", "copy")
        values = copied.options(**chosen["recount"]).load().select("value")
        (root / "recount").write_text(json.dumps([values.count(), values.distinct().count()]))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
