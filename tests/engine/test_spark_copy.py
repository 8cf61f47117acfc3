"""From a topic of Pulsar through Spark to another one: the driver dies at each step of a commit.

In between, the target splits and merges. Each message arrives once, and each key in order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import anabranch
from anabranch.admin.client import AdminClient
from simulation.harness.pulsar.control import ControlServer
from tests.harness.pulsar import EngineAddresses
from tests.harness.spark_drivers import COPY, DriverProcess
from tests.harness.stored_messages import numbers_by_key

KEYS = 20
STEP_S = 400.0
"""A busy machine takes minutes for a start of Spark."""

pytestmark = [pytest.mark.long, pytest.mark.real_time, pytest.mark.timeout(3600)]


@pytest.fixture
def control(small_engine: EngineAddresses, tmp_path: Path) -> Iterator[ControlServer]:
    server = ControlServer(
        tmp_path, 13, http_url=small_engine.http_url, zookeeper_url=small_engine.zookeeper_url
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()


class CopyOnPulsar:
    """Two topics, and a query that copies one to the other."""

    def __init__(self, control: ControlServer, root: Path, failpoints: Path) -> None:
        name = uuid4().hex
        self.source, self.copy = f"source-{name}", f"copy-{name}"
        self._control = control
        self._root = root
        self._failpoints = failpoints
        self._next = 0
        with AdminClient(control.http_url) as admin:
            for topic in (self.source, self.copy):
                admin.create_topic(topic, 2)

    def publish(self) -> None:
        """Publish rising numbers; the key of each is its remainder."""
        numbers = range(self._next, self._next + 500)
        self._next = numbers.stop
        with anabranch.Client(self._control.url) as client:
            producer: anabranch.Producer[bytes] = client.create_producer(self.source)
            producer.send_many([b"%d" % n for n in numbers], keys=[f"key-{n % KEYS}" for n in numbers])

    def driver(self, *, ends: bool = False) -> DriverProcess:
        chosen = {
            "source": {"subscription": None, "maxOffsetsPerTrigger": 400},
            "master": "local[2]",
            "conf": {},
            "shuffled": True,
            "slow": False,
            "ends": ends,
            "from": self.source,
            "to": self.copy,
        }
        words = [str(COPY), self._control.url, str(self._root), json.dumps(chosen)]
        return DriverProcess(words, self._root / "driver.log")

    def run_until_killed_at(self, step: str) -> None:
        """Run the driver until the process that commits has reached a step; then all of it dies."""
        self._failpoints.write_text(f"sink.{step}=kill")
        driver = self.driver()
        try:
            until_s = time.monotonic() + STEP_S
            while self._failpoints.exists():
                assert driver.running, driver.log_text[-6000:]
                assert time.monotonic() < until_s, f"no commit reached the step {step}"
                time.sleep(0.1)
        finally:
            driver.kill()

    def run_to_the_end(self) -> None:
        driver = self.driver(ends=True)
        try:
            driver.wait()
        finally:
            if driver.running:
                driver.kill()

    def change_layout(self) -> None:
        """Split a topic of two segments, and merge the segments of another one."""
        with AdminClient(self._control.http_url) as admin:
            segments = admin.topic_metadata(self.copy).segments.values()
            ids = [one.segment_id for one in segments if one.state == "ACTIVE"]
            if len(ids) > 2:
                admin.merge(self.copy, ids)
            else:
                admin.split(self.copy, ids[0], parts=2)

    def check(self) -> None:
        with anabranch.Client(self._control.url) as client:
            found = numbers_by_key(client, self.copy, quiet_s=20)
        assert found == {f"key-{key}": list(range(key, self._next, KEYS)) for key in range(KEYS)}


def test_each_message_is_copied_once_and_in_order(
    control: ControlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failpoints = tmp_path / "failpoints"
    monkeypatch.setenv("ANABRANCH_FAILPOINTS", f"@{failpoints}")
    copying = CopyOnPulsar(control, tmp_path, failpoints)
    for step in ("pinned", "publishing", "published", "done"):
        copying.publish()
        copying.run_until_killed_at(step)
        copying.change_layout()
    copying.publish()
    copying.run_to_the_end()
    copying.check()
