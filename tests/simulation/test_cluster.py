"""Brokers and their clients in one virtual-time loop: splits under load, crashes at each step, healing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from simulation.run import run_one
from simulation.runs.shape import FAILPOINTS

SEEDS_PER_STEP = 1
RANDOM_SEEDS = 10
"""A few runs for developers; `make sim` has hundreds."""


@pytest.mark.parametrize("step", FAILPOINTS)
def test_a_crash_at_a_step_loses_nothing_and_keeps_the_order(step: str) -> None:
    for seed in range(SEEDS_PER_STEP):
        result = run_one(seed, step)
        assert result.found == [], f"python -m simulation.run --seed {seed} --step {step}"
        assert result.counts[f"died at {step}"], f"seed {seed} never reached {step}"


@pytest.mark.parametrize("seed", range(RANDOM_SEEDS))
def test_crashes_at_random_times_lose_nothing_and_keep_the_order(seed: int) -> None:
    result = run_one(seed, None)
    assert result.found == [], f"python -m simulation.run --seed {seed}"


@pytest.mark.parametrize("chosen", [("3", "--step", "split.sealed"), ("2",), ("25",)])
def test_one_seed_gives_one_trace_under_any_hash_seed(chosen: tuple[str, ...]) -> None:
    """The last two have three brokers, queue and checkpoint consumers, a pause and a seek."""
    outputs = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "simulation.run", "--seed", *chosen]
        environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)}
        outputs.add(
            subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=100, check=True
            ).stdout
        )
    assert len(outputs) == 1
