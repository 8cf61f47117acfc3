"""A query from topic to topic on a broker with two workers, and the faults and changes that befall it.

`tests/harness/spark_copy.py` is the query, a driver in a process of its own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import anabranch
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from simulation.harness.spark_cluster import SparkCluster
from tests.harness.spark_drivers import COPY, DriverProcess
from tests.harness.stored_messages import messages_by_key

KEYS = [f"key-{number}" for number in range(40)]
SOURCE = TopicName.parse("topic://public/default/orders")
TARGET = TopicName.parse("topic://public/default/copy")
WORKERS = 2
SETTINGS = {
    "workers": WORKERS,
    "auto_scale.enabled": "false",
    "segment_retention_s": 0,
    "load_report_interval_s": 0.5,
}
ON_CLUSTER = {
    "spark.executor.memory": "512m",
    # Kills of executors count as failures of their tasks.
    "spark.task.maxFailures": "20",
    # A shuffle file on a killed executor is written again soon.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "200ms",
}
SPECULATED_S = 300.0
CHANGED_S = 60.0
"""A layout change waits so long for workers that were killed."""
PRUNED_S = 60.0
NOTED = "number"
"""A property of some messages: their value."""


class Pipeline:
    """A broker, a query from topic to topic, and the messages that were published."""

    def __init__(self, broker: BrokerProcess, cluster: SparkCluster, root: Path, seed: int) -> None:
        self.broker = broker
        self.cluster = cluster
        self.seed = seed
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.expected: dict[str, list[int]] = defaultdict(list)
        self._root = root
        self._next = 0
        self._segments: set[int] = set()
        """Segments of the source that were there, and still are as far as is known."""
        self._deck: list[Callable[[], None]] = []

    def create(self) -> None:
        with AdminClient(self.broker.http_url) as admin:
            for name in (SOURCE, TARGET):
                admin.create_topic(name, 2)
                # Messages stay until the query has read them, and in the target until the end.
                admin.create_subscription(name, "spark")

    def driver(self, *, on_cluster: bool, ends: bool = False, **more: object) -> DriverProcess:
        """Start the query with random options, and with these."""
        rng = self.rng
        source = {
            "maxOffsetsPerTrigger": rng.choice((None, 50, 400)),
            "maxBytesPerTrigger": rng.choice((None, None, "4k", "32k")),
            "minPartitions": rng.choice((None, 2, 4)),
            "maxPartitions": rng.choice((1, 2, 5)),
            "ordering": rng.choice((None, "key")),
            "bucketsPerSegment": rng.choice((1, 1, 3)),
            "chainSegments": rng.random() < 0.7,
            "includeHeaders": rng.random() < 0.5,
            **more,
        }
        chosen = {
            "source": source,
            "master": self.cluster.url if on_cluster else "local[2,4]",
            "conf": ON_CLUSTER if on_cluster else {},
            "shuffled": rng.random() < 0.5,
            "slow": on_cluster,
            "ends": ends,
            "recount": {"ordering": "none", "minPartitions": rng.choice((1, 3)), "splitBytes": "2k"},
        }
        self.say(f"driver {'on the cluster' if on_cluster else 'alone'}, ends: {ends}, {source}")
        words = [str(COPY), self.broker.url, str(self._root), json.dumps(chosen)]
        return DriverProcess(words, self._root / "driver.log")

    def say(self, text: str) -> None:
        """Write to the output of the test, which pytest shows when it fails."""
        print(time.strftime("%H:%M:%S"), text, flush=True)

    @property
    def batches(self) -> int:
        """The micro-batches that Spark has planned so far."""
        return len(list((self._root / "checkpoint" / "offsets").glob("[0-9]*")))

    def publish(self, count: int | None = None) -> None:
        """Publish messages that count up, some to each key; they are stored when this returns."""
        values = range(self._next, self._next + (count or self.rng.randrange(50, 400)))
        keys = self.rng.choices(KEYS, k=len(values))
        with anabranch.Client(self.broker.url) as client:
            producer: anabranch.Producer[bytes] = client.create_producer(str(SOURCE))
            # A few messages have a property.
            for key, value in zip(keys[:5], values[:5], strict=True):
                producer.send(b"%d" % value, key=key, properties={NOTED: str(value)})
            producer.send_many([b"%d" % value for value in values[5:]], keys=keys[5:])
        self._next = values.stop
        for key, value in zip(keys, values, strict=True):
            self.expected[key].append(value)

    def change_layout(self, kind: str) -> None:
        """Split, merge or rebucket a topic; tried again while workers are down."""
        deadline = time.monotonic() + CHANGED_S
        while True:
            try:
                self._change(self.rng.choice((SOURCE, TARGET)), kind)
                return
            except AnabranchError as error:
                if time.monotonic() > deadline:
                    raise
                self.say(f"{kind}: {error}")
                time.sleep(0.5)

    def _change(self, name: TopicName, kind: str) -> None:
        with AdminClient(self.broker.http_url) as admin:
            active = self._active(admin, name)
            if kind == "merge" and len(active) > 1:
                at = self.rng.randrange(1, len(active))
                admin.merge(name, active[at - 1 : at + 1])
            elif kind == "rebucket":
                admin.rebucket(name, self.rng.choice(active), bucket_count=self.rng.choice((2, 4)))
            else:
                kind = "split"
                admin.split(name, self.rng.choice(active))
        self.counts[kind] += 1
        self.say(f"{kind} of {name.local}, segments {active}")

    def _active(self, admin: AdminClient, name: TopicName) -> list[int]:
        """The active segments in the order of their ranges; counts those of the source that were pruned."""
        segments: dict[str, Any] = plain(admin.topic_metadata(name))["segments"]
        if name == SOURCE:
            found = {int(id_) for id_ in segments}
            self.counts["pruned"] += len(self._segments - found)
            self._segments = found
        return [
            int(id_)
            for id_, segment in sorted(segments.items(), key=lambda item: item[1]["hashRange"]["start"])
            if segment["state"] == "ACTIVE"
        ]

    def await_prune(self) -> None:
        """Wait until a segment that the query has read was pruned, in this life of the source or before."""
        deadline = time.monotonic() + PRUNED_S
        while True:
            with AdminClient(self.broker.http_url) as admin:
                self._active(admin, SOURCE)
            if self.counts["pruned"]:
                return
            assert time.monotonic() < deadline, "no segment of the source was pruned"
            time.sleep(0.5)

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker.start()
        self.counts["broker killed"] += 1
        self.say("broker killed")

    def kill_worker(self) -> None:
        """Kill one worker of the broker; the other one takes over, and the supervisor starts it again."""
        number = self.rng.randrange(WORKERS)
        os.kill(self.broker.worker(number), signal.SIGKILL)
        self.counts["worker killed"] += 1
        self.say(f"worker {number} killed")

    def kill_one(self, processes: list[int], kind: str) -> None:
        """Kill a process of Spark, if there is one; its tasks are tried again."""
        if processes:
            with suppress(ProcessLookupError):
                os.kill(self.rng.choice(processes), signal.SIGKILL)
                self.counts[f"{kind} killed"] += 1
                self.say(f"{kind} killed")

    def kill_worker_of_cluster(self) -> None:
        number = self.rng.randrange(2)
        self.cluster.kill_worker(number)
        self.cluster.start_worker(number)
        self.counts["worker of the cluster killed"] += 1
        self.say("worker of the cluster killed")

    def disturb(self) -> None:
        """Let the next event of the deck happen; each is in the deck once."""
        if not self._deck:
            self._deck = [
                self.publish,
                lambda: self.change_layout("split"),
                lambda: self.change_layout("merge"),
                lambda: self.change_layout("rebucket"),
                self.kill_broker,
                self.kill_worker,
            ]
            self.rng.shuffle(self._deck)
        self._deck.pop()()
        time.sleep(self.rng.uniform(0, 2))

    def kill_part_of_spark(self, driver: DriverProcess, *, on_cluster: bool) -> None:
        if not on_cluster:
            self.kill_one(driver.workers(), "Python worker")
        elif self.rng.random() < 0.5:
            self.kill_one(self.cluster.executor_pids(), "executor")
        else:
            self.kill_worker_of_cluster()

    def publish_until_speculated(self, driver: DriverProcess) -> None:
        """Publish until Spark has started a copy of a task that still ran."""
        deadline = time.monotonic() + SPECULATED_S
        while not (self._root / "speculated").exists():
            assert driver.running, driver.log_text[-6000:]
            assert time.monotonic() < deadline, "Spark has started no copy of a slow task"
            # Few, because the query may be slow and reads them all in the end.
            self.publish(20)
            time.sleep(1)
        self.counts["copy of a slow task"] += 1

    def recreate_source(self) -> None:
        """Delete the source and create it again; all its messages must be copied."""
        with AdminClient(self.broker.http_url) as admin:
            self._active(admin, SOURCE)
            admin.delete_topic(SOURCE, force=True)
            admin.create_topic(SOURCE, self.rng.choice((1, 3)))
            admin.create_subscription(SOURCE, "spark")
        self._segments = set()
        self.counts["recreated"] += 1
        self.say("source recreated")

    def run_to_the_end(self, **more: object) -> None:
        """Copy all that is there, and compare."""
        driver = self.driver(on_cluster=False, ends=True, **more)
        try:
            driver.wait()
        finally:
            if driver.running:
                driver.kill()
        assert self.copied() == self.expected, f"seed {self.seed}: {dict(self.counts)}"
        recounted = json.loads((self._root / "recount").read_text())
        assert recounted == [self._next, self._next], "a batch without key order finds other messages"

    def run_to_an_error(self) -> str:
        """Run the query, which must fail; returns what it wrote."""
        driver = self.driver(on_cluster=False, ends=True)
        before = len(driver.log_text)
        try:
            assert driver.wait_for_code() != 0, "the query has not failed"
        finally:
            if driver.running:
                driver.kill()
        return driver.log_text[before:]

    def copied(self) -> dict[str, list[int]]:
        with anabranch.Client(self.broker.url) as client:
            found = messages_by_key(client, str(TARGET))
        for message in chain.from_iterable(found.values()):
            noted = message.properties.get(NOTED)
            assert noted in (None, str(int(message.data)))
            self.counts["with a header"] += noted is not None
        return {key: [int(message.data) for message in messages] for key, messages in found.items()}
