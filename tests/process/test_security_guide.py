"""The five-minute guides of docs/security.md, executed command by command in an empty directory.

Blocks `sh` must succeed, and blocks `sh refused` must fail. A block `text` shows parts of the lines that the
block before it prints. A block of `anabranch serve` replaces the broker before it. Only ports are changed.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.harness.ports import free_port

GUIDE = Path(__file__).parents[2] / "docs" / "security.md"
SECTIONS = ("TLS in five minutes", "Tokens in five minutes")
BLOCK = re.compile(r"^```(sh refused|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KEPT = ("export ", "umask ")
"""Commands that hold for the rest of a terminal."""

PATIENCE_S = 60.0


def blocks() -> Iterator[tuple[str, str]]:
    """Kind and text of each block of the guides."""
    text = GUIDE.read_text()
    for name in SECTIONS:
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        found = BLOCK.findall(section)
        assert found, name
        yield from found


class GuideTerminals:
    """The terminal of the broker and the terminal of the reader."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = ""
        self._broker: subprocess.Popen[str] | None = None
        self._ports = {number: str(free_port()) for number in ("6651", "8443")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
        self._environment = {**clean, "PATH": path}

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        commands = self._local(text)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._kept + commands],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        self._kept += "".join(f"{line}\n" for line in commands.splitlines() if line.startswith(KEPT))
        return done

    def serve(self, text: str) -> None:
        """Start the broker in place of the one before, and wait until it is ready."""
        self.stop()
        with (self._folder / "broker.log").open("a") as log:
            self._broker = subprocess.Popen(
                ["bash", "-c", f"exec {self._local(text)}"],
                cwd=self._folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._broker.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while not select.select([self._broker.stdout], [], [], 1.0)[0]:
            assert time.monotonic() < deadline, "the broker did not become ready"
        line = self._broker.stdout.readline()
        assert line.startswith("ready "), (self._folder / "broker.log").read_text()

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.send_signal(signal.SIGINT)
            assert self._broker.wait(PATIENCE_S) == 0
            assert self._broker.stdout is not None
            self._broker.stdout.close()
            self._broker = None

    def _local(self, text: str) -> str:
        for number, free in self._ports.items():
            text = text.replace(number, free)
        return text


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[GuideTerminals]:
    made = GuideTerminals(tmp_path)
    yield made
    made.stop()


def test_the_guides_work_as_they_are_written(terminals: GuideTerminals, tmp_path: Path) -> None:
    output = ""
    kinds = []
    for kind, text in blocks():
        kinds.append(kind)
        if kind == "text":
            assert [line for line in text.splitlines() if line not in output] == [], output
        elif text.startswith("anabranch serve"):
            terminals.serve(text)
        else:
            done = terminals.run(text)
            output = done.stdout + done.stderr
            assert (done.returncode != 0) == (kind == "sh refused"), f"{text}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
    # Each refusal shows its reason, so that no command fails for another one.
    for number, kind in enumerate(kinds):
        assert kind != "sh refused" or kinds[number + 1] == "text"
    assert kinds.count("sh refused") == 4
    for file in (tmp_path / "keys").iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
