"""Segment storage under kills and power failures."""

from __future__ import annotations

from collections import Counter

import pytest

from anabranch.errors import DamagedEntriesError
from anabranch.ledger import ledger_files
from anabranch.ledger.format import records
from simulation.runs.storage_run import StorageRun

SEEDS = range(60)
SOMETIMES = (
    "crashed while working",
    "crashed while recovering",
    "confirmed",
    "acknowledged",
    "sealed",
    "inherited",
    "torn",
    "holes",
    "zeros",
    "dropped",
    "kept",
    "name lost",
    "bit flipped",
    "entry damaged",
)


def test_confirmed_writes_survive_every_crash() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        simulation = StorageRun(seed)
        assert simulation.run() == [], f"seed {seed}"
        counts.update(simulation.counts)
    assert [name for name in SOMETIMES if not counts[name]] == [], (
        "these never happened; the test is too tame"
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_one_seed_gives_one_trace(seed: int) -> None:
    first, second = StorageRun(seed), StorageRun(seed)
    first.run()
    second.run()
    assert first.loop.digest == second.loop.digest


def test_a_store_that_believes_damaged_records_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "extend_checksum", lambda before, data: 0)
    found = (line for seed in SEEDS for line in StorageRun(seed).run())
    assert any("holds other entries than were written" in line for line in found)


def test_a_store_that_gives_up_a_whole_read_for_one_record_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class WholeReadError(DamagedEntriesError):
        def __init__(self, text: str, first: int = 0, end: int = 0, messages: int = 0) -> None:
            super().__init__(text, max(first - 1, 0), end, messages)
            self.end += 1

    monkeypatch.setattr(ledger_files, "DamagedEntriesError", WholeReadError)
    found = (line for seed in SEEDS for line in StorageRun(seed).run())
    assert any("are damaged" in line for line in found)
