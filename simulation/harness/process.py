"""A real broker process to start, kill and restart; for process tests, interop, demo and benchmarks."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from anabranch.config.fields import OFF
from simulation.harness.ports import free_port

START_TIMEOUT_S = 90.0
"""On a machine that also starts Spark, a broker with workers takes half a minute to start."""


class BrokerProcess:
    """`anabranch serve` on one data directory; a restart keeps its ports, so clients find it again.

    With a setting `workers` above 1 the process is the supervisor; its workers have numbers.
    """

    def __init__(
        self, data: Path, settings: Mapping[str, object] | None = None, *, descriptors: int | None = None
    ) -> None:
        """`descriptors` is the limit of file descriptors, which the broker cannot raise."""
        self.data = data
        self.settings = dict(settings or {})
        self.descriptors = descriptors
        self.entrance: Sequence[str] = ()
        """A command that runs the broker, for instance in another namespace."""
        self.data_here = data
        """The data directory as this process reaches it."""
        # A port that the system chose could be that of an outgoing connection when the broker starts again.
        self.port = int(str(self.settings.pop("port", 0))) or free_port()
        self.http_port = int(str(self.settings.pop("http_port", 0))) or free_port()
        self.tls_port = self.https_port = OFF
        self.started_in_s = 0.0
        self._process: subprocess.Popen[str] | None = None
        self._log = data.parent / f"{data.name}.log"

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def tls_url(self) -> str:
        return f"pulsar+ssl://127.0.0.1:{self.tls_port}"

    @property
    def https_url(self) -> str:
        return f"https://127.0.0.1:{self.https_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def log_text(self) -> str:
        """The standard error of the broker over all its starts."""
        return self._log.read_text() if self._log.exists() else ""

    def start(self, failpoints: str = "") -> BrokerProcess:
        """Start the broker and wait for its ready line; `failpoints` is ANABRANCH_FAILPOINTS."""
        assert self._process is None, "the broker is running already"
        command = [sys.executable, "-m", "anabranch.cli.main", "serve", "--data", str(self.data)]
        command += ["--port", str(self.port), "--http-port", str(self.http_port)]
        command += self._setting_options()
        if self.descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {self.descriptors}; exec "$@"', "sh", *command]
        command = [*self.entrance, *command]
        began = time.monotonic()
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "ANABRANCH_FAILPOINTS": failpoints},
            )
        line = self._ready_line(began + START_TIMEOUT_S)
        self.started_in_s = time.monotonic() - began
        self._take_ports(line.split()[1:])
        return self

    def _setting_options(self) -> list[str]:
        """Options for all settings; secrets are in a file, because all users of a machine see arguments."""
        secrets = {key: value for key, value in self.settings.items() if str(value).startswith("data:")}
        options = [
            part
            for key, value in self.settings.items()
            if key not in secrets
            for part in ("--set", f"{key}={value}")
        ]
        if not secrets:
            return options
        file = self.data.parent / f"{self.data.name}.toml"
        file.touch(mode=0o600)
        file.write_text("".join(f'{key} = "{value}"\n' for key, value in secrets.items()))
        return [*options, "--config", str(file)]

    def _take_ports(self, urls: Sequence[str]) -> None:
        ports = {url.partition(":")[0]: int(url.rpartition(":")[2]) for url in urls}
        self.port = ports.get("pulsar", OFF)
        self.http_port = ports.get("http", OFF)
        self.tls_port = ports.get("pulsar+ssl", OFF)
        self.https_port = ports.get("https", OFF)
        for setting, port in (("tls_port", self.tls_port), ("https_port", self.https_port)):
            if port != OFF:
                self.settings[setting] = port

    def _ready_line(self, deadline: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        while time.monotonic() < deadline:
            if select.select([self._process.stdout], [], [], 0.1)[0]:
                line = self._process.stdout.readline()
                if line.startswith("ready "):
                    return line
                if not line:
                    break
        self.kill()
        raise RuntimeError(f"the broker did not become ready:\n{self.log_text[-4000:]}")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the broker and its workers."""
        if self.running:
            # The supervisor must not start another worker meanwhile.
            os.kill(self.pid, signal.SIGSTOP)
            for worker in self.children():
                os.kill(worker, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def kill_supervisor(self) -> None:
        """Send SIGKILL to the supervisor alone."""
        self._end(signal.SIGKILL)

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def owner_of(self, store: int) -> tuple[int, int] | None:
        """Return number and process of the worker that holds the lock of a store; None without a holder."""
        try:
            pid, word, name = (self.data_here / "stores" / str(store) / "LOCK").read_text().split()
        except (OSError, ValueError):
            return None
        if word != "broker" or not Path(f"/proc/{pid}").exists():
            return None
        return int(name.partition("/")[0]), int(pid)

    def kill_owner(self, store: int) -> None:
        """Send SIGKILL to the process that serves a store, and restart it if there is no supervisor."""
        owner = self.owner_of(store)
        assert owner is not None, f"no worker serves store {store}"
        if self.settings.get("workers", 1) == 1:
            self.kill()
            self.start()
        else:
            os.kill(owner[1], signal.SIGKILL)

    def worker(self, number: int, timeout_s: float = START_TIMEOUT_S) -> int:
        """Wait until a worker holds its own store; return its process."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = self.owner_of(number)
            if found is not None and found[0] == number:
                return found[1]
            time.sleep(0.01)
        raise TimeoutError(f"worker {number} does not hold its store:\n{self.log_text[-4000:]}")

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int:
        """Wait until the process ends by itself, for instance at a failpoint."""
        assert self._process is not None, "the broker is not running"
        code = self._process.wait(timeout_s)
        self._forget()
        return code

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            code = self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._forget()
        return code

    def _forget(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def memory_bytes(self) -> int:
        """Return the resident memory of the broker."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the kernel did not report the resident memory")

    def cpu_s(self) -> float:
        """Return the CPU time that the broker has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        """Return the number of file descriptors of the broker."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def __enter__(self) -> BrokerProcess:
        return self.start() if self._process is None else self

    def __exit__(self, *_error: object) -> None:
        self.stop()
