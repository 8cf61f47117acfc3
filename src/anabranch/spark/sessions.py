"""A Spark session whose workers find this package.

Spark starts workers with the `python3` of the search path unless it is told otherwise. A job that was started
as `.venv/bin/python job.py` then lacks the package in its workers, and Spark reports an unknown format.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

PYTHON = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""The variables that name the interpreter of workers; Spark's JVM reads them when it starts."""


def session(
    name: str = "anabranch", *, master: str | None = None, conf: Mapping[str, object] | None = None
) -> Any:
    """Return a Spark session whose workers use this interpreter, with the format registered.

    A variable PYSPARK_PYTHON that is set already stays: on a cluster it names the interpreter of the packed
    environment. An existing session is returned as it is.

    Example:
        spark = session("orders", conf={"spark.driver.memory": "4g"})
    """
    from pyspark.sql import SparkSession

    from anabranch.spark.source import register

    for variable in PYTHON:
        os.environ.setdefault(variable, os.environ.get(PYTHON[0], sys.executable))
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for setting, value in (conf or {}).items():
        builder = builder.config(setting, str(value).lower() if isinstance(value, bool) else str(value))
    spark = builder.getOrCreate()
    register(spark)
    return spark


def use_this_interpreter(spark: Any) -> None:
    """Let the workers of a local session run this interpreter, unless PYSPARK_PYTHON names one.

    It helps a session that was made without `session`: the interpreter travels with the registered class. On
    a cluster another machine may not have this path, so nothing is changed there.
    """
    if os.environ.get(PYTHON[0]):
        return
    try:
        context = spark.sparkContext
    except Exception:
        # A Spark Connect session has no context; its error class depends on the version.
        return
    if context.master.startswith("local"):
        context.pythonExec = sys.executable
