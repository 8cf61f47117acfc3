"""Pipelines as commands on a Spark cluster, one of which loses an executor in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import anabranch
from anabranch.admin.client import AdminClient
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from simulation.harness.spark_cluster import SparkCluster
from tests.harness.spark_drivers import DriverProcess
from tests.harness.stored_messages import numbers_by_key

from .pipeline_topics import KEYS

# A machine that is busy takes minutes for several starts of Spark.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

ORDERS = TopicName.parse("topic://public/default/orders")
COUNT = 800
ROWS = 200
"""Rows of one commit of the archive; its first commit has none."""
CONF = (
    "spark.executor.memory=512m",
    "spark.driver.memory=1g",
    "spark.ui.enabled=false",
    "spark.driver.host=127.0.0.1",
    # A killed executor counts as a failure of its tasks.
    "spark.task.maxFailures=20",
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("Spark needs Java 17, and there is no java here")
    with BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false"}) as process:
        yield process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path / "spark") as started:
        yield started


def kill_an_executor(cluster: SparkCluster, archiving: DriverProcess, commits: Path) -> None:
    """Kill an executor when the archive has two commits."""
    while len(list(commits.glob("[0-9]*.json"))) < 2 or not cluster.executor_pids():
        assert archiving.running, archiving.log_text[-4000:]
        time.sleep(0.02)
    os.kill(cluster.executor_pids()[0], signal.SIGKILL)
    assert len(list(commits.glob("[0-9]*.json"))) <= COUNT // ROWS, "the kill came too late"


def test_archive_load_and_replay_run_on_a_cluster(
    broker: BrokerProcess, cluster: SparkCluster, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    numbers = range(COUNT)
    rows = [f"key-{n % KEYS},{n}" for n in numbers]
    (tmp_path / "events.csv").write_text("\n".join(["key,value", *rows]))

    def run(name: str, *words: str) -> DriverProcess:
        given = ["--url", broker.url, "--master", cluster.url, *words]
        for setting in CONF:
            given += ["--spark-conf", setting]
        return DriverProcess(["-m", "anabranch.cli.main", "pipeline", name, *given], tmp_path / f"{name}.log")

    with anabranch.Client(broker.url) as client, AdminClient(broker.http_url) as admin:
        admin.create_topic(ORDERS, 2)
        producer: anabranch.Producer[bytes] = client.create_producer("orders")
        producer.send_many([b"%d" % n for n in numbers], [f"key-{n % KEYS}" for n in numbers])
        producer.close()
        archiving = run("archive", "orders", str(lake), "--rows-per-commit", str(ROWS), "--buckets", "2")
        try:
            kill_an_executor(cluster, archiving, lake / "_anabranch" / "commits")
            archiving.wait()
        finally:
            if archiving.running:
                archiving.kill()
        files = [str(tmp_path / "events.csv"), "loaded", "--key", "key", "--value", "value"]
        run("load", *files, "--state", str(tmp_path / "state-load")).wait()
        run("replay", str(lake), "orders", "--to", "again", "--state", str(tmp_path / "state-replay")).wait()
        expected = {f"key-{key}": list(range(key, COUNT, KEYS)) for key in range(KEYS)}
        assert numbers_by_key(client, "loaded") == expected
        assert numbers_by_key(client, "again") == expected
