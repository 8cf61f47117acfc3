"""Broken builds of lanes, each of which the judges of the simulation must notice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from anabranch.broker.dispatch.keyed import KeyedDispatch
from anabranch.broker.dispatch.lanes import Lane
from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.dispatch.spilled import SpillNote
from anabranch.broker.serving.side_logs import spilling_cursor
from simulation.runs import shape
from tests.harness.mutants import QUIET, assert_caught, favour

OUT_OF_ORDER = ("came after number", "came before")

STUCK: dict[str, Any] = {
    **QUIET,
    "consumers": 4,
    "keyed_consumers": 3,
    "stuck": 0.1,
    "keys": 5,
    "queue_size": 10,
    "churn": 0,
    "late_subscriptions": 0,
    "auto_scale": False,
    "seeks": 0,
}
RESTARTED: dict[str, Any] = {
    **STUCK,
    "kills": 4,
    "workers": 1,
    "busy_s": 4.0,
    "messages": 100,
    "producers": 2,
}


def _write_notes_often(patch: pytest.MonkeyPatch) -> None:
    settings = {"lane_note_entries": 1, "lane_unacked_s": 0.3, "lane_retained_bytes": 2**30}
    patch.setattr(shape, "draw_lanes", lambda rng: settings)


def test_an_entry_that_passes_its_lane_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def offer(self: KeyedDispatch, ordinal: int, slot: int, messages: int, **rest: Any) -> Receiver | None:
        owner = self._selector.owner(slot)
        if owner is not None and owner.ready and self._outstanding_at.get(slot, owner) is owner:
            self._charge(owner, slot, messages)
            return owner
        self.let_wait(ordinal, slot, **rest)
        return None

    favour(monkeypatch, **STUCK)
    monkeypatch.setattr(KeyedDispatch, "offer", offer)
    assert_caught(*OUT_OF_ORDER, first=17)


def test_a_lane_that_gives_its_last_entry_first_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Lane.pop

    def pop(self: Lane) -> int:
        self.head = self.entries.max()
        return honest(self)

    favour(monkeypatch, **STUCK)
    monkeypatch.setattr(Lane, "pop", pop)
    assert_caught(*OUT_OF_ORDER)


def test_a_restart_that_forgets_which_slots_had_lanes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = KeyedDispatch.restore

    def restore(self: KeyedDispatch, slots: Iterable[tuple[int, int]], floor: int) -> None:
        honest(self, (), floor)

    favour(monkeypatch, **RESTARTED)
    _write_notes_often(monkeypatch)
    monkeypatch.setattr(KeyedDispatch, "restore", restore)
    assert_caught(*OUT_OF_ORDER, first=34)


def test_a_restart_that_forgets_the_side_log_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    favour(monkeypatch, **RESTARTED)
    settings = {"lane_note_entries": 1, "lane_unacked_s": 0.3, "lane_retained_bytes": 0}
    monkeypatch.setattr(shape, "draw_lanes", lambda rng: settings)
    monkeypatch.setattr(spilling_cursor, "decode_note", lambda data: SpillNote())
    assert_caught("lost", first=53)
