"""Our clients beside those of Kafka and Pulsar: one machine, one run, the same messages.

Kafka confirms appends after an fsync, as our broker does; `pulsar-client` uses our broker. Clients take
turns, so that a machine that slows down for a while slows all of them, and the best round of each counts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers.aiokafka_client import AioKafka
from benchmarks.peers.children import Job, JobError, end_to_end
from benchmarks.peers.confluent import ConfluentKafka
from benchmarks.peers.contender import Contender
from benchmarks.peers.kafka_peer import PEER
from benchmarks.peers.official import OfficialPulsar
from benchmarks.peers.ours import OursAsync
from benchmarks.peers.ours_blocking import OursBlocking
from benchmarks.peers.starting import kafka
from benchmarks.results import Row, percentile_ms
from simulation.harness.process import BrokerProcess

OURS: Final = (OursAsync, OursBlocking)
ON_KAFKA: Final = (ConfluentKafka, AioKafka)
PUBLISH_GOAL: Final = 2.0
CONSUME_GOAL: Final = 1.5
BLOCKING_GOAL: Final = 1 / 3
RATES: Final = (5_000, 20_000)

Measure = Callable[[Contender, int], Sequence[float]]
"""Figures of one contender in one round."""

_RUN = f"{time.time_ns():x}"
"""Tells the topics of this run from those of others."""


@dataclass(frozen=True)
class WorkSizes:
    """How much work a run does."""

    messages: int
    sends: int
    seconds: float
    rounds: int
    rates: Sequence[int]


@dataclass(frozen=True)
class Goal:
    """The ratio to reach against the fastest of the peers that count."""

    ratio: float
    counts: Callable[[str], bool] = lambda _: True


FULL: Final = WorkSizes(500_000, 1_500, 6.0, 3, RATES)
SHORT: Final = WorkSizes(30_000, 100, 1.0, 1, RATES[:1])


class Comparison:
    """The contenders that are present, and their figures."""

    def __init__(self, contenders: Sequence[Contender], sizes: WorkSizes) -> None:
        self._contenders = contenders
        self._sizes = sizes

    def rates(self, what: str, method: str, goal: float, *, queues: bool = False) -> list[Row]:
        """Compare a job whose figure is messages per second; more is better."""
        publishes = method.startswith("publish")

        def measure(contender: Contender, number: int) -> Sequence[float]:
            topic = f"{method}-{number}" if publishes else "consumed"
            return [Job(contender, method, _named(contender, topic), self._sizes.messages).result()]

        if publishes:
            self._prepare([f"{method}-{number}" for number in range(self._sizes.rounds)])
        best = {name: max(figures) for name, figures in self._rounds(what, measure, queues).items()}
        return rows_of(what, "msg/s", best, Goal(goal))

    def fill(self) -> None:
        """Publish the messages that the consuming jobs read."""

        def measure(contender: Contender, _: int) -> Sequence[float]:
            count = self._sizes.messages * self._sizes.rounds
            Job(contender, "fill", _named(contender, "consumed"), count).result()
            return ()

        self._prepare(["consumed"])
        self._rounds("fill", measure, False, rounds=1)

    def send_times(self) -> list[Row]:
        """Compare the time of one send at a time; less is better."""

        def measure(contender: Contender, number: int) -> Sequence[float]:
            found: list[float] = Job(
                contender, "send_times", _named(contender, f"single-{number}"), self._sizes.sends
            ).result()
            return found

        self._prepare([f"single-{number}" for number in range(self._sizes.rounds)])
        found = self._rounds("send", measure, False)
        return self._latency_rows("one send at a time", found, Goal(1.0, _on_kafka))

    def latencies(self, rate: int) -> list[Row]:
        """Compare the time from a send to its reception at a rate of messages per second."""

        def measure(contender: Contender, number: int) -> Sequence[float]:
            return end_to_end(
                contender, _named(contender, f"paced-{rate}-{number}"), rate, self._sizes.seconds
            )

        self._prepare([f"paced-{rate}-{number}" for number in range(self._sizes.rounds)])
        what = f"end to end at {rate:,} msg/s"
        return self._latency_rows(what, self._rounds(what, measure, False), Goal(1.0, _on_kafka))

    def _latency_rows(self, what: str, found: dict[str, list[float]], goal: Goal) -> list[Row]:
        rows = []
        for at in (50, 99):
            best = {name: percentile_ms(figures, at) for name, figures in found.items()}
            rows += rows_of(f"{what}, p{at}", "ms", best, goal)
        return rows

    def _prepare(self, topics: Sequence[str]) -> None:
        for contender in self._contenders:
            for topic in topics if isinstance(contender, ON_KAFKA) else ():
                # Jobs on a topic that could not be created fail, and are reported then.
                with contextlib.suppress(JobError):
                    Job(contender, "prepare", _named(contender, topic)).result()

    def _rounds(
        self, what: str, measure: Measure, queues: bool, rounds: int | None = None
    ) -> dict[str, list[float]]:
        """The figures of all rounds by contender; a peer that fails is reported and left out."""
        found: dict[str, list[float]] = {}
        for number in range(rounds or self._sizes.rounds):
            for contender in self._contenders:
                if queues and not contender.has_queues:
                    continue
                try:
                    figures = measure(contender, number)
                except JobError as error:
                    if contender.is_ours:
                        raise
                    print(f"{what}: {error}; continuing without it", file=sys.stderr, flush=True)
                    continue
                found.setdefault(contender.name, []).extend(figures)
        return found


def run(scratch: Path, fast: bool) -> list[Row]:
    """Compare everything; the fast form leaves Kafka out, because its start takes seconds of each CI run."""
    sizes = SHORT if fast else FULL
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(scratch / "data"))
        contenders: list[Contender] = [
            client(broker.url) for client in (*OURS, OfficialPulsar) if _installed(client)
        ]
        address = None if fast else stack.enter_context(kafka(scratch / "kafka"))
        if fast:
            print(f"{PEER} is left out of the fast form", file=sys.stderr)
        elif address is not None:
            contenders += [client(address) for client in ON_KAFKA if _installed(client)]
        comparison = Comparison(contenders, sizes)
        rows = comparison.rates("publish, each outcome known", "publish_each", PUBLISH_GOAL)
        rows += blocking_beside_async(rows)
        rows += comparison.rates("publish in bulk", "publish_bulk", PUBLISH_GOAL)
        comparison.fill()
        rows += comparison.rates("consume and acknowledge one by one", "consume_each", CONSUME_GOAL)
        rows += comparison.rates("consume and acknowledge by thousands", "consume_many", CONSUME_GOAL)
        rows += comparison.rates(
            "take from a queue, each acknowledged", "consume_queue", CONSUME_GOAL, queues=True
        )
        rows += comparison.send_times()
        for rate in sizes.rates:
            rows += comparison.latencies(rate)
    return rows


def _installed(client: type[Contender]) -> bool:
    if importlib.util.find_spec(client.module) is not None:
        return True
    print(f"{client.name} is not installed (`make peers`); continuing without it", file=sys.stderr)
    return False


def _named(contender: Contender, topic: str) -> str:
    """Return a topic name for this run, because a Kafka that keeps running has messages of earlier runs."""
    return f"bench-{_RUN}-{contender.name.split(',')[-1].strip()}-{topic}"


def _is_ours(name: str) -> bool:
    return any(client.name == name for client in OURS)


def _on_kafka(name: str) -> bool:
    return any(client.name == name for client in ON_KAFKA)


def rows_of(what: str, unit: str, best: dict[str, float], goal: Goal) -> list[Row]:
    """A row for each of our clients; the first one shows the figures of all peers."""
    peers = {name: figure for name, figure in best.items() if not _is_ours(name)}
    counted = {name: figure for name, figure in peers.items() if goal.counts(name)}
    more = unit == "msg/s"
    fastest = None if not counted else (max if more else min)(counted, key=counted.__getitem__)
    rows: list[Row] = []
    for name in (name for name in best if _is_ours(name)):
        ratio = None if fastest is None else best[name] / counted[fastest]
        met = None if ratio is None else ratio >= goal.ratio if more else ratio <= goal.ratio
        text = f"ratio at {'least' if more else 'most'} {goal.ratio:g}"
        peer = None if fastest is None else counted[fastest]
        series = {} if rows else peers
        rows.append(Row(f"{what}: {name}", unit, best[name], fastest or "no peer", peer, text, series, met))
    return rows


def blocking_beside_async(rows: Sequence[Row]) -> list[Row]:
    """Compare our blocking `enqueue` with the asynchronous one, both measured in the rows of this run."""
    figures = {row.name.rpartition(": ")[2]: row.ours for row in rows}
    ratio = figures[OursBlocking.name] / figures[OursAsync.name]
    return [
        Row(
            "blocking enqueue beside async enqueue",
            "msg/s",
            figures[OursBlocking.name],
            OursAsync.name,
            figures[OursAsync.name],
            "ratio at least a third",
            {},
            ratio >= BLOCKING_GOAL,
        )
    ]
