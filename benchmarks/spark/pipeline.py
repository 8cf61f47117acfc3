"""Spark reads and writes real topics, beside Spark's Kafka connector and a data source without any I/O.

Rows have random keys and values: constant bytes would hide the cost of values that look like headers. Both
connectors read the rows that they wrote. By default Kafka confirms rows that are not on disk yet. Our broker
never does, so writes are measured beside a Kafka that syncs each append, and beside one with its defaults.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers.kafka_peer import FSYNC, PEER, KafkaPeer
from benchmarks.results import Row
from benchmarks.spark.runs import Connector, RunTimes, SparkRuns, session, write_random_rows
from simulation.harness.process import BrokerProcess

TOPIC = "rows"
ROWS = 2_000_000
FAST_ROWS = 200_000
ROWS_PER_TRIGGER = 100_000
SMALL_TRIGGER_ROWS = 1_000
SYNCED = f"syncing {PEER}"
ROUNDS = 3
"""Timed rounds; the fastest one counts."""

Job = Callable[[Connector], RunTimes]


def ours(url: str) -> Connector:
    return Connector(
        "anabranch",
        "anabranch",
        source={"service.url": url, "subscribe": TOPIC},
        sink={"service.url": url, "delivery": "at-least-once"},
    )


def exactly_once(connector: Connector) -> Connector:
    sink = {**connector.sink, "delivery": "exactly-once"}
    return replace(connector, name=f"{connector.name}, exactly once", sink=sink)


def kafka(address: str, name: str = PEER) -> Connector:
    servers = {"kafka.bootstrap.servers": address}
    return Connector(
        name, "kafka", source={**servers, "subscribe": TOPIC}, sink=servers, asks_for_columns=False
    )


def toy(count: int) -> Connector:
    return Connector("Arrow, no I/O", "toy", source={"rows": str(count)})


class PipelineBench:
    """The connectors of one run, and their figures."""

    def __init__(self, runs: SparkRuns, connectors: Sequence[Connector], rounds: int) -> None:
        """The first connector is ours; the peer may be missing. Without `rounds` the warm-up counts."""
        self._runs = runs
        self._ours = connectors[0]
        self._connectors = connectors
        self._rounds = rounds

    def row(self, name: str, job: Job, goal: str) -> Row:
        """Run the job for all connectors in turn, once to warm up; return the best rates."""
        rates = self._rates(name, job, self._connectors)
        return self._beside_peer(name, "rows/s", rates, goal)

    def writes(self, write: Job, synced: Connector | None, goal: str) -> list[Row]:
        """Write at least once and exactly once; the peers write at least once.

        The goal holds beside the peer that waits for the disk as our broker does, which may be missing.
        """
        once = exactly_once(self._ours)
        name, name_once = "Spark write", "Spark write, exactly once"
        peers = [] if synced is None else [synced]
        rates = self._rates(name, write, [*self._connectors, *peers, once])
        rate, rate_once = rates[self._ours.name], rates.pop(once.name)
        alike = {at: rates[at] for at in (self._ours.name, *(peer.name for peer in peers))}
        found = [self._beside_peer(name, "rows/s", alike, goal)]
        if synced is not None:
            unlike = {at: rates[at] for at in rates if at != synced.name}
            found.append(self._beside_peer(f"{name}, Kafka without fsync", "rows/s", unlike, ""))
        return [
            *found,
            self._beside_peer(name_once, "rows/s", {**alike, self._ours.name: rate_once}, ""),
            Row(name_once, "rows/s", rate_once, "at least once", rate),
        ]

    def _rates(self, name: str, job: Job, connectors: Sequence[Connector]) -> dict[str, float]:
        best = self.best(name, job, connectors)
        return {at: self._runs.count / wall_s for at, wall_s in best.items()}

    def best(self, name: str, job: Job, connectors: Sequence[Connector]) -> dict[str, float]:
        """Return the shortest wall time of each connector in seconds."""
        found: dict[str, float] = {}
        for number in range(self._rounds + 1):
            for connector in connectors:
                times = job(connector)
                kind = f"round {number}" if number else "warm-up"
                print(
                    f"{name}, {connector.name}, {kind}: {times.wall_s:.2f} s, {times.cpu_s:.2f} CPU s",
                    file=sys.stderr,
                    flush=True,
                )
                if number or not self._rounds:
                    found[connector.name] = min(times.wall_s, found.get(connector.name, times.wall_s))
        return found

    def small_trigger(self, triggers: int) -> Row:
        found = {
            connector.name: self._runs.trigger_ms(connector, SMALL_TRIGGER_ROWS, triggers)
            for connector in self._connectors
        }
        row = self._beside_peer("Spark trigger of 1,000 rows, median", "ms", found, "at most 250 ms")
        return Row(row.name, row.unit, row.ours, row.peer_name, row.peer, row.goal, met=row.ours <= 250)

    def _beside_peer(self, name: str, unit: str, found: dict[str, float], goal: str) -> Row:
        peer = next((at for at in found if at != self._ours.name), None)
        if peer is None:
            return Row(name, unit, found[self._ours.name], f"{PEER} is missing", goal=goal)
        return Row(name, unit, found[self._ours.name], f"{peer}'s connector", found[peer], goal)


@contextlib.contextmanager
def _synced_kafka(scratch: Path, peer: KafkaPeer | None) -> Iterator[Connector | None]:
    """Run a Kafka that confirms an append after it is on disk."""
    if peer is None:
        yield None
        return
    with peer.started(scratch / "kafka-fsync", FSYNC) as address:
        yield kafka(address, SYNCED)


@contextlib.contextmanager
def _brokers(scratch: Path, peer: KafkaPeer | None) -> Iterator[list[Connector]]:
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(scratch / "data"))
        found = [ours(broker.url)]
        if peer is not None:
            found.append(kafka(stack.enter_context(peer.started(scratch / "kafka"))))
        yield found


def _below_ceiling(bench: PipelineBench, runs: SparkRuns, rows: Any, connector: Connector) -> list[Row]:
    """Return our batch rates beside those of a source and a sink that move no bytes.

    Both take turns: Java compiles while the benchmark runs, so a job is faster the later it comes.
    """
    pair = [connector, toy(runs.count)]
    numbers = iter(range(1_000_000))
    read = bench.best("read beside the ceiling", runs.read, pair)
    written = bench.best(
        "write beside the ceiling", lambda c: runs.write(rows, c, f"{TOPIC}-ceiling-{next(numbers)}"), pair
    )
    return [
        Row(
            f"Spark batch {name}",
            "rows/s",
            runs.count / best[connector.name],
            f"Arrow {peer}, no I/O",
            runs.count / best[pair[1].name],
            "ratio at least 0.50",
        )
        for name, peer, best in (("read", "source", read), ("write", "sink", written))
    ]


def run(scratch: Path, fast: bool) -> list[Row]:
    """Measure all jobs; the fast form leaves out the peer, because its jars and its start take a minute."""
    count = FAST_ROWS if fast else ROWS
    peer = None if fast else KafkaPeer.find()
    spark = session("1g" if fast else "3g", peer.connector if peer else ())
    write_random_rows(scratch / "rows", count)
    rows = spark.read.parquet(str(scratch / "rows"))
    numbers = iter(range(1_000_000))
    filled: set[str] = set()

    def write(connector: Connector) -> RunTimes:
        # The first run of a connector fills the topic that its other jobs read.
        fills = connector in connectors and connector.name not in filled
        filled.add(connector.name)
        return runs.write(rows, connector, TOPIC if fills else f"{TOPIC}-{next(numbers)}")

    with _brokers(scratch, peer) as connectors:
        runs = SparkRuns(spark, scratch, count)
        bench = PipelineBench(runs, connectors, 0 if fast else ROUNDS)
        with _synced_kafka(scratch, peer) as synced:
            writes = bench.writes(write, synced, "ratio at least 5")
        found = [
            *writes,
            bench.row("Spark batch read", runs.read, "ratio at least 2.5"),
            bench.row("Spark stream", runs.stream, "ratio at least 1.5"),
            bench.row(
                f"Spark stream, {ROWS_PER_TRIGGER:,} rows per trigger",
                lambda connector: runs.stream(connector, ROWS_PER_TRIGGER),
                "ratio at least 1.2",
            ),
            bench.small_trigger(10 if fast else 30),
            *_below_ceiling(bench, runs, rows, connectors[0]),
        ]
    spark.stop()
    return found
