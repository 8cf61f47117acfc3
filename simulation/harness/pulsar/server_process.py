"""A server process to start, stop, kill, pause and resume; it never outlives the process that started it."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

READY_S: Final = 300.0
"""On a busy machine, a JVM takes more than a minute to start."""
STOP_S: Final = 20.0

TETHER: Final = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Linux kills the process when its parent ends, also when the parent is killed (PR_SET_PDEATHSIG is 1)."""


class ServerProcess:
    """One command on one scratch directory; a restart uses the same ports and data."""

    def __init__(
        self, name: str, scratch: Path, command: Sequence[str], is_ready: Callable[[], bool]
    ) -> None:
        self.name = name
        self._scratch = scratch
        self._command = command
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log_text(self) -> str:
        log = self._scratch / f"{self.name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process, without waiting for it.

        Linux ends the process with the thread that started it: call this on the main thread.
        """
        assert not self.running, f"{self.name} is running already"
        # Ctrl-C must reach only the process that stops the servers in their order.
        with (self._scratch / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                tethered(self._command), stdout=log, stderr=log, cwd=self._scratch, start_new_session=True
            )

    def wait_ready(self) -> None:
        until_s = time.monotonic() + READY_S
        while self.running and time.monotonic() < until_s:
            if self._is_ready():
                return
            time.sleep(0.1)
        self.kill()
        raise RuntimeError(f"{self.name} did not become ready:\n{self.log_text[-4000:]}")

    def terminate(self) -> None:
        """Ask the process to end, without waiting for it."""
        if self._process is not None:
            self._process.terminate()
            # A paused process does not see the signal.
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the process in an orderly way; it is killed if that takes too long."""
        if self._process is None:
            return
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the process with SIGSTOP: it keeps its connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class PulsarProcess(ServerProcess):
    """A process with Pulsar's protocol and admin API on two ports of the loopback."""

    port: int
    web_port: int

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    def _is_healthy(self) -> bool:
        return answers(f"{self.http_url}/admin/v2/brokers/health")


def tethered(command: Sequence[str]) -> list[str]:
    """The command, which then ends with this process."""
    return [sys.executable, "-S", "-E", "-c", TETHER, str(os.getpid()), *command]


def answers(url: str, token: str = "") -> bool:
    """Whether an HTTP server answers this address with success; `token` proves a role."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5):
            return True
    except (OSError, http.client.HTTPException):
        return False


def listens(port: int) -> bool:
    """Whether a server accepts connections on this port of the loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
