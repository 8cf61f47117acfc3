"""The example of typed values, as its readers run it."""

from __future__ import annotations

import subprocess
import sys

from .conftest import MakeBroker


def test_the_example_prints_typed_values(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    command = [sys.executable, "examples/schemas.py", broker.url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.splitlines() == [
        "2 x tea",
        "deleted",
        "{'item': 'tea', 'count': 2, 'note': None}",
    ], run.stderr
    assert broker.stop() == 0
