from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.model.layout import Layout
from anabranch.model.ranges import HashRange
from anabranch.spark.decide.pipelines.evidence import (
    BLOCK_POSITIONS,
    CountedBlock,
    Spot,
    Stretch,
    coverage,
    holes,
    joined,
    layout_findings,
    misplaced,
    removed,
)
from anabranch.spark.decide.pipelines.verify_report import Counts, VerifyReport, what_was_not, what_was_proved
from anabranch.spark.decide.source.topology import SegmentSpan, Topology
from anabranch.spark.pipelines.proofs.verify_pass import Expectations


def topology(layout: Layout, **extents: tuple[int, int]) -> Topology:
    """Segments are named s0, s1...; one that is not given is empty."""
    tails = {
        id_: SegmentSpan(*extents.get(f"s{id_}", (0, 0)), sealed=not segment.active)
        for id_, segment in layout.segments.items()
    }
    return Topology(layout, tails)


def counted(segment: int, positions: list[int]) -> CountedBlock:
    number = positions[0] // BLOCK_POSITIONS
    offsets = sum(position - number * BLOCK_POSITIONS for position in positions)
    return CountedBlock(segment, number, len(positions), min(positions), max(positions), offsets)


ONE = Layout.initial(1, now_ms=0)
SPLIT = ONE.split(0, now_ms=0)


def test_blocks_without_a_missing_or_repeated_position_are_complete() -> None:
    edge = BLOCK_POSITIONS
    blocks = [counted(0, list(range(5, edge))), counted(0, list(range(edge, edge + 9)))]
    assert coverage(topology(ONE, s0=(5, edge + 9)), blocks) == coverage(topology(ONE), [])
    assert not coverage(topology(ONE, s0=(5, edge + 9)), blocks).incomplete


@pytest.mark.parametrize(
    "positions", [[0, 1, 3, 4], [1, 2, 3, 4], [0, 1, 2, 3]], ids=["inside", "at the start", "at the end"]
)
def test_a_missing_position_makes_its_block_incomplete(positions: list[int]) -> None:
    found = coverage(topology(ONE, s0=(0, 5)), [counted(0, positions)])
    assert found.incomplete == (Stretch(0, 0, 5),)


def test_a_block_without_any_message_is_incomplete() -> None:
    found = coverage(topology(SPLIT, s0=(0, 2), s2=(3, 7)), [counted(0, [0, 1])])
    assert found.incomplete == (Stretch(2, 3, 7),)


@pytest.mark.parametrize("positions", [[0, 1, 1, 2], [0, 1, 1], [0, 0, 2]])
def test_a_repeated_position_is_seen_even_if_another_one_is_missing(positions: list[int]) -> None:
    found = coverage(topology(ONE, s0=(0, 3)), [counted(0, positions)])
    assert found.repeated == (Stretch(0, 0, 3),)


def test_positions_that_are_places_on_pulsar_prove_nothing() -> None:
    places = {0: SegmentSpan(2**40, 2**50, sealed=False, per_entry=10.0)}
    on_pulsar = Topology(ONE, places)
    assert coverage(on_pulsar, [counted(0, [2**40])]) == coverage(topology(ONE), [])
    assert removed("orders", on_pulsar, complete=True).findings == ()
    told = what_was_not(Counts(), [], counted=False, dense_producers=False, numbered=True)
    assert told == ("that all stored messages are there: Apache Pulsar does not count them",)


def test_holes_lie_between_entries_and_at_both_ends() -> None:
    within = Stretch(4, 10, 30)
    assert holes(within, [(8, 4), (14, 6), (25, 3)]) == [
        Stretch(4, 12, 14),
        Stretch(4, 20, 25),
        Stretch(4, 28, 30),
    ]
    assert holes(within, [(10, 20)]) == []
    assert holes(within, []) == [within]
    assert joined([Stretch(4, 1, 2), Stretch(4, 2, 5), Stretch(5, 5, 6)]) == [
        Stretch(4, 1, 5),
        Stretch(5, 5, 6),
    ]


def test_a_key_outside_the_range_of_its_segment_is_named() -> None:
    block = counted(1, [0, 1])._replace(lowest=Spot(3, 0, b"a"), highest=Spot(0x8000, 1, b"b"))
    (found,) = misplaced("orders", topology(SPLIT, s1=(0, 2)), [block])
    assert (found.kind, found.segment, found.position, found.key) == ("misplaced", 1, 1, b"b")
    assert not misplaced("orders", topology(SPLIT), [block._replace(highest=Spot(0x7FFF, 1, b"b"))])


def test_a_layout_after_splits_and_merges_has_no_fault() -> None:
    layout = SPLIT.split(1, now_ms=0).merge([2, 4], now_ms=0).rebucket(3, [9], now_ms=0)
    assert layout_findings("orders", topology(layout)) == []
    assert layout_findings("orders", topology(layout.prune([0]))) == []


def test_a_child_that_leaves_slots_of_its_parent_out_is_a_fault() -> None:
    narrow = replace(SPLIT.segments[2], range=HashRange(0x8100, 0xFFFF))
    broken = replace(SPLIT, segments={**SPLIT.segments, 2: narrow})
    texts = [finding.found for finding in layout_findings("orders", topology(broken))]
    assert "none takes slots 8000-80ff" in texts
    assert any("begins at slot" in text for text in texts)


def test_a_link_that_only_one_end_knows_is_a_fault() -> None:
    orphan = replace(SPLIT.segments[1], parents=())
    broken = replace(SPLIT, segments={**SPLIT.segments, 1: orphan})
    (found,) = layout_findings("orders", topology(broken))
    assert (found.segment, found.expected) == (0, "child 1 to name parent 0")


def test_a_sealed_segment_whose_log_takes_messages_is_a_fault() -> None:
    seen = topology(SPLIT)
    open_log = Topology(seen.layout, {**seen.tails, 0: SegmentSpan(0, 5, sealed=False)})
    (found,) = layout_findings("orders", open_log)
    assert found.segment == 0


def test_removed_messages_are_no_fault_as_long_as_nothing_older_is_stored() -> None:
    seen = removed("orders", topology(SPLIT, s0=(9, 9), s1=(4, 8)), complete=False)
    assert not seen.findings
    assert seen.notes == (
        "messages 0 to 8 of segment 0 are no longer stored",
        "messages 0 to 3 of segment 1 are no longer stored",
    )
    (found,) = removed("orders", topology(SPLIT, s0=(8, 9), s1=(4, 8)), complete=False).findings
    assert (found.kind, found.segment, found.position, found.count) == ("missing", 1, 0, 4)


def test_a_complete_topic_has_lost_what_was_removed() -> None:
    seen = removed("orders", topology(SPLIT.prune([0]), s1=(4, 8)), complete=True)
    assert [(finding.segment, finding.count) for finding in seen.findings] == [(1, 4), (None, 1)]
    assert not seen.notes


def test_the_summary_counts_faults_by_kind() -> None:
    report = VerifyReport("orders", Counts(messages=10_000, keys=37, producers=1))
    assert report.summary == (
        "10,000 messages of 37 keys from 1 producer: nothing lost, doubled or out of order"
    )
    gone = removed("orders", topology(ONE, s0=(4, 8)), complete=True).findings
    assert replace(report, findings=gone).summary.endswith("1 producer: 4 missing")


def test_the_limits_of_the_proof_are_told() -> None:
    counts = Counts(without_key=2, without_sequence=1, producers_with_gaps=1, skipped_ids=3)
    told = what_was_not(counts, ["a note"], counted=True, dense_producers=False, numbered=False)
    assert told[0] == "a note"
    assert len(told) == 5
    assert any("3 sequence ids that 1 producer skipped" in text for text in told)


def test_a_sequence_that_no_message_has_is_not_proved() -> None:
    how = {"counted": True, "dense_producers": False, "numbered": True}
    none, some = Counts(messages=5, without_number=5), Counts(messages=5, without_number=2)
    assert not any("the application's own sequence" in text for text in what_was_proved(none, **how))
    assert "no message has it; check its header or path" in what_was_not(none, [], **how)[-1]
    assert any("the application's own sequence" in text for text in what_was_proved(some, **how))
    assert what_was_not(some, [], **how) == ("2 messages without the application's sequence",)


@pytest.mark.parametrize(
    ("expect", "reason"),
    [
        ({"sequence_path": "number"}, "'number' is not a JSON path; it has to begin with"),
        ({"clock_tolerance_s": -1}, "the clock tolerance is -1; it must be at least 0 seconds"),
        ({"clock_tolerance_s": float("nan")}, "the clock tolerance is nan"),
    ],
)
def test_expectations_without_sense_are_refused(expect: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=reason):
        Expectations(**expect)
