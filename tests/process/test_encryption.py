"""The section of docs/security.md on end-to-end encryption, executed as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from simulation.harness.process import BrokerProcess

GUIDE = Path(__file__).parents[2] / "docs" / "security.md"
BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_guide_to_encryption_works_as_it_is_written(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = make_broker().start()
    section = GUIDE.read_text().partition("\n## End-to-end encryption\n")[2].partition("\n## ")[0]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANABRANCH_URL": broker.url,
    }
    kinds, output = [], ""
    for kind, text in BLOCK.findall(section):
        kinds.append(kind)
        if kind == "text":
            assert output == text
            continue
        commands = {
            "sh": ["bash", "-euo", "pipefail", "-c", text],
            "python": [sys.executable, "-c", text.replace("pulsar://127.0.0.1:6650", broker.url)],
        }
        done = subprocess.run(
            commands[kind], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        output = done.stdout
    assert kinds == ["sh", "python", "sh", "text"]
    look = [sys.executable, "-m", "anabranch", "consume", "--from", "earliest", "--count", "1"]
    topic = re.search(r"anabranch consume (\S+)", section)
    assert topic is not None
    blind = subprocess.run([*look, topic[1]], env=environment, capture_output=True, text=True, timeout=60)
    assert (blind.returncode, "--decrypt" in blind.stderr) == (1, True), blind.stderr
