"""Stateful queries on a topic that splits and merges while drivers die give the results of a quiet topic."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.harness.spark_drivers import DriverProcess

from .conftest import MakeBroker

# A busy machine takes long for several starts of Spark.
pytestmark = [pytest.mark.timeout(3600), pytest.mark.long]

QUIET, BUSY = "quiet", "busy"
SCRIPT = Path(__file__).parent / "spark_state.py"
STEP_MS = 5 * 60_000
LATE_MS = 12 * 60_000
"""With a step, less than the delay of the watermark: such events are late and counted."""
WINDOW_MS = 30 * 60_000
BEGIN_MS = 1_700_000_000_000 // WINDOW_MS * WINDOW_MS
MODULUS = 2**31 - 1
BATCHES = 2
STARTED_S = 300.0


def name(topic: str) -> TopicName:
    return TopicName.parse(f"topic://public/default/{topic}")


def events_of(step: int) -> list[tuple[str, int]]:
    """Keys and event times of one step, out of order."""
    now_ms = BEGIN_MS + step * STEP_MS
    keys = [f"key-{(n * n + step) % (3 if n % 3 else 23)}" for n in range(30)]
    return [(key, now_ms - (n * 7919 + step * 104_729) % LATE_MS) for n, key in enumerate(keys)]


class Twins:
    """Two topics with the same messages, of which one stays as it is."""

    def __init__(self, broker: BrokerProcess, root: Path) -> None:
        self.broker = broker
        self.sent: list[tuple[str, int]] = []
        self.counted: Counter[tuple[str, int]] = Counter()
        """By key and start of the window, without events that come after the end of their window."""
        self._root = root

    def publish(self, events: list[tuple[str, int]], *, too_late: bool = False) -> None:
        keys, values = [key for key, _ in events], [b"%d" % event_ms for _, event_ms in events]
        with anabranch.Client(self.broker.url) as client:
            for topic in (QUIET, BUSY):
                producer: anabranch.Producer[bytes] = client.create_producer(str(name(topic)))
                producer.send_many(values, keys)
        self.sent += events
        if not too_late:
            self.counted.update((key, event_ms // WINDOW_MS * WINDOW_MS) for key, event_ms in events)
        # The source takes the oldest messages first; steps must not share a millisecond.
        time.sleep(0.01)

    def reshard(self, admin: AdminClient) -> None:
        """Split the widest segment of the busy topic, or merge two neighbours if there are many."""
        segments: dict[str, Any] = plain(admin.topic_metadata(name(BUSY)))["segments"]
        active = sorted(
            (found["hashRange"]["start"], found["hashRange"]["end"], int(id_))
            for id_, found in segments.items()
            if found["state"] == "ACTIVE"
        )
        if len(active) > 3:
            admin.merge(name(BUSY), [id_ for _, _, id_ in active[1:3]])
        else:
            admin.split(name(BUSY), max(active, key=lambda part: part[1] - part[0])[2])

    def driver(self, *topics: str, ends: bool, rows: int) -> DriverProcess:
        chosen = {"topics": topics, "source": {"maxOffsetsPerTrigger": rows}, "ends": ends}
        words = [str(SCRIPT), self.broker.url, str(self._root), json.dumps(chosen)]
        return DriverProcess(words, self._root / "driver.log")

    def run_through_changes(self, admin: AdminClient, steps: range, rows: int) -> None:
        """Run a driver, publish and reshard while it reads, and kill it."""
        before = self._batches()
        driver = self.driver(BUSY, ends=False, rows=rows)
        try:
            deadline = time.monotonic() + STARTED_S
            for step in steps:
                self.publish(events_of(step))
                if step % 2:
                    self.reshard(admin)
                if step in (steps[2], steps[-1]):
                    while any(now < was + BATCHES for now, was in zip(self._batches(), before, strict=True)):
                        assert driver.running, driver.log_text[-6000:]
                        assert time.monotonic() < deadline, f"{self._batches()} batches, {before} before"
                        time.sleep(0.1)
                    before = self._batches() if step == steps[2] else before
            assert driver.running, driver.log_text[-6000:]
        finally:
            driver.kill()

    def read_all(self) -> None:
        driver = self.driver(QUIET, BUSY, ends=True, rows=400)
        try:
            driver.wait()
        finally:
            if driver.running:
                driver.kill()

    def _batches(self) -> list[int]:
        places = [self._root / BUSY / query / "checkpoint" for query in ("windows", "digests")]
        return [len(list((place / "commits").glob("[0-9]*"))) for place in places]

    def rows(self, topic: str, query: str) -> list[dict[str, Any]]:
        """The rows of all micro-batches, in order."""
        files = sorted((self._root / topic / query / "rows").glob("*.json"), key=lambda file: int(file.stem))
        return [row for file in files for row in json.loads(file.read_text())]


def test_state_is_that_of_a_quiet_topic_through_splits_merges_and_kills(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    broker = make_broker(**{"auto_scale.enabled": "false"}).start()
    twins = Twins(broker, tmp_path)
    with AdminClient(broker.http_url) as admin:
        admin.create_topic(name(QUIET), 1)
        admin.create_topic(name(BUSY), 2)
        twins.publish(events_of(0))
        twins.run_through_changes(admin, range(1, 13), 40)
        twins.read_all()
        # The watermark has passed the first windows: what comes now for them is dropped.
        twins.publish(events_of(1)[:10], too_late=True)
        twins.run_through_changes(admin, range(13, 25), 70)
        # An event far ahead closes all windows.
        twins.publish([("end", BEGIN_MS + 1000 * WINDOW_MS)])
        twins.read_all()
        segments = plain(admin.topic_metadata(name(BUSY)))["segments"]
    assert len(segments) > 8
    counted = {key: count for key, count in twins.counted.items() if key[0] != "end"}
    folded: dict[str, tuple[int, int]] = {}
    for key, event_ms in twins.sent:
        count, digest = folded.get(key, (0, 0))
        folded[key] = count + 1, (digest * 31 + event_ms) % MODULUS
    for topic in (QUIET, BUSY):
        found = [((row["name"], row["start"]), row["count"]) for row in twins.rows(topic, "windows")]
        assert len(found) == len(dict(found)), "a window was closed twice"
        assert dict(found) == counted, topic
        latest = {row["name"]: (row["count"], row["digest"]) for row in twins.rows(topic, "digests")}
        assert latest == folded, topic
