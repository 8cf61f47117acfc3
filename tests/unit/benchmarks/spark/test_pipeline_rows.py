from __future__ import annotations

from pathlib import Path

from benchmarks.spark.pipeline import SYNCED, PipelineBench, kafka, ours
from benchmarks.spark.runs import Connector, RunTimes, SparkRuns

WALL_S = {"anabranch": 2.0, "anabranch, exactly once": 4.0, "Kafka 4.2.0": 8.0, "syncing Kafka 4.2.0": 16.0}
"""Seconds of a write, by connector."""


def write(connector: Connector) -> RunTimes:
    return RunTimes(WALL_S[connector.name], 0.0)


def test_the_goal_of_writes_holds_beside_the_peer_that_waits_for_the_disk(tmp_path: Path) -> None:
    connectors, synced = [ours("pulsar://127.0.0.1:1"), kafka("127.0.0.1:2")], kafka("127.0.0.1:3", SYNCED)
    rows = PipelineBench(SparkRuns(None, tmp_path, 800), connectors, 1).writes(write, synced, "a goal")
    assert [(row.name, row.ours, row.peer_name, row.peer, row.goal) for row in rows] == [
        ("Spark write", 400.0, "syncing Kafka 4.2.0's connector", 50.0, "a goal"),
        ("Spark write, Kafka without fsync", 400.0, "Kafka 4.2.0's connector", 100.0, ""),
        ("Spark write, exactly once", 200.0, "syncing Kafka 4.2.0's connector", 50.0, ""),
        ("Spark write, exactly once", 200.0, "at least once", 400.0, ""),
    ]


def test_without_the_peer_its_figures_are_missing(tmp_path: Path) -> None:
    bench = PipelineBench(SparkRuns(None, tmp_path, 800), [ours("pulsar://127.0.0.1:1")], 0)
    rows = bench.writes(write, None, "")
    assert [(row.ours, row.peer) for row in rows] == [(400, None), (200, None), (200, 400)]
