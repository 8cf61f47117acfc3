"""Segment storage under kills and power failures."""

from __future__ import annotations

from collections import Counter

import pytest

from anabranch.testing.simulation.storage_run import StorageRun

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
