"""Deliberately broken builds: a checker counts only after one of them has made it fire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from anabranch.broker.local_segments import LocalSegments
from anabranch.client.checkpoint_consumer import AsyncCheckpointConsumer
from anabranch.controller.segments import Place, StartAt
from anabranch.ledger import cursors, recovery
from anabranch.ledger.disk import Write
from anabranch.ledger.filelog import FileLog
from anabranch.ledger.format import PartAcked, Step
from anabranch.model import assignment
from anabranch.model.acks import AckSet
from anabranch.model.ids import Checkpoint
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


def check_direct_parents_only(patch: pytest.MonkeyPatch) -> None:
    """An empty parent is drained at once, whatever its own parents still hold."""

    def assignable(layout: Layout, drained: frozenset[int]) -> tuple[Segment, ...]:
        return tuple(
            segment
            for segment in layout.segments.values()
            if drained.issuperset(segment.parents) and (segment.active or segment.id not in drained)
        )

    patch.setattr(assignment, "assignable", assignable)


def forget_a_subscription_on_one_child(patch: pytest.MonkeyPatch) -> None:
    honest = LocalSegments.create

    async def create(
        self: LocalSegments, place: Place, subscriptions: Mapping[str, StartAt], term: int
    ) -> None:
        assert place.name.segment is not None
        await honest(self, place, {} if place.name.segment.id % 2 else subscriptions, term)

    patch.setattr(LocalSegments, "create", create)


def forget_which_messages_of_an_entry_were_acknowledged(patch: pytest.MonkeyPatch) -> None:
    def play_whole_entries(acks: AckSet, steps: Iterable[Step]) -> None:
        cursors.play(acks, (step for step in steps if not isinstance(step, PartAcked)))

    patch.setattr(recovery, "play", play_whole_entries)


def leave_the_entry_at_hand_out_of_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    def checkpoint(self: AsyncCheckpointConsumer[bytes]) -> Checkpoint:
        return Checkpoint(dict(self._positions))

    patch.setattr(AsyncCheckpointConsumer, "checkpoint", checkpoint)


@pytest.mark.parametrize(
    ("mutate", "symptoms"),
    [
        (acknowledge_before_fsync, ("lost", "held")),
        (open_children_before_their_parents_are_drained, ("came after number",)),
        (forget_what_was_stored_of_each_producer, ("is stored at",)),
        (check_direct_parents_only, ("came after number", "came before")),
        (forget_a_subscription_on_one_child, ("lacks the subscription",)),
        (forget_which_messages_of_an_entry_were_acknowledged, ("came again after",)),
        (leave_the_entry_at_hand_out_of_a_checkpoint, ("was delivered twice",)),
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
