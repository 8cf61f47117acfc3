"""Broken builds of compaction, each of which the judge of the compacted topic must notice."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.broker.dispatch.compaction import CompactionNote, LatestKeys
from anabranch.broker.serving.side_logs import compacted_log
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.storage import Entry
from simulation.runs.compactions import Value, judge_keys
from simulation.runs.shape import DiskFaults
from tests.harness.mutants import QUIET, assert_caught, favour

SMALL = StorageLimits(cache_bytes=0, journal_bytes_max=2000, ledger_bytes_max=300, behind_bytes=1)
COMPACTED: dict[str, Any] = {
    **QUIET,
    "workers": 1,
    "messages": 30,
    "compactions": 4,
    "operations": 1,
    "limits": SMALL,
    "disk": DiskFaults(),
}
LOST = ("compacted topic: the latest value",)


def test_a_compaction_that_keeps_an_older_value_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = LatestKeys.take

    def take(self: LatestKeys, entry: Entry) -> None:
        if entry.ordinal % 3:
            honest(self, entry)

    favour(monkeypatch, **COMPACTED)
    monkeypatch.setattr(LatestKeys, "take", take)
    assert_caught(*LOST)


def test_a_restart_that_forgets_the_kept_values_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    favour(monkeypatch, **COMPACTED)
    monkeypatch.setattr(compacted_log, "decode_compaction", lambda note: CompactionNote())
    assert_caught(*LOST)


def values(*sent: tuple[bytes | None, bool]) -> dict[str, list[Value]]:
    return {"k": [Value(value, confirmed) for value, confirmed in sent]}


@pytest.mark.parametrize(
    ("sent", "seen", "faults"),
    [
        (values((b"1", True), (b"2", True)), [b"2"], 0),
        (values((b"1", True), (b"2", True)), [b"1", b"2"], 0),
        (values((b"1", True), (b"2", True)), [b"1"], 1),
        (values((b"1", True), (b"2", True)), [b"2", b"1"], 1),
        (values((b"1", True), (b"2", True)), [b"2", b"2"], 1),
        (values((b"1", True), (b"2", False)), [b"1"], 0),
        (values((b"1", True), (b"2", False)), [], 1),
        (values((b"1", True), (None, True)), [], 0),
        (values((b"1", True), (None, True)), [b"1", None], 0),
        (values((b"1", True), (None, True)), [b"1"], 1),
        (values((b"1", True), (None, False)), [], 0),
        (values((b"1", False)), [], 0),
    ],
)
def test_the_judge_knows_lost_old_and_deleted_values(
    sent: dict[str, list[Value]], seen: list[bytes | None], faults: int
) -> None:
    assert len(judge_keys(sent, [("k", value) for value in seen])) == faults
