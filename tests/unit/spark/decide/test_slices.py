"""The slices between cuts, and lost messages."""

from __future__ import annotations

from anabranch.model.layout import Layout
from anabranch.spark.decide.source.offsets import Cut, TopicCut
from anabranch.spark.decide.source.slices import forget_gone, slices_between, slices_of_range
from anabranch.spark.decide.source.topology import SegmentSpan, Slice, Topology
from tests.unit.spark.plans import T, at, cut, fail, split_once, topology


def test_slices_between_two_maps_name_what_a_batch_reads() -> None:
    view = topology(split_once(), s0=5, s1=3, s2=0)
    found = slices_between(cut(s0=2), cut(s0=5, s1=3, s2=0), {T: view}, fail)
    assert [(part.segment, part.lo, part.hi) for part in found] == [(0, 2, 5), (1, 0, 3)]


def test_a_topic_that_the_start_does_not_name_is_only_pinned() -> None:
    view = topology(Layout.initial(1, now_ms=0), s0=5)
    assert slices_between(Cut(), cut(s0=5), {T: view}, fail) == []


def test_trimmed_messages_are_reported_and_the_rest_is_read() -> None:
    layout = Layout.initial(1, now_ms=0)
    view = Topology(layout, {0: SegmentSpan(30, 50, False)})
    told: list[str] = []
    found = slices_between(cut(s0=10), cut(s0=50), {T: view}, told.append)
    assert [(part.lo, part.hi) for part in found] == [(30, 50)]
    assert len(told) == 1
    assert "position 10" in told[0]
    assert "30" in told[0]


def test_a_range_read_goes_through_all_generations_between_two_cuts() -> None:
    layout = split_once().merge([1, 2], now_ms=0)
    view = topology(layout, s0=5, s1=3, s2=4, s3=6)
    start, end = TopicCut({0: 2}), TopicCut({3: 1})
    found = slices_of_range(start, end, view, T, fail)
    assert [(part.segment, part.lo, part.hi) for part in found] == [
        (0, 2, 5),
        (1, 0, 3),
        (2, 0, 4),
        (3, 0, 1),
    ]


def test_a_pruned_segment_is_no_loss_when_its_children_are_in_the_map() -> None:
    layout = split_once().prune([0])
    view = topology(layout, s1=3, s2=4)
    kept = forget_gone(cut(s0=5, s1=3, s2=1), {T: view}, fail)
    assert at(kept) == {1: 3, 2: 1}


def test_a_pruned_segment_that_nothing_in_the_map_replaces_is_a_loss() -> None:
    layout = split_once().prune([0])
    view = Topology(layout, {1: SegmentSpan(2, 3, False), 2: SegmentSpan(0, 4, False)})
    told: list[str] = []
    kept = forget_gone(cut(s0=4), {T: view}, told.append)
    assert at(kept) == {1: 2, 2: 0}
    assert "created again" in told[0]


def test_an_unchanged_cut_is_returned_itself_when_nothing_is_gone() -> None:
    start = cut(s0=4)
    assert forget_gone(start, {T: topology(Layout.initial(1, now_ms=0), s0=5)}, fail) is start


def test_a_slice_knows_its_rows() -> None:
    assert Slice(T, 0, Layout.initial(1, now_ms=0).segment(0).range, 3, 10).rows == 7
