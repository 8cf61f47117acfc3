"""Lets Spark's Python processes load PySpark from bytecode, so that they start in half the time.

Spark puts its zipped copy of PySpark first in the search path. Python keeps no bytecode for modules in a zip
file, so each process compiles them again, which costs half a second of a core for each query and each new
worker.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_LINKED = ("bin", "sbin", "jars", "data")
"""The parts of Spark's home directory that a driver needs; the rest is its Python code."""


def use_compiled_pyspark() -> Path | None:
    """Set SPARK_HOME to a directory of links to the installed PySpark, without its zipped copy.

    Call it before the first session. Python processes of the driver, and of its executors in local mode, then
    load PySpark from the packages of their interpreter. Returns the new directory, or None if SPARK_HOME was
    already set and nothing changes.
    """
    import pyspark

    if "SPARK_HOME" in os.environ:
        return None
    home = Path(tempfile.mkdtemp(prefix="anabranch-spark-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    installed = Path(pyspark.__file__).parent
    for name in _LINKED:
        if (installed / name).exists():
            (home / name).symlink_to(installed / name)
    os.environ["SPARK_HOME"] = str(home)
    return home
