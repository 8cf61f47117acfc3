from __future__ import annotations

import pytest

from anabranch.model.hashing import equal_bucket_splits
from anabranch.model.layout import Layout
from anabranch.model.ranges import HASH_SLOTS
from anabranch.spark.decide.pipelines.skew import (
    BUCKET_CELLS,
    HeavyKey,
    SkewReport,
    better_boundaries,
    nice_interval_s,
    segment_of_slot,
    weigh_segments,
)
from anabranch.spark.pipelines.proofs.skew_plot import shown_key, text_plot

FOUR = Layout.initial(4, now_ms=0, bucket_budget=16)


def test_an_even_load_suggests_nothing() -> None:
    found = weigh_segments(FOUR, dict.fromkeys(range(0, HASH_SLOTS, 64), 5))
    assert [one.share for one in found] == [0.25] * 4
    assert not any(one.points or one.hopeless for one in found)


def test_the_segment_that_takes_too_much_is_cut_where_its_weight_is() -> None:
    slots = {**dict.fromkeys(range(0, 0x1000, 16), 9), 0x5000: 300, 0x9000: 300, 0xD000: 300}
    first, *others = weigh_segments(FOUR, slots)
    assert len(first.points) == 2
    assert all(0 < point < 0x1000 for point in first.points)
    assert first.largest_part == pytest.approx(1 / 3, abs=0.01)
    assert not any(one.points for one in others)


def test_more_segments_than_now_are_an_aim() -> None:
    slots = dict.fromkeys(range(0, HASH_SLOTS, 64), 5)
    assert [len(one.points) for one in weigh_segments(FOUR, slots, 8)] == [1] * 4


def test_one_hot_slot_cannot_be_relieved_by_a_split() -> None:
    first, *_ = weigh_segments(FOUR, {7: 1000, 9: 1, 0x5000: 10})
    assert first.hopeless
    assert not first.points


def test_an_empty_topic_suggests_nothing() -> None:
    assert not any(one.points or one.weight for one in weigh_segments(FOUR, {}))


def test_boundaries_are_suggested_when_they_help() -> None:
    segment = FOUR.active[0]
    assert segment.bucket_count == 4
    assert better_boundaries(segment, dict.fromkeys(range(BUCKET_CELLS), 1)) == ()
    crowded = better_boundaries(segment, dict.fromkeys(range(64), 1))
    assert len(crowded) == 3
    assert crowded != equal_bucket_splits(4)
    assert max(crowded) < 64 * 64
    assert better_boundaries(segment, {}) == ()


def test_intervals_are_round_and_at_most_48() -> None:
    assert nice_interval_s(0, 0) == 1
    assert nice_interval_s(0, 47_000) == 1
    assert nice_interval_s(0, 49_000) == 10
    assert nice_interval_s(0, 86_400_000) == 3600
    assert nice_interval_s(0, 10**14) == 30 * 86_400


def report(heat: dict[tuple[int, int], int]) -> SkewReport:
    slots = {0: 3000, 0x100: 3000, 0x8000: 10}
    heavy = HeavyKey(b"k", 3, 0, segment_of_slot(FOUR, 0), {})
    weighed = tuple(weigh_segments(FOUR, slots))
    return SkewReport("orders", "messages", sum(heat.values()), 0, 60, weighed, (heavy,), heat)


def test_the_suggestions_are_commands() -> None:
    (command,) = report({}).commands()
    assert command.startswith("anabranch topic split orders 0 --points 0x0")


def test_the_text_plot_has_a_row_per_part_of_the_ring_and_a_column_per_interval() -> None:
    lines = text_plot(report({(0, 600): 90, (0, 720): 10, (63, 660): 1}))
    assert lines[0] == "0000-0fff |@ .|  99.0%"
    assert lines[15] == "f000-ffff | . |   1.0%"
    assert lines[5] == "5000-5fff |   |   0.0%"
    assert "60 s per column" in lines[16]
    assert text_plot(report({})) == []


def test_keys_that_are_no_text_are_shown_as_digits() -> None:
    assert [shown_key(key) for key in (b"alice", b"\xff\x00", b"a\nb")] == ["alice", "0xff00", "0x610a62"]
