"""Start a Spark standalone cluster on this machine: a master and two workers, until Ctrl-C.

Run it beside a broker and give the printed address to a job:
`python -m examples.spark_cluster`, then `SparkSession.builder.master("spark://127.0.0.1:...")`.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

from simulation.harness.spark_cluster import SparkCluster


def main() -> None:
    parser = argparse.ArgumentParser(description="Start a Spark standalone cluster on this machine.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cores", type=int, default=1, help="cores of each worker")
    parser.add_argument("--memory", default="1g", help="memory of each worker")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-spark-") as scratch,
        SparkCluster(
            Path(scratch), arguments.workers, cores=arguments.cores, memory=arguments.memory
        ) as cluster,
    ):
        print(f"{arguments.workers} workers at {cluster.url}; Ctrl-C ends them", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
