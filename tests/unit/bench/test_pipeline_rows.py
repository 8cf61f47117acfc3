from __future__ import annotations

from pathlib import Path

from anabranch.bench.pipeline import PipelineBench, kafka, ours
from anabranch.bench.spark_runs import Connector, RunTimes, SparkRuns

WALL_S = {"at-least-once": 2.0, "exactly-once": 4.0, None: 8.0}
"""Seconds of a write, by the delivery of the sink; Kafka's connector has no such option."""


def write(connector: Connector) -> RunTimes:
    return RunTimes(WALL_S[connector.sink.get("delivery")], 0.0)


def test_exactly_once_writes_stand_beside_the_peer_and_beside_at_least_once(tmp_path: Path) -> None:
    connectors = [ours("pulsar://127.0.0.1:1"), kafka("127.0.0.1:2")]
    rows = PipelineBench(SparkRuns(None, tmp_path, 800), connectors, 1).writes(write, "a goal")
    assert [(row.name, row.ours, row.peer_name, row.peer, row.goal) for row in rows] == [
        ("Spark write", 400.0, "Kafka 4.2.0's connector", 100.0, "a goal"),
        ("Spark write, exactly once", 200.0, "Kafka 4.2.0's connector", 100.0, ""),
        ("Spark write, exactly once", 200.0, "at least once", 400.0, ""),
    ]


def test_without_the_peer_its_figures_are_missing(tmp_path: Path) -> None:
    bench = PipelineBench(SparkRuns(None, tmp_path, 800), [ours("pulsar://127.0.0.1:1")], 0)
    assert [(row.ours, row.peer) for row in bench.writes(write, "")] == [(400, None), (200, None), (200, 400)]
