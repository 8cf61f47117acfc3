"""A broker with 10,000 topics or connections: its start, stop and memory, and the stalls of other clients.

A stall is the longest round trip of a ping beside the measured work, on a broker that is idle otherwise.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from anabranch.protocol.pb import pulsar_pb2 as pb
from benchmarks.broker.scale_client import FrameClient, Pinger, fetch, idle_connections, timed
from benchmarks.results import Row
from simulation.harness.process import BrokerProcess

NAMESPACE = "public/default"
AT_ONCE = 200
ENTRIES = 3
SETTLE_S = 1.0
FAST_SCALING_S = 3.0
SCALING_S = 10.0
"""Interval of auto-scaling: an unused topic is led for two of them at most before it rests."""

START_S_MAX = STOP_S_MAX = 5.0
TOPIC_BYTES_MAX = 10_000
CONNECTIONS_BYTES_MAX = 300_000_000
STALL_MS_MAX = 250.0

SUBSCRIPTION = pb.CommandSubscribe(
    subscription="s",
    subType=pb.CommandSubscribe.Exclusive,
    durable=True,
    initialPosition=pb.CommandSubscribe.Earliest,
    topic="",
    consumer_id=0,
    request_id=0,
)


class Kind(NamedTuple):
    """A kind of topics: their scheme, the logs that hold their messages, and the path of their list."""

    name: str
    scheme: str
    log: str
    path: str

    def seed(self, port: int, count: int) -> None:
        """Make topics, each with a subscription and a few messages."""
        for some in _split([f"{NAMESPACE}/t-{number}" for number in range(count)]):
            client = FrameClient(port)
            if self.scheme == "topic":
                lookups = (
                    pb.CommandScalableTopicLookup(session_id=at, topic=f"topic://{name}")
                    for at, name in enumerate(some)
                )
                client.ask(lookups)
            logs = [self.log.format(name) for name in some]
            client.ask(_subscribe(at, log) for at, log in enumerate(logs))
            client.ask(
                pb.CommandProducer(topic=log, producer_id=at, request_id=at) for at, log in enumerate(logs)
            )
            client.publish(len(logs), ENTRIES)
            client.close()


KINDS = (
    Kind("classic", "persistent", "persistent://{}", f"/admin/v2/persistent/{NAMESPACE}"),
    Kind("scalable", "topic", "segment://{}/0000-ffff-0", f"/admin/v2/scalable/{NAMESPACE}"),
)


def _split(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[first : first + AT_ONCE] for first in range(0, len(names), AT_ONCE))


def _subscribe(number: int, log: str) -> pb.CommandSubscribe:
    made = pb.CommandSubscribe()
    made.CopyFrom(SUBSCRIPTION)
    made.topic, made.consumer_id, made.request_id = log, number, number
    return made


def run(scratch: Path, fast: bool) -> list[Row]:
    count = 1000 if fast else 10_000
    scaling_s = FAST_SCALING_S if fast else SCALING_S
    rows = [row for kind in KINDS for row in run_topics(scratch, kind, count, scaling_s)]
    return [*rows, run_connections(scratch, count)]


def run_topics(scratch: Path, kind: Kind, count: int, scaling_s: float) -> list[Row]:
    title = f"{count:,} {kind.name} topics"
    settings = {"auto_scale_interval_s": scaling_s, "load_report_interval_s": 2.0, "log_idle_s": 1.0}
    broker = BrokerProcess(scratch / kind.name, settings)
    with broker:
        time.sleep(SETTLE_S)
        empty = broker.memory_bytes()
        kind.seed(broker.port, count)
        used = (broker.memory_bytes() - empty) / count
        time.sleep(2.5 * scaling_s)
        idle = (broker.memory_bytes() - empty) / count
        broker.kill()
        broker.start()
        starts = {"after a kill": broker.started_in_s}
        stops = {"the first": timed(broker.stop)}
        broker.start()
        starts["after a stop"] = broker.started_in_s
        time.sleep(SETTLE_S)
        unused = (broker.memory_bytes() - empty) / count
        stalls = _stalls(broker, kind, scaling_s)
        stops["the second"] = timed(broker.stop)
        broker.start()
    memory = {"just used": used, "idle": idle, "unused since the start": unused}
    return [
        _row(f"{title}: start", "s", starts, START_S_MAX),
        _row(f"{title}: stop", "s", stops, STOP_S_MAX),
        _row(
            f"{title}: memory of each",
            "bytes",
            memory,
            TOPIC_BYTES_MAX,
            judged=("idle", "unused since the start"),
        ),
        _row(f"{title}: longest stall", "ms", stalls, STALL_MS_MAX),
    ]


def _stalls(broker: BrokerProcess, kind: Kind, scaling_s: float) -> dict[str, float]:
    """The longest round trip of a ping during each of these, in milliseconds."""
    client = FrameClient(broker.port)
    listing = pb.CommandGetTopicsOfNamespace(request_id=1, namespace=NAMESPACE)
    shown = [sys.executable, "-m", "anabranch.cli.main", "topic", "list", "--admin-url", broker.http_url]
    works: dict[str, Callable[[], object]] = {
        "metrics": lambda: fetch(broker.http_port, "/metrics"),
        "REST list": lambda: fetch(broker.http_port, kind.path),
        "list by wire": lambda: client.ask([listing]),
        "command line": lambda: subprocess.run(shown, check=True, capture_output=True),
        "upkeep": lambda: time.sleep(scaling_s),
    }
    found = {name: stall_ms(broker.port, work) for name, work in works.items()}
    client.close()
    return found


def stall_ms(port: int, work: Callable[[], object]) -> float:
    """The longest round trip of a ping while `work` runs, in milliseconds."""
    with Pinger(port) as pinger:
        work()
    return pinger.longest_ms


def run_connections(scratch: Path, count: int) -> Row:
    settings = {"connections_max": count + 100}
    with BrokerProcess(scratch / "connections", settings) as broker, idle_connections(broker.port, count):
        time.sleep(SETTLE_S)
        memory = {"": broker.memory_bytes()}
    return _row(f"{count:,} idle connections: memory of the broker", "bytes", memory, CONNECTIONS_BYTES_MAX)


def _row(
    name: str, unit: str, figures: Mapping[str, float], most: float, judged: Sequence[str] | None = None
) -> Row:
    worst = max(figure for at, figure in figures.items() if judged is None or at in judged)
    series: Mapping[str, float] = figures if len(figures) > 1 else {}
    return Row(name, unit, worst, goal=f"at most {most:g} {unit}", series=series, met=worst <= most)
