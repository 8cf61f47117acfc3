"""Makes Spark sessions whose workers find this package.

Spark starts workers with the `python3` of the search path unless it is told otherwise. If a job was started
as `.venv/bin/python job.py`, its workers then lack the package, and Spark reports an unknown format.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.spark.options.queries import text_of
from anabranch.spark.source.data_source import FORMAT, AnabranchSource

PYTHON = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""The variables that name the interpreter of workers; Spark's JVM reads them when it starts."""


def session(
    name: str = "anabranch", *, master: str | None = None, conf: Mapping[str, object] | None = None
) -> Any:
    """Return a Spark session whose workers use this interpreter, with the format registered.

    If the variable PYSPARK_PYTHON is already set, it is kept: on a cluster it names the interpreter of the
    packed environment. An existing session is returned as it is.

    Example:
        spark = session("orders", conf={"spark.driver.memory": "4g"})
    """
    from pyspark.sql import SparkSession

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


def register(spark: Any) -> None:
    """Register the format with a session.

    This is necessary if Spark's discovery is disabled, and in a local session that was started by an
    interpreter other than the first `python3` of the search path.

    Example:
        register(spark)
        orders = spark.read.format("anabranch").option("service.url", "pulsar://127.0.0.1:6650").load("orders")
        orders.select("key", "value").show()
    """
    _use_this_interpreter(spark)
    spark.dataSource.register(AnabranchSource)


def read_stream(
    spark: Any,
    service_url: str,
    topics: str | Sequence[str],
    *,
    schema: Any = None,
    options: Mapping[str, object] | None = None,
) -> Any:
    """Return a streaming DataFrame with as many tasks per micro-batch as the cluster runs at once.

    Plain `readStream` plans up to 32 tasks, because a reader cannot see the size of the cluster. `options`
    are the options of the format; a cut may be given as a dict.

    Example:
        options = {"startingOffsets": "earliest", "includeHeaders": True}
        orders = read_stream(spark, "pulsar://127.0.0.1:6650", "orders", options=options)
        query = orders.writeStream.format("noop").start()
        query.processAllAvailable()
        query.stop()
    """
    register(spark)
    named = topics if isinstance(topics, str) else ",".join(topics)
    stream = spark.readStream.format(FORMAT).option("service.url", service_url).option("subscribe", named)
    parallelism = _parallelism(spark)
    if parallelism is not None:
        stream = stream.option("maxPartitions", str(parallelism))
    stream = stream.options(**text_of(options or {}))
    return (stream if schema is None else stream.schema(schema)).load()


def _parallelism(spark: Any) -> int | None:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:
        # A Spark Connect session has no context; its error class depends on the version.
        return None


def _use_this_interpreter(spark: Any) -> None:
    """Let the workers of a local session run this interpreter, unless PYSPARK_PYTHON names one.

    This helps a session that was made without `session`, because Spark sends the interpreter along with the
    registered class. On a cluster, other machines may not have this path, so nothing is changed there.
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
