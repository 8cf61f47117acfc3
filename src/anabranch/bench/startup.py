"""Start to the ready line, and resident memory when idle."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from anabranch.bench.results import Row
from anabranch.testing.process import BrokerProcess


def run(scratch: Path, fast: bool) -> list[Row]:
    starts: list[float] = []
    memory: list[int] = []
    for number in range(3 if fast else 7):
        with BrokerProcess(scratch / f"data-{number}") as broker:
            starts.append(broker.started_in_s)
            time.sleep(1.0)
            memory.append(broker.memory_bytes())
    return [
        Row("start to ready, median", "s", statistics.median(starts), goal="at most 0.5 s"),
        Row("idle memory, median", "MB", statistics.median(memory) / 1e6, goal="at most 80 MB"),
    ]
