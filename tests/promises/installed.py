"""The wheel of this checkout in a virtual environment of its own, and brokers that run from it.

The tests of this folder use what a user gets: nothing here imports the source tree, and programs run with
`python -I`, so that neither the current folder nor PYTHONPATH adds to what the wheel has installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKED = ("src", "csrc", "docs/package.md", "pyproject.toml", "MANIFEST.in", "LICENSE", "constraints.txt")
"""The files from which a wheel is built."""

START_S = 60.0
COMMAND_S = 60.0

PREAMBLE = """\
import asyncio, json, os, time
from anabranch import *
from anabranch.errors import *

url, admin_url = os.environ["ANABRANCH_URL"], os.environ["ANABRANCH_ADMIN_URL"]
"""

WIRE = """
import socket, struct
from anabranch.protocol.pb import pulsar_pb2 as pb

host, _, port = url.removeprefix("pulsar://").partition(":")
link = socket.create_connection((host, int(port)), timeout=20)

def ask(kind, number, body, entry=b""):
    command = pb.BaseCommand(type=number, **{kind: body}).SerializeToString()
    link.sendall(struct.pack(">II", 4 + len(command) + len(entry), len(command)) + command + entry)
    (size,) = struct.unpack(">I", link.recv(4, socket.MSG_WAITALL))
    frame = link.recv(size, socket.MSG_WAITALL)
    (length,) = struct.unpack(">I", frame[:4])
    return pb.BaseCommand.FromString(frame[4:4 + length])

ask("connect", pb.BaseCommand.CONNECT, pb.CommandConnect(client_version="raw", protocol_version=19))
"""
"""The beginning of a program that says on the wire what the client would not say."""


class InstalledPackage:
    """A virtual environment with the wheel and its extra `server`."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self.python = self.bin / "python"
        self.command = self.bin / "anabranch"

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a user: no setting of Anabranch or Python but those given."""
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ANABRANCH_", "PYTHON", "COVERAGE", "PYTEST"))
        }
        return {**own, "PATH": f"{self.bin}:{own['PATH']}", "COLUMNS": "100", **(extra or {})}


def install(builds: Path) -> InstalledPackage:
    """Build and install the wheel, unless an earlier run did so for the same sources."""
    folder = builds / _digest()
    builds.mkdir(parents=True, exist_ok=True)
    with (builds / "lock").open("w") as lock:
        # Tests in parallel processes share the environment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            for old in builds.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            _build(folder)
            (folder / "ready").touch()
    return InstalledPackage(folder)


def _build(folder: Path) -> None:
    sources = folder / "sources"
    for name in PACKED:
        origin, copy = ROOT / name, sources / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_dir():
            # Compiled files of the checkout must not stand in for those that the wheel should contain.
            shutil.copytree(origin, copy, ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
        else:
            shutil.copy(origin, copy)
    wheels = folder / "wheels"
    _pip(Path(sys.executable), "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(sources))
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    (wheel,) = wheels.glob("anabranch-*.whl")
    python = folder / "venv" / "bin" / "python"
    _pip(python, "install", "-c", str(ROOT / "constraints.txt"), f"{wheel}[server]")


def _pip(python: Path, *words: str) -> None:
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _digest() -> str:
    found = hashlib.sha256(sys.version.encode())
    for name in PACKED:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and path.suffix != ".so" and "__pycache__" not in path.parts:
                found.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode())
                found.update(path.read_bytes())
    return found.hexdigest()[:16]


class InstalledBroker:
    """`anabranch serve` of the installed package, with free ports and otherwise the defaults."""

    def __init__(self, package: InstalledPackage, folder: Path, *options: str) -> None:
        self.package, self.folder, self.options = package, folder, options
        self.port, self.http_port = free_port(), free_port()
        self.ready = ""
        """The line that said that the broker was ready."""
        self.entrance: Sequence[str] = ()
        """A command that starts the broker, for example in another namespace."""
        self._process: subprocess.Popen[str] | None = None
        self._log = folder / "broker.log"

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def log_text(self) -> str:
        return self._log.read_text()

    def start(self, **environment: str) -> InstalledBroker:
        """Start the broker in its folder and wait until it is ready."""
        words = ["serve", "--port", str(self.port), "--http-port", str(self.http_port), *self.options]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*self.entrance, str(self.package.command), *words],
                cwd=self.folder,
                env=self.package.environment(environment),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        found = select.select([self._process.stdout], [], [], START_S)[0]
        self.ready = self._process.stdout.readline() if found else ""
        if not self.ready.startswith("ready "):
            self.kill()
            raise AssertionError(f"the broker did not become ready:\n{self.log_text}")
        return self

    def kill(self, how: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal that ends the broker, and return its exit code; a second call does nothing."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        if how is signal.SIGKILL and process.poll() is None:
            # A supervisor that runs on would start a new worker for each that is killed.
            process.send_signal(signal.SIGSTOP)
            for worker in children(process.pid):
                os.kill(worker, signal.SIGKILL)
        process.send_signal(how)
        code = process.wait(START_S)
        if process.stdout is not None:
            process.stdout.close()
        return code

    def restart(self, **environment: str) -> None:
        """Kill the broker without warning, and start it on the same data and ports."""
        self.kill()
        self.start(**environment)

    def addresses(self) -> dict[str, str]:
        """The variables that tell commands and programs where the broker is."""
        return {"ANABRANCH_URL": self.url, "ANABRANCH_ADMIN_URL": self.http_url}

    def environment(self) -> dict[str, str]:
        return self.package.environment(self.addresses())

    def ask(self, *words: str, input_text: str = "") -> subprocess.CompletedProcess[str]:
        """Run an `anabranch` command, which may fail."""
        return subprocess.run(
            [str(self.package.command), *words],
            cwd=self.folder,
            env=self.environment(),
            input=input_text,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    def tell(self, *words: str) -> str:
        """Run an `anabranch` command that must succeed, and return its output."""
        done = self.ask(*words)
        assert done.returncode == 0, f"anabranch {' '.join(words)}: {done.stderr}"
        return done.stdout

    def program(self, text: str) -> subprocess.Popen[str]:
        """Start a Python program of a user; `url` and `admin_url` are the broker's addresses."""
        return subprocess.Popen(
            [str(self.package.python), "-I", "-c", PREAMBLE + textwrap.dedent(text)],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, text: str, timeout_s: float = COMMAND_S) -> Any:
        """Run a program to its end, and return the JSON that its last line holds."""
        return result(self.program(text), timeout_s)

    def request(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Make an admin request; returns the status and the body of any answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.http_url}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=COMMAND_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()


def result(program: subprocess.Popen[str], timeout_s: float = COMMAND_S) -> Any:
    """Wait for a program, and return the JSON that its last line holds."""
    try:
        out, err = program.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        program.kill()
        out, err = program.communicate()
        raise AssertionError(f"the program did not end; its output:\n{out}{err}") from None
    assert program.returncode == 0, out + err
    lines = out.splitlines()
    return json.loads(lines[-1]) if lines else None


def children(pid: int) -> list[int]:
    """The child processes of a process, oldest first."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def free_port() -> int:
    """A port that no server has, below those of outgoing connections, so that a restart finds it free."""
    for port in _PORTS:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("the numbers never end")


_PORTS = (20_000 + number % 12_000 for number in count(os.getpid() * 97))
"""Each process begins elsewhere, so that tests that run at the same time do not choose the same ports."""


def wait_until(condition: Any, why: str, patience_s: float = 30.0) -> Any:
    """Call until the answer is true, and return the answer."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {patience_s:.0f} s: {why}")
