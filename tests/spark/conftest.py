"""One small Spark for all tests of this directory: two cores, no web pages, nothing outside loopback."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulation.harness.process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("Spark needs Java 17, and there is no java here")
    from pyspark.sql import SparkSession

    from anabranch.spark.compiled_pyspark import use_compiled_pyspark

    scratch = tempfile.mkdtemp(prefix="anabranch-spark-")
    # Workers must find the package and these tests; a JVM passes its own environment on to them.
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    changed = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # A test writes this file to kill a Python process of the driver at a step of a commit.
        "ANABRANCH_FAILPOINTS": f"@{scratch}/failpoints",
    }
    before = {name: os.environ.get(name) for name in (*changed, "SPARK_HOME")}
    os.environ.update(changed)
    # Python processes start in half the time, which matters to Spark's limit of ten seconds.
    use_compiled_pyspark()
    session = (
        SparkSession.builder.master("local[2]")
        .appName("anabranch tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", scratch)
        .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose topics keep their layout; the sessions of this process with it end before it does."""
    from anabranch.spark.service import close_sessions

    with BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false"}) as process:
        yield process
        close_sessions()
