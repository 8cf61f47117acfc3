"""Pipelines whose driver is killed in the middle: the next driver resumes, and each message is there once."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import anabranch
from anabranch.admin.client import AdminClient
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.harness.iceberg_tables import make_table, rows
from tests.harness.spark_drivers import DriverProcess
from tests.harness.stored_messages import numbers_by_key

from .pipeline_topics import KEYS, Sequences, publish

# A machine that is busy takes minutes for three starts of Spark.
pytestmark = pytest.mark.timeout(1800)

CHILD = Path(__file__).parent / "pipeline_child.py"
COUNT = 1500
ORDERS = TopicName.parse("topic://public/default/orders")
GROUPS = (
    {
        "lake/_anabranch/commits/*.json": 2,
        "state/load/done/*.json": 1,
        "state/iceberg/done/*.json": 1,
        "table/_anabranch/commits/*.json": 2,
        "state/topic/commits/[0-9]*": 2,
    },
    {"state/replay/commits/[0-9]*": 2, "verify.running": 1, "skew.running": 1},
)
"""The pipelines that run together: the files that the steps of each leave, and how many show that it began.

The pipelines with a state have six steps or more; the file of one without a state is there while it runs.
"""
LATE = 4
"""A pipeline with so many steps is killed before it ends, even if another one has not begun."""
KILLS_MAX = 8


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("Spark needs Java 17, and there is no java here")
    with BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false"}) as process:
        yield process


def start(broker: BrokerProcess, root: Path) -> DriverProcess:
    return DriverProcess([str(CHILD), broker.url, str(root)], root / "child.log")


def kill_in_the_middle(broker: BrokerProcess, root: Path, left: dict[str, int]) -> set[str]:
    """Run the child until some of these pipelines are in the middle, then kill it; return those that were."""
    for stale in root.glob("*.running"):
        stale.unlink()
    child = start(broker, root)
    try:
        while True:
            made = {pattern: len(list(root.glob(pattern))) for pattern in left}
            begun = {pattern for pattern, steps in made.items() if steps >= left[pattern]}
            if len(begun) == len(left) or max(made.values()) >= LATE:
                return begun
            assert child.running, child.log_text[-4000:]
            time.sleep(0.02)
    finally:
        child.kill()


def stored(directory: Path) -> Sequences:
    """The rows of plain Parquet files, without the log of the lake, in order of their position."""
    files = [path for path in directory.rglob("*.parquet") if "_anabranch" not in path.parts]
    columns = ["key", "value", "segment", "position"]
    rows = [row for path in files for row in pq.ParquetFile(path).read(columns=columns).to_pylist()]
    found: Sequences = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["segment"], row["position"])):
        found[row["key"].decode()].append(int(row["value"]))
    return dict(found)


def expected() -> Sequences:
    return {f"key-{key}": list(range(key, COUNT, KEYS)) for key in range(KEYS)}


def newest() -> Sequences:
    return {key: numbers[-1:] for key, numbers in expected().items()}


def report(path: Path) -> Any:
    return json.loads(path.read_text())


def test_every_pipeline_resumes_after_a_kill(broker: BrokerProcess, tmp_path: Path) -> None:
    lines = [f"key-{n % KEYS},{n}" for n in reversed(range(COUNT))]
    (tmp_path / "events.csv").write_text("\n".join(["key,value", *lines]))
    table = make_table(tmp_path / "iceberg")
    for third in range(3):
        table.append(rows(range(COUNT)[third * COUNT // 3 : (third + 1) * COUNT // 3], KEYS))
    with anabranch.Client(broker.url) as client, AdminClient(broker.http_url) as admin:
        admin.create_topic(ORDERS, 1)
        publish(client, 0, COUNT // 2)
        admin.split(ORDERS, 0)
        publish(client, COUNT // 2, COUNT)
        kills = 0
        for group in GROUPS:
            left = dict(group)
            while left:
                assert kills < KILLS_MAX, f"no kill came in the middle of {', '.join(left)}"
                for pattern in kill_in_the_middle(broker, tmp_path, left):
                    del left[pattern]
                kills += 1
        start(broker, tmp_path).wait()
        assert stored(tmp_path / "lake") == expected()
        assert stored(tmp_path / "table") == newest()
        assert numbers_by_key(client, "loaded") == expected()
        assert numbers_by_key(client, "from-iceberg") == expected()
        assert numbers_by_key(client, "again") == expected()
        latest = numbers_by_key(client, "latest")
        assert {key: numbers[-1:] for key, numbers in latest.items()} == newest()
        assert all(numbers == sorted(set(numbers)) for numbers in latest.values())
        assert report(tmp_path / "verify.json") == {"findings": 0, "messages": COUNT, "keys": KEYS}
        assert report(tmp_path / "skew.json") == {"total": COUNT, "heaviest": -(-COUNT // KEYS)}
        # Neither a killed run nor a whole one leaves a subscription on the topic that it reads.
        assert admin.topic_stats(ORDERS).subscriptions == {}
