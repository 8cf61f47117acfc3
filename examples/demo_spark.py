"""The Spark job of the demo, a process of its own: reads the topic and writes each micro-batch as a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

TOPIC = "topic://public/default/orders"
READY = "ready"
"""The file that the job creates when it reads."""


def spark_job(url: str, output: Path, checkpoint: Path) -> None:
    """Read the topic as a stream until the process is killed."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )

    def write_batch(batch: DataFrame, number: int) -> None:
        rows = (
            batch.select("key", "value", "segment", "position")
            .toPandas()
            .sort_values(["segment", "position"])
        )
        pairs = [
            (bytes(key).decode(), int(value)) for key, value in zip(rows["key"], rows["value"], strict=True)
        ]
        part = output / f"batch-{number:06d}.part"
        part.write_text(json.dumps(pairs))
        part.rename(part.with_suffix(".json"))

    stream = (
        spark.readStream.format("anabranch")
        .option("service.url", url)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = stream.writeStream.foreachBatch(write_batch).option("checkpointLocation", str(checkpoint)).start()
    query.processAllAvailable()
    (output / READY).touch()
    query.awaitTermination()


if __name__ == "__main__":
    spark_job(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
