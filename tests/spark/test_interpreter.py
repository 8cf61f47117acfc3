"""A job that is started by an interpreter which is not the first python3 of the search path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A machine that is busy takes long to start Spark.
pytestmark = pytest.mark.timeout(600)

JOB = """
import sys
from pyspark.sql import SparkSession
from anabranch.spark import register, session

conf = {"spark.ui.enabled": False, "spark.log.level": "OFF", "spark.driver.memory": "1g"}
conf["spark.driver.bindAddress"] = conf["spark.driver.host"] = "127.0.0.1"
if sys.argv[1] == "session":
    spark = session("job", master="local[1]", conf=conf)
else:
    builder = SparkSession.builder.master("local[1]")
    for name, value in conf.items():
        builder = builder.config(name, str(value).lower())
    spark = builder.getOrCreate()
    register(spark)
try:
    spark.read.format("anabranch").option("subscribe", "orders").load()
except Exception as error:
    print("the source answered:", error)
print(spark.range(1).rdd.map(lambda row: sys.executable).collect())
"""


@pytest.mark.parametrize("way", ["session", "register"])
def test_workers_find_the_format_though_another_python3_comes_first(tmp_path: Path, way: str) -> None:
    # An interpreter without any package, as on a machine with several.
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 'the wrong interpreter was started' >&2\nexit 1\n")
    other.chmod(0o755)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    # Spark's own home too, which the session of other tests replaces.
    taken = ("PYSPARK_", "SPARK_HOME")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(taken)}
    environment["PATH"] = f"{other.parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(ROOT / "src")
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    done = subprocess.run(
        [sys.executable, str(job), way], env=environment, capture_output=True, text=True, timeout=300
    )
    assert "service.url is required" in done.stdout, done.stdout + done.stderr[-3000:]
    assert sys.executable in done.stdout.splitlines()[-1]
