"""Spark on a standalone cluster: one executor beside two, each with one core, on this machine.

Driver, executors and broker share the cores of the machine. With two cores the second executor can only use
what the others leave, so the figure is a lower bound of the gain on real machines.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.results import Row
from benchmarks.spark.pipeline import TOPIC, ours
from benchmarks.spark.runs import RunTimes, SparkRuns, session, write_random_rows
from simulation.harness.process import BrokerProcess
from simulation.harness.spark_cluster import SparkCluster

ROUNDS = 2


def run(scratch: Path, fast: bool) -> list[Row]:
    count = 200_000 if fast else 2_000_000
    write_random_rows(scratch / "rows", count)
    found: dict[tuple[str, int], float] = {}
    with (
        BrokerProcess(scratch / "data") as broker,
        SparkCluster(scratch / "spark", 2) as cluster,
    ):
        connector = ours(broker.url)
        # Two tasks in both cases, also if there are few rows: one task would keep one executor idle.
        connector = replace(connector, source={**connector.source, "minPartitions": "2"})
        for executors in (1, 2):
            limits = {"spark.cores.max": str(executors), "spark.executor.cores": "1"}
            spark = session("1g", master=cluster.url, more={**limits, "spark.executor.memory": "800m"})
            runs = SparkRuns(spark, scratch / f"with-{executors}", count)
            if executors == 1:
                runs.write(spark.read.parquet(str(scratch / "rows")), connector, TOPIC)
            for name, job in (("batch read", runs.read), ("stream", runs.stream)):
                times: list[RunTimes] = [job(connector) for _ in range(ROUNDS + 1)]
                found[name, executors] = count / min(one.wall_s for one in times[1:])
            spark.stop()
    return [
        Row(f"Spark {name}, two executors", "rows/s", found[name, 2], "one executor", found[name, 1])
        for name in ("batch read", "stream")
    ]
