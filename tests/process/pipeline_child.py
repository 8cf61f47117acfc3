"""A driver that runs all pipelines between topics and files; a test kills it.

Arguments: the URL of the broker and a directory. Two pipelines run at a time; the replay needs the archive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from anabranch.spark import pipelines

ROWS = 250
"""Rows of one commit."""


def main(url: str, root: Path) -> None:
    def place(topic: str) -> Any:
        return pipelines.TopicPlace(topic, url)

    def state(name: str) -> str:
        return str(root / "state" / name)

    spark = pipelines.make_session(
        "kills",
        master="local[2]",
        conf={"spark.driver.memory": "1g", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
    )
    lake, table = str(root / "lake"), str(root / "table")
    work: dict[str, Callable[[], object]] = {
        "archive": lambda: pipelines.archive(
            spark, place("orders"), lake, pipelines.ArchiveOptions(2, ROWS, join_from=3)
        ),
        "load": lambda: pipelines.load(
            spark,
            str(root / "events.csv"),
            place("loaded"),
            pipelines.LoadOptions(
                key="key", value="value", order_by=["value:int"], rows_per_commit=ROWS, state=state("load")
            ),
        ),
        "replay": lambda: pipelines.replay_to_topic(
            spark, lake, place("orders"), place("again"), pipelines.ReplayOptions(ROWS, state=state("replay"))
        ),
        "table": lambda: pipelines.compact_to_table(
            spark, place("orders"), table, pipelines.CompactOptions(2, ROWS)
        ),
        "topic": lambda: pipelines.compact_to_topic(
            spark, place("orders"), place("latest"), pipelines.CompactOptions(2, ROWS, state=state("topic"))
        ),
    }
    for names in (("archive", "load"), ("table", "topic"), ("replay",)):
        with ThreadPoolExecutor(len(names)) as pool:
            running = {name: pool.submit(work[name]) for name in names}
            for name, result in running.items():
                print("result", name, result.result(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
