"""`anabranch pipeline` in processes of its own: what a user sees when Spark cannot start, or after Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulation.harness.process import BrokerProcess

pytestmark = pytest.mark.timeout(300)


def start(root: Path, *words: str) -> subprocess.Popen[str]:
    """Start a pipeline command with a Spark of its own."""
    command = [sys.executable, "-c", "from anabranch.cli.main import main; raise SystemExit(main())"]
    return subprocess.Popen([*command, "pipeline", *words], cwd=root, stderr=subprocess.PIPE, text=True)


def test_a_spark_that_cannot_start_is_an_error_without_a_trace(tmp_path: Path) -> None:
    with start(tmp_path, "verify", "orders", "--spark-conf", "spark.driver.memory=abc") as child:
        assert child.stderr is not None
        printed = child.stderr.read()
    assert child.returncode == 1
    assert "Invalid maximum heap size: -Xmxabc" in printed
    assert printed.splitlines()[-1].startswith("anabranch: [JAVA_GATEWAY_EXITED]")
    assert "Traceback" not in printed


def test_an_interrupted_load_leaves_without_the_traces_of_its_calls(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("n\n" + "\n".join(map(str, range(10_000))))
    words = ["load", "a.csv", "orders", "--url", broker.url, "--state", "state", "--rows-per-commit", "100"]
    with start(tmp_path, *words) as child:
        while not (tmp_path / "state/done/00000001.json").exists():
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        printed = child.stderr.read()
    assert child.returncode == 130
    assert "Exception while sending command" not in printed


def test_a_topic_that_does_not_exist_is_one_line_and_leaves_no_client_open(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with start(tmp_path, "verify", "orders", "--url", broker.url) as child:
        assert child.stderr is not None
        printed = child.stderr.read()
    assert child.returncode == 1
    assert printed.splitlines()[-1] == "anabranch: topic://public/default/orders does not exist"
