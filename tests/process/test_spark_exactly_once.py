"""From a topic through Spark to a topic, while everything dies and changes: each message once, in key order.

`SPARK_ROUNDS` sets the number of drivers that are killed, and `SPARK_SEED` the random choices. A round starts
a driver with other options, publishes, changes the layouts of both topics, kills the broker, one of its
workers and processes of Spark, and kills the driver. Segments are pruned as soon as the query has read them.
After every third round the source is deleted and created again. The first driver, and some others, use a
cluster of two workers, on which Spark starts copies of slow tasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.harness.spark_cluster import SparkCluster

from .conftest import MakeBroker
from .spark_pipeline import SETTINGS, Pipeline

ROUNDS = int(os.environ.get("SPARK_ROUNDS", "10"))
SEED = int(os.environ.get("SPARK_SEED", "1"))
EVENTS = 6

# A busy machine takes long for several starts of Spark.
pytestmark = pytest.mark.timeout(3000 + 600 * ROUNDS)

ALWAYS = (
    "split",
    "merge",
    "rebucket",
    "pruned",
    "broker killed",
    "worker killed",
    "executor killed",
    "driver killed",
    "copy of a slow task",
    "recreated",
)
IN_LONG_RUNS = ("worker of the cluster killed", "Python worker killed", "with a header")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path / "spark", own_hosts=True) as started:
        yield started


def run_and_kill(pipeline: Pipeline, *, on_cluster: bool) -> None:
    """Start a driver, disturb it once it works, and kill it."""
    before = pipeline.batches
    driver = pipeline.driver(on_cluster=on_cluster)
    try:
        pipeline.publish()
        while pipeline.batches == before and driver.running:
            time.sleep(0.1)
        pipeline.publish()
        if on_cluster:
            pipeline.kill_one(pipeline.cluster.executor_pids(), "executor")
        at = pipeline.rng.randrange(EVENTS)
        for event in range(EVENTS):
            pipeline.disturb()
            if event == at:
                pipeline.kill_part_of_spark(driver, on_cluster=on_cluster)
        if on_cluster:
            pipeline.publish_until_speculated(driver)
        assert driver.running, driver.log_text[-6000:]
    finally:
        driver.kill()
        pipeline.counts["driver killed"] += 1


def recreate(pipeline: Pipeline) -> None:
    """Create the source again: a query that must not lose data fails, and one that may continues."""
    pipeline.run_to_the_end()
    # The subscription of a query follows a micro-batch when Spark plans the next one.
    pipeline.publish()
    pipeline.run_to_the_end()
    pipeline.await_prune()
    pipeline.recreate_source()
    pipeline.publish()
    assert "deleted and created again" in pipeline.run_to_an_error()
    pipeline.run_to_the_end(failOnDataLoss=False)


def test_each_message_is_copied_once_and_in_order(
    make_broker: MakeBroker, cluster: SparkCluster, tmp_path: Path
) -> None:
    pipeline = Pipeline(make_broker(**SETTINGS).start(), cluster, tmp_path, SEED)
    pipeline.create()
    pipeline.publish()
    for number in range(ROUNDS):
        run_and_kill(pipeline, on_cluster=number == 0 or pipeline.rng.random() < 0.5)
        pipeline.publish()
        pipeline.change_layout("split")
        if number % 3 == 2:
            recreate(pipeline)
    recreate(pipeline)
    pipeline.say(str(dict(pipeline.counts)))
    wanted = ALWAYS if ROUNDS < 10 else ALWAYS + IN_LONG_RUNS
    assert not [event for event in wanted if not pipeline.counts[event]], pipeline.counts
