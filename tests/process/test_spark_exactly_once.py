"""From a topic through Spark to a topic, while everything dies and changes: each message once, in key order.

`SPARK_ROUNDS` sets the number of drivers that are killed, and `SPARK_SEED` the random choices. A round starts
a driver with other options, publishes, changes the layouts of both topics, kills the broker or processes of
Spark, and kills the driver. Segments are pruned as soon as the query has read them. The first driver, and
some others, use a cluster of two workers, on which Spark starts copies of slow tasks.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.errors import AnabranchError
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.names import TopicName
from anabranch.testing.process import BrokerProcess
from anabranch.testing.spark_cluster import SparkCluster
from tests.harness.spark_drivers import DriverProcess

from .conftest import MakeBroker

# A busy machine takes long for several starts of Spark.
pytestmark = pytest.mark.timeout(3600)

ROUNDS = int(os.environ.get("SPARK_ROUNDS", "1"))
SEED = int(os.environ.get("SPARK_SEED", "1"))
EVENTS = 6
KEYS = [f"key-{number}" for number in range(40)]
SOURCE = TopicName.parse("topic://public/default/orders")
TARGET = TopicName.parse("topic://public/default/copy")
COPY = Path(__file__).parent / "spark_copy.py"
SETTINGS = {"auto_scale.enabled": "false", "segment_retention_s": 0, "load_report_interval_s": 0.5}


ON_CLUSTER = {
    "spark.executor.memory": "512m",
    # Kills of executors count as failures of their tasks.
    "spark.task.maxFailures": "20",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "200ms",
}
SPECULATED_S = 300.0


class Pipeline:
    """A broker, a query from topic to topic, and the messages that were published."""

    def __init__(self, broker: BrokerProcess, cluster: SparkCluster, root: Path) -> None:
        self.broker = broker
        self.cluster = cluster
        self.rng = random.Random(SEED)
        self.counts: Counter[str] = Counter()
        self.expected: dict[str, list[int]] = defaultdict(list)
        self._root = root
        self._next = 0

    def driver(self, *, on_cluster: bool, ends: bool = False, **more: object) -> DriverProcess:
        """Start the query with random options, and with these."""
        rng = self.rng
        source = {
            "maxOffsetsPerTrigger": rng.choice((None, 50, 400)),
            "maxPartitions": rng.choice((1, 2, 5)),
            "bucketsPerSegment": rng.choice((1, 1, 3)),
            "chainSegments": rng.random() < 0.7,
            **more,
        }
        chosen = {
            "source": source,
            "master": self.cluster.url if on_cluster else "local[2,4]",
            "conf": ON_CLUSTER if on_cluster else {},
            "shuffled": rng.random() < 0.5,
            "slow": on_cluster,
            "ends": ends,
        }
        words = [str(COPY), self.broker.url, str(self._root), json.dumps(chosen)]
        return DriverProcess(words, self._root / "driver.log")

    @property
    def batches(self) -> int:
        """The micro-batches that Spark has planned so far."""
        return len(list((self._root / "checkpoint" / "offsets").glob("[0-9]*")))

    def publish(self) -> None:
        """Publish messages that count up, some to each key; they are stored when this returns."""
        values = range(self._next, self._next + self.rng.randrange(50, 400))
        keys = self.rng.choices(KEYS, k=len(values))
        with anabranch.Client(self.broker.url) as client:
            producer: anabranch.Producer[bytes] = client.create_producer(str(SOURCE))
            producer.send_many([b"%d" % value for value in values], keys=keys)
        self._next = values.stop
        for key, value in zip(keys, values, strict=True):
            self.expected[key].append(value)

    def change_layout(self) -> None:
        """Split, merge or rebucket a topic; a change that the layout does not allow is left out."""
        name = self.rng.choice((SOURCE, TARGET))
        with AdminClient(self.broker.http_url) as admin, suppress(AnabranchError):
            segments: dict[str, Any] = plain(admin.topic_metadata(name))["segments"]
            active = sorted(
                (found["hashRange"]["start"], int(id_))
                for id_, found in segments.items()
                if found["state"] == "ACTIVE"
            )
            at = self.rng.randrange(len(active))
            if len(active) > 1 and self.rng.random() < 0.5:
                at = max(1, at)
                admin.merge(name, [active[at - 1][1], active[at][1]])
                self.counts["merge"] += 1
            elif self.rng.random() < 0.7:
                admin.split(name, active[at][1])
                self.counts["split"] += 1
            else:
                admin.rebucket(name, active[at][1], bucket_count=self.rng.choice((2, 4)))
                self.counts["rebucket"] += 1

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker.start()
        self.counts["broker killed"] += 1

    def kill_one(self, processes: list[int], kind: str) -> None:
        """Kill a process of Spark, if there is one; its tasks are tried again."""
        if processes:
            with suppress(ProcessLookupError):
                os.kill(self.rng.choice(processes), signal.SIGKILL)
                self.counts[f"{kind} killed"] += 1

    def kill_worker_of_cluster(self) -> None:
        number = self.rng.randrange(2)
        self.cluster.kill_worker(number)
        self.cluster.start_worker(number)
        self.counts["worker of the cluster killed"] += 1

    def publish_until_speculated(self, driver: DriverProcess) -> None:
        """Publish until Spark has started a copy of a task that still ran."""
        deadline = time.monotonic() + SPECULATED_S
        while not (self._root / "speculated").exists():
            assert driver.running, driver.log_text[-6000:]
            assert time.monotonic() < deadline, "Spark has started no copy of a slow task"
            self.publish()
            time.sleep(1)
        self.counts["copy of a slow task"] += 1

    def recreate_source(self) -> None:
        with AdminClient(self.broker.http_url) as admin:
            admin.delete_topic(SOURCE, force=True)
            admin.create_topic(SOURCE, 3)
            admin.create_subscription(SOURCE, "spark")

    def run_to_the_end(self, **more: object) -> None:
        """Copy all that is there, and compare."""
        driver = self.driver(on_cluster=False, ends=True, **more)
        try:
            driver.wait()
        finally:
            if driver.running:
                driver.kill()
        assert self.copied() == self.expected, f"seed {SEED}: {dict(self.counts)}"

    def copied(self) -> dict[str, list[int]]:
        with anabranch.Client(self.broker.url) as client:
            consumer: Any = client.create_checkpoint_consumer(str(TARGET), start=Checkpoint.earliest())
            found: dict[str, list[int]] = defaultdict(list)
            while messages := consumer.receive_many(1000, timeout=3):
                for message in messages:
                    found[str(message.key)].append(int(message.value))
        return found

    def disturb(self, driver: DriverProcess, *, on_cluster: bool) -> None:
        of_spark: list[Callable[[], None]] = [
            lambda: self.kill_one(self.cluster.executor_pids(), "executor"),
            self.kill_worker_of_cluster,
        ]
        events: list[Callable[[], None]] = [
            self.publish,
            self.publish,
            self.change_layout,
            self.change_layout,
            self.kill_broker,
            *(of_spark if on_cluster else [lambda: self.kill_one(driver.workers(), "Python worker")]),
        ]
        self.rng.choice(events)()
        time.sleep(self.rng.uniform(0, 2))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path / "spark", own_hosts=True) as started:
        yield started


def run_and_kill(pipeline: Pipeline, *, on_cluster: bool) -> None:
    """Start a driver, disturb it once it works, and kill it."""
    before = pipeline.batches
    driver = pipeline.driver(on_cluster=on_cluster)
    try:
        while pipeline.batches == before and driver.running:
            time.sleep(0.1)
        pipeline.publish()
        if on_cluster:
            pipeline.kill_one(pipeline.cluster.executor_pids(), "executor")
        for _ in range(EVENTS):
            pipeline.disturb(driver, on_cluster=on_cluster)
        if on_cluster:
            pipeline.publish_until_speculated(driver)
        assert driver.running, driver.log_text[-6000:]
    finally:
        driver.kill()
        pipeline.counts["driver killed"] += 1


def test_each_message_is_copied_once_and_in_order(
    make_broker: MakeBroker, cluster: SparkCluster, tmp_path: Path
) -> None:
    pipeline = Pipeline(make_broker(**SETTINGS).start(), cluster, tmp_path)
    with AdminClient(pipeline.broker.http_url) as admin:
        for name in (SOURCE, TARGET):
            admin.create_topic(name, 2)
            # Messages stay until the query has read them, and in the target until the end.
            admin.create_subscription(name, "spark")
    pipeline.publish()
    for number in range(ROUNDS):
        run_and_kill(pipeline, on_cluster=number == 0 or pipeline.rng.random() < 0.5)
        pipeline.publish()
        pipeline.change_layout()
    pipeline.run_to_the_end()
    pipeline.recreate_source()
    pipeline.publish()
    pipeline.run_to_the_end(failOnDataLoss=False)
    print(dict(pipeline.counts))
    assert pipeline.counts["executor killed"]
