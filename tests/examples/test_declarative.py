"""The Declarative Pipelines project of the examples, run by `spark-pipelines` as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.spark.compiled_pyspark import use_compiled_pyspark
from simulation.harness.process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]

# A machine that is busy takes long to start Spark.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false"}) as process:
        yield process


def order(minute: int, customer: str, amount: float) -> bytes:
    return json.dumps(
        {"at": f"2026-01-01T10:{minute:02}:00Z", "customer": customer, "amount": amount}
    ).encode()


def send(broker: BrokerProcess, *values: bytes) -> None:
    with anabranch.Client(broker.url) as client:
        producer = client.create_producer("orders")
        producer.send_many(list(values), keys=[str(number) for number in range(len(values))])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, with its storage beside it."""
    copied = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "declarative", copied)
    spec = copied / "spark-pipeline.yml"
    storage = (copied / "s").as_uri()
    spec.write_text(spec.read_text().replace("file:///tmp/anabranch-orders-pipeline", storage))
    return copied


def run_project(project: Path, broker: BrokerProcess, *arguments: str) -> str:
    """Run a command of `spark-pipelines`, and return its output."""
    # Python processes start in half the time, which matters to Spark's limit of ten seconds.
    use_compiled_pyspark()
    home = os.environ["SPARK_HOME"]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT / "src"),
        "ANABRANCH_URL": broker.url,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings = [
        "--conf",
        "spark.sql.catalogImplementation=hive",
        "--conf",
        "spark.driver.memory=1g",
        "--conf",
        "spark.ui.enabled=false",
    ]
    command = [
        f"{home}/bin/spark-pipelines",
        *arguments,
        *settings,
    ]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def received(broker: BrokerProcess, count: int) -> list[tuple[str, Any]]:
    with anabranch.Client(broker.url) as client:
        consumer = client.create_checkpoint_consumer("totals", start=anabranch.Checkpoint.earliest())
        found: list[Any] = []
        while len(found) < count:
            messages = consumer.receive_many(100, timeout=20)
            assert messages, f"only {found} came"
            found += [(str(message.key), json.loads(message.data)) for message in messages]
        assert not consumer.receive_many(1, timeout=0.5), "more came than expected"
    return sorted(found, key=lambda pair: (pair[1]["minute"], pair[0]))


def total(minute: int, orders: int, amount: float) -> dict[str, Any]:
    return {"minute": f"2026-01-01T10:{minute:02}:00.000Z", "orders": orders, "amount": amount}


def test_a_dry_run_finds_the_project_sound(broker: BrokerProcess, project: Path) -> None:
    assert "Run is COMPLETED" in run_project(project, broker, "dry-run")


def test_the_project_goes_from_topic_to_topic_and_resumes(broker: BrokerProcess, project: Path) -> None:
    send(
        broker,
        order(0, "ann", 10.0),
        order(0, "ann", 2.5),
        order(0, "bob", 1.0),
        order(0, "test", 99.0),
        order(0, "ann", -5.0),
        b"nonsense",
        order(1, "ann", 7.0),
    )
    run_project(project, broker, "run")
    first = [("ann", total(0, 2, 12.5)), ("bob", total(0, 1, 1.0))]
    assert received(broker, 2) == first
    send(broker, order(1, "bob", 3.0), order(2, "bob", 4.0))
    run_project(project, broker, "run")
    assert received(broker, 4) == [*first, ("ann", total(1, 1, 7.0)), ("bob", total(1, 1, 3.0))]
