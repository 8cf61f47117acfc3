"""The words of `anabranch lane`."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.broker.dispatch.lanes import LaneReason
from anabranch.cli.topics.lane_text import ADVICE, age_text, hot_key_lines, lane_lines, lane_text, size_text

LANE: dict[str, Any] = {
    "lane": "3:17",
    "log": "segment://public/default/orders/0000-ffff-3",
    "slot": 17,
    "reason": "unacknowledged",
    "sinceMs": 1_000_000,
    "untilMs": 0,
    "heldEntries": 12345,
    "heldBytes": 1_500_000,
    "waitsFor": "reader-1",
    "note": "",
    "sampleKey": "alice",
    "hashRange": "0000-0fff",
    "firstMessageId": "4:0",
    "trafficShare": 0.48,
}


def test_a_lane_is_described_with_the_step_that_ends_its_wait() -> None:
    text = "\n".join(lane_lines(LANE, 1_300.0))
    for part in (
        "lane 3:17 of segment://",
        "alice",
        "12,345 entries, 1.5 MB",
        "5 min",
        "reader-1",
        "restart it",
    ):
        assert part in text
    assert "goes on in" not in text


def test_a_paused_lane_says_when_it_goes_on_and_a_parked_one_its_note() -> None:
    paused = {**LANE, "reason": "retry", "untilMs": 1_330_000}
    assert any("goes on in:     30 s" in line for line in lane_lines(paused, 1_300.0))
    parked = {**LANE, "reason": "parked", "note": "three attempts failed", "sampleKey": None}
    text = "\n".join(lane_lines(parked, 1_300.0))
    assert "parked (three attempts failed)" in text
    assert "lane release" in text


def test_each_reason_has_an_advice() -> None:
    assert set(ADVICE) == set(LaneReason)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (64_000_000, "64 MB"), (2.5e15, "2500 TB")],
)
def test_sizes(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (119, "119 s"), (300, "5 min"), (7200, "2 h"), (3 * 86400, "3 d")]
)
def test_ages(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


def test_why_has_a_lane_in_one_line() -> None:
    assert lane_text(LANE, 1_300.0) == (
        "lane 3:17, key alice with 48% of the traffic: 12,345 entries, 1.5 MB, for 5 min, unacknowledged, "
        "waits for reader-1"
    )


def test_why_names_only_keys_with_a_large_share() -> None:
    keys = [{"key": "alice", "trafficShare": 0.5}, {"key": "bob", "trafficShare": 0.02}]
    assert hot_key_lines({"0": keys, "1": []}) == ["segment 0: key alice has 50% of the traffic"]
