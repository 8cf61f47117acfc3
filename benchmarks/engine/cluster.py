"""The control plane over a real Pulsar cluster: traffic, layout operations, takeover, and many led topics.

A full run has ZooKeeper, three bookies, two brokers and one control process, a short one a standalone Pulsar
beside a ZooKeeper. Our client on a scalable topic and `pulsar-client` on a partitioned topic take turns.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.engine import leading, operations
from benchmarks.engine.traffic import EngineTraffic
from benchmarks.results import Row
from simulation.harness.pulsar.cluster import BROKER_SETTINGS, PulsarCluster
from simulation.harness.pulsar.control import ControlServer, session
from simulation.harness.pulsar.jars import PulsarJars, UnresolvedError
from simulation.harness.pulsar.standalone import PulsarStandalone
from simulation.harness.pulsar.zookeeper import ZookeeperServer

SESSION_S: Final = 10.0
"""The default of `anabranch control`."""

PEER_SETTINGS: Final = {**BROKER_SETTINGS, "allowAutoSubscriptionCreation": "true"}
"""`pulsar-client` makes the subscriptions of its partitioned topic itself."""


class BenchEngine(NamedTuple):
    """The addresses of a cluster."""

    url: str
    http_url: str
    zookeeper_url: str

    def control(self, scratch: Path, number: int) -> ControlServer:
        """One more control process, not started yet."""
        return ControlServer(
            scratch,
            number,
            http_url=self.http_url,
            zookeeper_url=self.zookeeper_url,
            more=session(SESSION_S),
        )


@dataclass(frozen=True)
class EngineSizes:
    """How much work a run does."""

    messages: int
    rounds: int
    seconds: float
    taken_over: int
    led: int


FULL: Final = EngineSizes(messages=200_000, rounds=2, seconds=20.0, taken_over=1000, led=10_000)
SHORT: Final = EngineSizes(messages=20_000, rounds=1, seconds=5.0, taken_over=50, led=1000)


def run(scratch: Path, fast: bool) -> list[Row]:
    sizes = SHORT if fast else FULL
    loads = LoadNotes()
    rows = loads.noted("led topics", lambda: leading.run(scratch, sizes.led))
    try:
        jars = PulsarJars.resolve()
    except UnresolvedError as error:
        print(f"{error}; the figures of a real cluster are left out", file=sys.stderr)
        return [*rows, loads.row()]
    with (_standalone if fast else _cluster)(jars, scratch) as engine:
        rows += _run_on(engine, scratch, sizes, loads)
    return [*rows, loads.row()]


def _run_on(engine: BenchEngine, scratch: Path, sizes: EngineSizes, loads: LoadNotes) -> list[Row]:
    first, second = (engine.control(scratch, number) for number in range(2))
    first.start()
    try:
        url = f"pulsar://127.0.0.1:{first.port}"
        traffic = EngineTraffic(url, first.http_url, engine.url, engine.http_url)
        rows = loads.noted("traffic", lambda: traffic.run(sizes.messages, sizes.rounds))
        rows += loads.noted("operations", lambda: operations.operations(first, sizes.seconds))
        rows += loads.noted("polls", lambda: operations.polls(engine.http_url, sizes.seconds / 4))
        rows += loads.noted(
            "takeover",
            lambda: operations.takeover(first, second, engine.zookeeper_url, sizes.taken_over),
        )
        return rows
    finally:
        second.stop()
        first.stop()


@contextlib.contextmanager
def _cluster(jars: PulsarJars, scratch: Path) -> Iterator[BenchEngine]:
    with PulsarCluster(jars, scratch / "cluster", settings=PEER_SETTINGS) as cluster:
        yield BenchEngine(cluster.url, cluster.http_url, cluster.zookeeper_url)


@contextlib.contextmanager
def _standalone(jars: PulsarJars, scratch: Path) -> Iterator[BenchEngine]:
    zookeeper = ZookeeperServer(jars, scratch / "zookeeper")
    pulsar = PulsarStandalone(jars, scratch / "pulsar", PEER_SETTINGS)
    try:
        zookeeper.start()
        pulsar.start()
        yield BenchEngine(pulsar.url, pulsar.http_url, f"{zookeeper.url}/anabranch")
    finally:
        pulsar.kill()
        zookeeper.stop()


class LoadNotes:
    """The load of the machine after each part; figures of a machine with other work are low."""

    def __init__(self) -> None:
        self._found: dict[str, float] = {}

    def noted(self, name: str, part: Callable[[], list[Row]]) -> list[Row]:
        print(f"    {name}", file=sys.stderr, flush=True)
        rows = part()
        self._found[name] = os.getloadavg()[0]
        return rows

    def row(self) -> Row:
        cores = os.cpu_count() or 1
        return Row(f"load of {cores} cores, highest", "", max(self._found.values()), series=self._found)
