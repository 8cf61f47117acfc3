"""Makes Spark sessions with the settings that suit pipelines; every setting can be overridden."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anabranch.errors import InvalidConfigurationError

_LOGGING = Path(__file__).parent / "log4j2.properties"

_DEFAULTS = {
    # Takes effect when this process starts the JVM, before Spark logs anything.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    # Tasks of pipelines that write to topics are safe to repeat, but each repetition costs a staged copy.
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
}


def make_session(name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None) -> Any:
    """Return a session; `master` and `conf` override the defaults of Spark and of this function.

    Python workers run the interpreter of this process, unless PYSPARK_PYTHON or `spark.pyspark.python` names
    another one, as a cluster with a packed environment requires.

    Example:
        spark = pipelines.make_session("archive", conf={"spark.driver.memory": "4g"})
    """
    given = dict(conf or {})
    session_class = _session_class()
    if "spark.pyspark.python" not in given:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = session_class.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**_DEFAULTS, **given}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if "spark.sql.shuffle.partitions" not in given:
        spark.conf.set("spark.sql.shuffle.partitions", str(max(2, spark.sparkContext.defaultParallelism)))
    return spark


@contextmanager
def session_for(name: str, *, master: str | None, conf: Mapping[str, str]) -> Iterator[Any]:
    """Use the existing session of this process and leave it running, or make one and stop it at the end."""
    present = _session_class().getActiveSession()
    _hide_traces()
    spark = present or make_session(name, master=master, conf=conf)
    try:
        yield spark
    finally:
        if present is None:
            spark.stop()


def _hide_traces() -> None:
    """Keep PySpark from printing traces of failed expressions and of Ctrl-C; a command reports the reason."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel("CRITICAL")
    logging.getLogger().addFilter(_is_worth_printing)


def _is_worth_printing(record: logging.LogRecord) -> bool:
    """Whether a record is anything but Py4J's report of a call that the user interrupted."""
    return record.msg != "Exception while sending command."


def make_known(spark: Any) -> None:
    """Make the format `anabranch` known to readers and writers of this thread.

    Spark's own discovery fails for a whole session if a busy machine starts its worker too slowly. And a
    writer finds a registered format only in the active session of its thread, which a new thread lacks.
    """
    from anabranch.spark.sessions import register

    register(spark)
    # Creating a DataFrame makes its session the active one.
    spark.createDataFrame([], "none int")


def _session_class() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise InvalidConfigurationError(
            "pipelines need PySpark; install it with `pip install 'anabranch[spark]'`"
        ) from None
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise InvalidConfigurationError(
            "pipelines need Java 17 for Spark; no `java` was found, nor JAVA_HOME"
        )
    return SparkSession
