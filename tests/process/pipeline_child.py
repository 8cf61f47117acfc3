"""A driver that runs all pipelines of one broker; a test kills it.

Arguments: the URL of the broker and a directory. Several pipelines run at a time. The replay needs the
archive; pipelines without a state wait until it has begun, so that a kill meets all of them in the middle.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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

    def load(source: str, topic: str, state: str, **more: Any) -> object:
        options = pipelines.LoadOptions(key="key", value="value", rows_per_commit=ROWS, state=state, **more)
        return pipelines.load(spark, str(root / source), place(topic), options)

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
        "load": lambda: load("events.csv", "loaded", state("load"), order_by=["value:int"]),
        "iceberg": lambda: load("iceberg/events", "from-iceberg", state("iceberg"), format="iceberg"),
        "table": lambda: pipelines.compact_to_table(
            spark, place("orders"), table, pipelines.CompactOptions(2, ROWS)
        ),
        "topic": lambda: pipelines.compact_to_topic(
            spark, place("orders"), place("latest"), pipelines.CompactOptions(2, ROWS, state=state("topic"))
        ),
    }
    run_together(work)
    proofs = Proofs(spark, place("orders"), root)
    run_together(
        {
            "replay": lambda: pipelines.replay_to_topic(
                spark,
                lake,
                place("orders"),
                place("again"),
                pipelines.ReplayOptions(ROWS, state=state("replay")),
            ),
            "verify": proofs.verify,
            "skew": proofs.skew,
        }
    )
    spark.stop()


class Proofs:
    """The pipelines without a state: a file is there while one of them runs, another one after its end."""

    def __init__(self, spark: Any, topic: Any, root: Path) -> None:
        self._spark, self._topic, self._root = spark, topic, root

    def verify(self) -> None:
        with self._shown("verify") as show:
            report = pipelines.verify(self._spark, self._topic, pipelines.Expectations(complete=True), show)
        counts = report.counts
        found = {"findings": len(report.findings), "messages": counts.messages, "keys": counts.keys}
        (self._root / "verify.json").write_text(json.dumps(found))

    def skew(self) -> None:
        with self._shown("skew") as show:
            report = pipelines.skew(self._spark, self._topic, show=show)
        found = {"total": report.total, "heaviest": report.heavy_keys[0].weight}
        (self._root / "skew.json").write_text(json.dumps(found))

    @contextmanager
    def _shown(self, name: str) -> Iterator[Callable[[object], None]]:
        """Wait until the replay has begun; the display marks that Spark runs tasks."""
        while len(list((self._root / "state/replay/commits").glob("[0-9]*"))) < 2:
            time.sleep(0.05)
        marker = self._root / f"{name}.running"
        yield lambda progress: marker.touch()
        marker.unlink(missing_ok=True)


def run_together(work: Mapping[str, Callable[[], object]]) -> None:
    with ThreadPoolExecutor(len(work)) as pool:
        running = {name: pool.submit(action) for name, action in work.items()}
        for name, result in running.items():
            print("result", name, result.result(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
