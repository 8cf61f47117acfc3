"""Pipelines whose driver is killed in the middle: the next driver resumes, and each message is there once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import anabranch
from anabranch.admin.client import AdminClient
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.names import TopicName
from anabranch.testing.process import BrokerProcess

# A machine that is busy takes minutes for three starts of Spark.
pytestmark = pytest.mark.timeout(1800)

CHILD = Path(__file__).parent / "pipeline_child.py"
ROOT = Path(__file__).resolve().parents[2]
KEYS = 23
COUNT = 1500
ORDERS = TopicName.parse("topic://public/default/orders")
KILLS = (
    {"lake/_anabranch/commits/*.json": 3, "state/load/done/*.json": 1},
    {"table/_anabranch/commits/*.json": 2, "state/topic/commits/[0-9]*": 2},
    {"state/replay/commits/[0-9]*": 2},
)
"""By the files that show the steps of a pipeline: how many of them are there when the driver is killed.

Each pipeline has six steps or more.
"""

Sequences = dict[str, list[int]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("Spark needs Java 17, and there is no java here")
    with BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false"}) as process:
        yield process


def start(broker: BrokerProcess, root: Path) -> subprocess.Popen[bytes]:
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (root / "child.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(CHILD), broker.url, str(root)],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,
        )


def kill_inside(broker: BrokerProcess, root: Path, steps: Mapping[str, int]) -> None:
    """Run the child until the pipelines have made some of their steps, then kill it with SIGKILL."""
    child = start(broker, root)
    try:
        while any(len(list(root.glob(pattern))) < wanted for pattern, wanted in steps.items()):
            assert child.poll() is None, (root / "child.log").read_text()[-4000:]
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    # The JVM notices the death by itself; a test must not outlive it.
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)


def publish(client: anabranch.Client, lo: int, hi: int) -> None:
    producer: anabranch.Producer[bytes] = client.create_producer("orders")
    numbers = range(lo, hi)
    producer.send_many([b"%d" % n for n in numbers], [f"key-{n % KEYS}" for n in numbers])
    producer.close()


def received(client: anabranch.Client, topic: str) -> Sequences:
    consumer: Any = client.create_checkpoint_consumer(topic, start=Checkpoint.earliest())
    found: Sequences = defaultdict(list)
    while messages := consumer.receive_many(1000, timeout=3):
        for message in messages:
            found[str(message.key)].append(int(message.value))
    consumer.close()
    return dict(found)


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


def test_every_pipeline_resumes_after_a_kill(broker: BrokerProcess, tmp_path: Path) -> None:
    lines = [f"key-{n % KEYS},{n}" for n in reversed(range(COUNT))]
    (tmp_path / "events.csv").write_text("\n".join(["key,value", *lines]))
    with anabranch.Client(broker.url) as client, AdminClient(broker.http_url) as admin:
        admin.create_topic(ORDERS, 1)
        publish(client, 0, COUNT // 2)
        admin.split(ORDERS, 0)
        publish(client, COUNT // 2, COUNT)
        for steps in KILLS:
            kill_inside(broker, tmp_path, steps)
        child = start(broker, tmp_path)
        assert child.wait() == 0, (tmp_path / "child.log").read_text()[-4000:]
        assert stored(tmp_path / "lake") == expected()
        assert stored(tmp_path / "table") == newest()
        assert received(client, "loaded") == expected()
        assert received(client, "again") == expected()
        latest = received(client, "latest")
        assert {key: numbers[-1:] for key, numbers in latest.items()} == newest()
        assert all(numbers == sorted(set(numbers)) for numbers in latest.values())
