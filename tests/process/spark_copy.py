"""A driver that copies one topic to another, exactly once, until it is killed or has read all; tests run it.

Arguments: the URL of the broker, a directory, and JSON with the options of the source, the master, whether
rows are shuffled, and whether the driver ends when all is read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from anabranch.spark import pipelines, read_stream


def main(url: str, root: Path, chosen: dict[str, Any]) -> None:
    conf = {"spark.driver.memory": "1g", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = pipelines.make_session("copy", master=chosen["master"], conf=conf)
    options = {"startingOffsets": "earliest", "subscription": "spark", **chosen["source"]}
    rows = read_stream(spark, url, "orders", options=options).select("key", "value")
    if chosen["shuffled"]:
        rows = rows.repartition(2, "key")
    writer = rows.writeStream.format("anabranch").option("service.url", url).option("topic", "copy")
    writer = writer.option("checkpointLocation", str(root / "checkpoint"))
    if chosen["ends"]:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
