"""Broken builds: a run that is likely to need the broken part, and the proof that a judge notices."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from simulation.run import run_one, step_of
from simulation.runs import cluster_run, control_run
from simulation.runs.shape import draw

SEEDS = 100

QUIET: dict[str, Any] = {
    **dict.fromkeys(("queue_consumers", "keyed_consumers", "intruders", "revocations", "liars", "kills"), 0),
    "link_faults": 0,
    "sender_deaths": 0,
    "deaths": (),
    "checkpoints": False,
    "guarded": False,
}
"""Values of a run with one stream and no other events."""


def favour(patch: pytest.MonkeyPatch, **chosen: Any) -> None:
    """Let every seed draw these values, so that the case is common; no run has a checkpoint group."""
    values = {"group_members": 0} | chosen
    patch.setattr(cluster_run, "draw", lambda rng, step: dataclasses.replace(draw(rng, step), **values))


def favour_control(patch: pytest.MonkeyPatch, **chosen: Any) -> None:
    """As `favour`, for runs with control processes."""
    honest = control_run.draw_control
    patch.setattr(control_run, "draw_control", lambda loop: dataclasses.replace(honest(loop), **chosen))


def assert_caught(*symptoms: str, step: str | None = None, first: int = 0) -> None:
    """Run seeds from `first` on until a finding contains one of the symptoms; `step` as in `run_one`."""
    for seed in range(first, first + SEEDS):
        found = run_one(seed, step or step_of(seed)).found
        if any(symptom in line for line in found for symptom in symptoms):
            return
    pytest.fail(f"not caught within {SEEDS} seeds")
