"""Deliberately broken builds: a checker counts only after one of them has made it fire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from anabranch.ledger.disk import Write
from anabranch.ledger.filelog import FileLog
from anabranch.model import assignment
from anabranch.model.layout import Layout, Segment
from anabranch.testing.run import run_one, step_of
from anabranch.testing.simdisk import SimDisk

SEEDS = 100


def acknowledge_before_fsync(patch: pytest.MonkeyPatch) -> None:
    honest = SimDisk.append

    async def append(self: SimDisk, writes: Sequence[Write], *, sync: bool = False) -> None:
        await honest(self, writes, sync=False)

    patch.setattr(SimDisk, "append", append)


def open_children_before_their_parents_are_drained(patch: pytest.MonkeyPatch) -> None:
    def assignable(layout: Layout, drained: frozenset[int]) -> tuple[Segment, ...]:
        return tuple(s for s in layout.segments.values() if s.active or s.id not in drained)

    patch.setattr(assignment, "assignable", assignable)


def forget_what_was_stored_of_each_producer(patch: pytest.MonkeyPatch) -> None:
    def producer_sequences(self: FileLog) -> Mapping[str, int]:
        return {}

    patch.setattr(FileLog, "producer_sequences", producer_sequences)


@pytest.mark.parametrize(
    ("mutate", "symptoms"),
    [
        (acknowledge_before_fsync, ("lost", "held")),
        (open_children_before_their_parents_are_drained, ("came after number",)),
        (forget_what_was_stored_of_each_producer, ("is stored at",)),
    ],
)
def test_a_broken_build_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], symptoms: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    for seed in range(SEEDS):
        found = run_one(seed, step_of(seed)).found
        if any(symptom in line for line in found for symptom in symptoms):
            return
    pytest.fail(f"not caught within {SEEDS} seeds")
