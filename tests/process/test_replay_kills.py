"""A replay whose driver is killed while it reads the archive, and again while it reads the live topic."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.harness.spark_drivers import DriverProcess
from tests.harness.stored_messages import numbers_by_key

from .pipeline_topics import KEYS, publish

# A machine that is busy takes minutes for four starts of Spark.
pytestmark = pytest.mark.timeout(1800)

CHILD = Path(__file__).parent / "replay_child.py"
ARCHIVED = 700
COUNT = 1500
ORDERS = TopicName.parse("topic://public/default/orders")
SETTINGS = {"auto_scale.enabled": "false", "segment_retention_s": 0, "load_report_interval_s": 0.2}
WAIT_S = 600.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("Spark needs Java 17, and there is no java here")
    with BrokerProcess(tmp_path / "data", SETTINGS) as process:
        yield process


def start(broker: BrokerProcess, root: Path, work: str) -> DriverProcess:
    return DriverProcess([str(CHILD), broker.url, str(root), work], root / "child.log")


def reached(root: Path) -> dict[str, Any]:
    """The end of the newest micro-batch that Spark has committed: a commit of the archive, or a cut."""
    numbers = [int(path.name) for path in (root / "state" / "commits").glob("[0-9]*")]
    if not numbers:
        return {"archive": -1}
    lines = (root / "state" / "offsets" / str(max(numbers))).read_text().splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def kill_when(broker: BrokerProcess, root: Path, good: Callable[[dict[str, Any]], bool]) -> None:
    """Run an endless replay until it has made this much progress, then kill it."""
    child = start(broker, root, "follow")
    try:
        deadline = time.monotonic() + WAIT_S
        while not good(reached(root)):
            assert child.running, child.log_text[-4000:]
            assert time.monotonic() < deadline, f"the replay is only at {reached(root)}"
            time.sleep(0.02)
    finally:
        child.kill()


def trim_the_archived_part(admin: AdminClient) -> None:
    """Release the first segment, which the archive holds, and wait until it is deleted."""
    admin.delete_subscription(ORDERS, "all")
    deadline = time.monotonic() + WAIT_S
    while "0" in plain(admin.topic_metadata(ORDERS))["segments"]:
        assert time.monotonic() < deadline, "the first segment stays"
        time.sleep(0.1)
    admin.create_subscription(ORDERS, "all")


@pytest.mark.parametrize(
    "trimmed", [pytest.param(False, id="whole", marks=pytest.mark.long), pytest.param(True, id="trimmed")]
)
def test_a_replay_killed_in_the_archive_and_in_the_topic_resumes(
    broker: BrokerProcess, tmp_path: Path, trimmed: bool
) -> None:
    with anabranch.Client(broker.url) as client, AdminClient(broker.http_url) as admin:
        admin.create_topic(ORDERS, 1)
        # Messages stay until a subscription has acknowledged them.
        admin.create_subscription(ORDERS, "all")
        publish(client, 0, ARCHIVED)
        start(broker, tmp_path, "archive").wait()
        last = max(int(path.stem) for path in (tmp_path / "lake/_anabranch/commits").glob("[0-9]*.json"))
        admin.split(ORDERS, 0)
        if trimmed:
            trim_the_archived_part(admin)
        publish(client, ARCHIVED, COUNT)
        kill_when(broker, tmp_path, lambda offset: offset.get("archive", last) >= 2)
        assert 2 <= reached(tmp_path)["archive"] < last - 1
        kill_when(broker, tmp_path, lambda offset: "archive" not in offset and live_rows(offset) > 0)
        assert 0 < live_rows(reached(tmp_path)) < COUNT - ARCHIVED - 100
        start(broker, tmp_path, "end").wait()
        expected = {f"key-{key}": list(range(key, COUNT, KEYS)) for key in range(KEYS)}
        assert numbers_by_key(client, "again") == expected


def live_rows(offset: dict[str, Any]) -> int:
    """The rows of the live topic up to a cut: the archive holds those of segment 0."""
    positions = offset["topics"]["orders"]["segs"]
    return sum(position for segment, position in positions.items() if segment != "0")
