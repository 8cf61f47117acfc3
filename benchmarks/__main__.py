"""`python -m benchmarks NAME`: run benchmarks, print the table, write build/bench.json."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.broker import connecting, entries, flood, held_lanes, scale, tls, workers
from benchmarks.client import hot_key, running
from benchmarks.engine import cluster
from benchmarks.layout import changes
from benchmarks.peers import comparing
from benchmarks.results import Row, show, store
from benchmarks.spark import pipeline
from benchmarks.spark import workers as spark_workers

Benchmark = Callable[[Path, bool], list[Row]]

BENCHMARKS: dict[str, Benchmark] = {
    "start": entries.run_start,
    "entries": entries.run_entries,
    "connect": connecting.run,
    "peers": comparing.run,
    "flood": flood.run,
    "tls": tls.run,
    "layout": changes.run,
    "workers": workers.run,
    "scale": scale.run,
    "hot-key": hot_key.run,
    "held": held_lanes.run,
    "run": running.run,
    "spark": pipeline.run,
}

EXTRA: dict[str, Benchmark] = {
    "hot-key-short": hot_key.run_short,
    "spark-workers": spark_workers.run,
    "engine": cluster.run,
}
"""Variants of other benchmarks, and the benchmark of a whole Pulsar cluster. `all` leaves them out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=[*BENCHMARKS, *EXTRA, "all"], help="which benchmark to run")
    parser.add_argument("--fast", action="store_true", help="do a tenth of the work; the figures vary more")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"), help="file for the figures")


def run(arguments: argparse.Namespace) -> int:
    names = list(BENCHMARKS) if arguments.name == "all" else [arguments.name]
    rows: list[Row] = []
    for name in names:
        print(f"==> {name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as scratch:
            rows += {**BENCHMARKS, **EXTRA}[name](Path(scratch), arguments.fast)
        print(f"    {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    store(rows, arguments.output)
    if arguments.json:
        print(arguments.output.read_text(), end="")
    else:
        show(rows)
        print(f"written to {arguments.output}", file=sys.stderr)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
