"""Spark drivers as processes of their own, which tests kill together with their JVM and Python workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from anabranch.spark.compiled_pyspark import use_compiled_pyspark

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "tests/harness/spark_copy.py"
"""A driver that copies one topic to another."""


class DriverProcess:
    """A Python program that uses Spark, in a session of its own; its output goes to a file.

    Python gets the words as its arguments: a script, or `-m` and a module.
    """

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self._log = log
        # Python processes start in half the time, which matters to Spark's limit of ten seconds.
        use_compiled_pyspark()
        paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SPARK_LOCAL_IP": "127.0.0.1"},
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill driver, JVM and workers at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self) -> None:
        """Wait for the end of the program; an AssertionError shows the output of one that failed."""
        assert self.wait_for_code() == 0, self.log_text[-6000:]

    def wait_for_code(self) -> int:
        """Wait for the end of the program; return its exit code."""
        return self._process.wait()

    def workers(self) -> list[int]:
        """The Python processes that run tasks: the forks of Spark's daemons."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if b"pyspark.daemon" in command and int(fields[3]) == self._process.pid:
                found.append((int(entry.name), int(fields[1])))
        daemons = {pid for pid, _ in found}
        return sorted(pid for pid, parent in found if parent in daemons)
