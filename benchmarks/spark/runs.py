"""The jobs of the Spark benchmark, equal for all connectors: a session, rows, jobs and their times."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VALUE_BYTES = 100
KEYS = 100_000
SCHEMA = "key binary, value binary"

TRIGGERS = 30
"""Triggers of a query whose median time is measured, besides the first ones."""
FIRST_TRIGGERS = 5
QUERY_S = 120.0


@dataclass(frozen=True)
class Connector:
    """A format of Spark, and the options that lead it to its broker."""

    name: str
    format: str
    source: Mapping[str, str]
    sink: Mapping[str, str] = field(default_factory=dict)
    asks_for_columns: bool = True
    """Whether a query chooses the columns of the source; otherwise the schema of the source is fixed."""


@dataclass(frozen=True)
class RunTimes:
    """Wall time and processor time of one run, over all processes that it used."""

    wall_s: float
    cpu_s: float


def session(
    memory: str, jars: Sequence[Path] = (), master: str = "local[2]", more: Mapping[str, str] | None = None
) -> Any:
    """Start a session, in this process with two cores unless a master is given."""
    from pyspark.sql import SparkSession

    from anabranch.spark.compiled_pyspark import use_compiled_pyspark
    from benchmarks.spark.toy_source import ToySource

    use_compiled_pyspark()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # An installed package has bytecode. Without this, each Python process would compile the source tree.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path("build/bytecode").absolute())
    builder = (
        SparkSession.builder.master(master)
        .config("spark.driver.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    for name, value in (more or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(ToySource)
    return spark


def write_random_rows(path: Path, count: int, seed: int = 1) -> None:
    """Write two Parquet files of rows with random values and keys."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    for part in range(2):
        rows = count // 2
        offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * VALUE_BYTES)
        values = pa.Array.from_buffers(
            pa.binary(), rows, [None, offsets, pa.py_buffer(rng.bytes(rows * VALUE_BYTES))]
        )
        keys = [b"key-%d" % key for key in rng.integers(0, KEYS, rows).tolist()]
        table = pa.table({"key": pa.array(keys, pa.binary()), "value": values})
        pq.write_table(table, path / f"{part}.parquet", compression="none", use_dictionary=False)


class SparkRuns:
    """Jobs in one session; each returns the time it took and checks that it moved all rows."""

    def __init__(self, spark: Any, scratch: Path, count: int) -> None:
        self._spark = spark
        self._checkpoints = self._directories(scratch)
        self.count = count

    def _directories(self, scratch: Path) -> Iterator[Path]:
        number = 0
        while True:
            number += 1
            yield scratch / f"checkpoint-{number}"

    def read(self, connector: Connector) -> RunTimes:
        """Read a topic into the sink that drops rows."""
        rows = self._source(self._spark.read, connector)
        return _timed(lambda: rows.write.format("noop").mode("overwrite").save())

    def write(self, rows: Any, connector: Connector, topic: str) -> RunTimes:
        out = rows.write.format(connector.format).options(**connector.sink)
        return _timed(lambda: out.option("topic", topic).mode("append").save())

    def stream(self, connector: Connector, rows_per_trigger: int | None = None) -> RunTimes:
        """Read a topic in a query that ends when it has read all rows."""
        found = 0

        def run() -> None:
            nonlocal found
            query = self._start(connector, rows_per_trigger, available_now=True)
            query.awaitTermination()
            found = sum(progress["numInputRows"] for progress in query.recentProgress)

        times = _timed(run)
        if found != self.count:
            raise RuntimeError(f"the query of {connector.name} read {found} of {self.count} rows")
        return times

    def trigger_ms(self, connector: Connector, rows: int, triggers: int = TRIGGERS) -> float:
        """Return the median time of a trigger with this many rows."""
        query = self._start(connector, rows, available_now=False)
        times: dict[int, int] = {}
        until_s = time.monotonic() + QUERY_S
        try:
            while len(times) < triggers and time.monotonic() < until_s:
                time.sleep(0.2)
                for progress in query.recentProgress:
                    if progress["batchId"] >= FIRST_TRIGGERS and progress["numInputRows"] >= 0.9 * rows:
                        times[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        finally:
            query.stop()
        if not times:
            raise RuntimeError(f"the query of {connector.name} ran no trigger: {query.exception()}")
        return statistics.median(times.values())

    def _start(self, connector: Connector, rows_per_trigger: int | None, *, available_now: bool) -> Any:
        reader = self._spark.readStream
        if rows_per_trigger is not None:
            reader = reader.option("maxOffsetsPerTrigger", str(rows_per_trigger))
        rows = self._source(reader.option("startingOffsets", "earliest"), connector)
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(next(self._checkpoints)))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def _source(self, reader: Any, connector: Connector) -> Any:
        reader = reader.format(connector.format).options(**connector.source)
        if connector.asks_for_columns:
            return reader.schema(SCHEMA).load()
        return reader.load().select("key", "value")


def _timed(action: Callable[[], None]) -> RunTimes:
    began, cpu_before = time.perf_counter(), family_cpu_s()
    action()
    return RunTimes(time.perf_counter() - began, family_cpu_s() - cpu_before)


def family_cpu_s() -> float:
    """Return the processor time of this process and all its descendants, also those that ended."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:15]))
    total = 0
    for pid, ticks in used.items():
        above = pid
        while above > 1 and above != os.getpid():
            above = parents.get(above, 0)
        total += ticks if above == os.getpid() else 0
    return total / os.sysconf("SC_CLK_TCK")
