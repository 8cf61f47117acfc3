"""Run a whole cluster on this machine until Ctrl-C: `python -m simulation.harness.pulsar.run`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from simulation.harness.pulsar.cluster import PulsarCluster
from simulation.harness.pulsar.control import ControlServer, control_servers
from simulation.harness.pulsar.jars import LTS, PulsarJars


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Run ZooKeeper, bookies, brokers and control processes until Ctrl-C."
    )
    parser.add_argument("--bookies", type=int, default=3)
    parser.add_argument("--brokers", type=int, default=2)
    parser.add_argument("--controls", type=int, default=2, help="number of `anabranch control` processes")
    parser.add_argument("--scratch", type=Path, help="directory of data and logs; kept if given")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _scratch(arguments.scratch) as scratch, contextlib.suppress(KeyboardInterrupt):
        cluster = PulsarCluster(
            PulsarJars.resolve(), scratch, bookies=arguments.bookies, brokers=arguments.brokers
        )
        print(f"starting Pulsar {LTS}: {len(cluster.processes())} processes, logs in {scratch}", flush=True)
        began_s = time.monotonic()
        with cluster:
            controls = _start_controls(cluster, arguments.controls)
            print(f"ready after {time.monotonic() - began_s:.1f} s; Ctrl-C stops everything")
            print(f"  service    {cluster.url}\n  admin      {cluster.http_url}")
            print(f"  metadata   {cluster.zookeeper_url}")
            for control in controls:
                print(f"  control    {control.url} {control.http_url}", flush=True)
            try:
                _watch_over(cluster)
            finally:
                print("stopping: brokers, bookies, ZooKeeper", flush=True)


def _start_controls(cluster: PulsarCluster, count: int) -> list[ControlServer]:
    made = control_servers(cluster.scratch, cluster.http_url, cluster.zookeeper_url, count=count)
    for control in made:
        cluster.add(control)
    return made


@contextlib.contextmanager
def _scratch(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="anabranch-cluster-") as made:
        yield Path(made)


def _watch_over(cluster: PulsarCluster) -> None:
    """Wait until Ctrl-C, and report each process that ended by itself."""
    reported: set[str] = set()
    while True:
        for process in cluster.processes():
            if not process.running and process.name not in reported:
                reported.add(process.name)
                print(f"{process.name} ended:\n{process.log_text[-2000:]}", file=sys.stderr, flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()
