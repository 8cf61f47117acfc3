"""The progress of a command: in place on a terminal, in plain lines elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import anabranch
from simulation.harness.process import BrokerProcess

pytestmark = pytest.mark.timeout(600)


def archive(broker: BrokerProcess, root: Path) -> list[str]:
    words = ["pipeline", "archive", "orders", str(root / "lake"), "--url", broker.url, "--master", "local[1]"]
    for setting in ("spark.driver.memory=1g", "spark.ui.enabled=false", "spark.driver.host=127.0.0.1"):
        words += ["--spark-conf", setting]
    return [sys.executable, "-m", "anabranch.cli.main", *words]


def on_terminal(command: list[str]) -> str:
    """Run a command whose standard error is a terminal; return what it writes there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "SPARK_LOCAL_IP": "127.0.0.1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    found = b""
    try:
        while True:
            found += os.read(ours, 65536)
    except OSError:
        # Linux reports the end of the other side so.
        pass
    finally:
        os.close(ours)
    assert process.wait() == 0, found.decode(errors="replace")
    return found.decode()


def elsewhere(command: list[str]) -> str:
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert done.stdout == b""
    return done.stderr.decode()


@pytest.mark.parametrize("run", [on_terminal, elsewhere])
def test_a_command_shows_its_progress(
    broker: BrokerProcess, tmp_path: Path, run: Callable[[list[str]], str]
) -> None:
    with anabranch.Client(broker.url) as client:
        producer: anabranch.Producer[bytes] = client.create_producer("orders")
        producer.send_many([b"%d" % n for n in range(50)])
        producer.close()
    text = run(archive(broker, tmp_path))
    lines = text.splitlines()
    # A terminal gets orders in front of the text, which remove the display of progress.
    assert re.search(r"50 rows added to .+/lake; it has 50 rows in \d+ files$", lines[-1]), lines[-1]
    shown = re.findall(r"archive: [\d,]+ rows, [\d,]+ rows/s", text)
    if run is on_terminal:
        assert len(shown) > 1
        assert "\x1b[2K" in text, "the progress stays on one line"
    else:
        # A short run may end before its first line of progress.
        assert "\x1b" not in text
        assert len(shown) == sum(line.startswith("archive: ") for line in lines)
