"""A Spark standalone cluster on this machine: a master and workers as processes, from PySpark's own jars."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from simulation.harness.ports import free_port

START_TIMEOUT_S = 300.0
"""On a busy machine, a JVM takes more than a minute to start."""
STOP_TIMEOUT_S = 10.0
REGISTERED = "Successfully registered with master"
"""In the log of a worker, once the master knows it."""


class SparkCluster:
    """A master and its workers; each worker gives an application one executor with `cores` cores."""

    def __init__(
        self, scratch: Path, workers: int = 2, *, cores: int = 1, memory: str = "1g", own_hosts: bool = False
    ) -> None:
        """`scratch` gets the logs and the directories of executors; `memory` is that of a worker.

        With `own_hosts` each worker has a loopback address of its own, as Linux allows: Spark copies slow
        tasks (`spark.speculation`) only to another host.
        """
        self._scratch = scratch
        self._count = workers
        self._cores = cores
        self._memory = memory
        self._own_hosts = own_hosts
        self._port = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """The master, as `SparkSession.builder.master` takes it."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def worker_pids(self) -> list[int]:
        return [process.pid for name, process in self._processes.items() if name != "master"]

    def executor_pids(self) -> list[int]:
        """The executors that run now: the children of the workers."""
        parents = {str(pid) for pid in self.worker_pids}
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if parent in parents and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return sorted(found)

    def start(self) -> SparkCluster:
        """Start all processes; returns when the master knows every worker."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        try:
            self._launch("master", "master.Master", "127.0.0.1", "--port", str(self._port))
            self._wait(self._master_listens, "master")
            for number in range(self._count):
                self.start_worker(number)
        except BaseException:
            self.stop()
            raise
        return self

    def start_worker(self, number: int) -> None:
        """Start one worker and wait until the master knows it; the number of a killed one is free again."""
        name = f"worker-{number}"
        log = self._log(name)
        before = log.read_text().count(REGISTERED) if log.exists() else 0
        options = ["--cores", str(self._cores), "--memory", self._memory]
        options += ["--work-dir", str(self._scratch / name), self.url]
        host = f"127.0.0.{number + 1}" if self._own_hosts else "127.0.0.1"
        self._launch(name, "worker.Worker", host, *options)
        self._wait(lambda: log.read_text().count(REGISTERED) > before, name)

    def kill_worker(self, number: int) -> None:
        """Kill a worker with SIGKILL; its executors notice that and end."""
        process = self._processes.pop(f"worker-{number}")
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all processes, workers first; a worker ends its executors."""
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def __enter__(self) -> SparkCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, name: str, class_name: str, host: str, *options: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{class_name}"]
        command += ["--host", host, "--webui-port", "0", *options]
        settings = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "512m"}
        environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, **settings}
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _log(self, name: str) -> Path:
        return self._scratch / f"{name}.log"

    def _master_listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True

    def _wait(self, ready: Callable[[], bool], name: str) -> None:
        until_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until_s and self._processes[name].poll() is None:
            if ready():
                return
            time.sleep(0.2)
        raise RuntimeError(f"Spark's {name} did not start:\n{self._log(name).read_text()[-4000:]}")
