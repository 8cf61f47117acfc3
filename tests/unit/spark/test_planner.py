from __future__ import annotations

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.model.layout import Layout, Segment
from anabranch.model.ranges import FULL
from anabranch.spark.decide.offsets import Cut, TopicCut
from anabranch.spark.decide.planner import advance
from anabranch.spark.decide.slices import forget_gone, slices_between, slices_of_range
from anabranch.spark.decide.starts import resolve
from anabranch.spark.decide.topology import Limit, SegmentSpan, Sizes, Slice, Topology

T = "orders"


def topology(layout: Layout, **counts: int) -> Topology:
    """Segments with so many messages; s0=5 means five in segment 0."""
    tails = {
        id_: SegmentSpan(0, counts.get(f"s{id_}", 0), not segment.active)
        for id_, segment in layout.segments.items()
    }
    return Topology(layout, tails)


def split_once() -> Layout:
    return Layout.initial(1, now_ms=0).split(0, now_ms=0)


def cut(**positions: int) -> Cut:
    return Cut({T: TopicCut({int(name[1:]): at for name, at in positions.items()})})


def at(found: Cut) -> dict[int, int]:
    return dict(found.topics[T].positions)


def fail(text: str) -> None:
    raise AssertionError(text)


def test_latest_starts_behind_what_the_active_segments_hold() -> None:
    view = topology(split_once(), s0=5, s1=3, s2=4)
    assert resolve("latest", view, T).positions == {1: 3, 2: 4}


def test_earliest_starts_at_the_oldest_segment() -> None:
    view = topology(split_once(), s0=5, s1=3, s2=4)
    assert resolve("earliest", view, T).positions == {0: 0}


def test_earliest_passes_segments_with_nothing_left_because_their_children_may_be_trimmed_too() -> None:
    layout = split_once()
    view = Topology(
        layout, {0: SegmentSpan(5, 5, True), 1: SegmentSpan(2, 3, False), 2: SegmentSpan(0, 4, False)}
    )
    assert resolve("earliest", view, T).positions == {1: 2, 2: 0}


def test_a_requested_cut_must_cover_all_keys_and_read_no_key_twice() -> None:
    view = topology(split_once(), s0=5, s1=3, s2=4)
    assert resolve(TopicCut({1: 3, 2: 0}), view, T).positions == {1: 3, 2: 0}
    for positions, word in (
        ({1: 3}, "8000-ffff"),
        ({9: 3}, "9"),
        ({1: 4, 2: 0}, "beyond"),
        ({0: 2, 1: 0, 2: 0}, "at once"),
    ):
        with pytest.raises(InvalidConfigurationError, match=word):
            resolve(TopicCut(positions), view, T)


def test_nothing_to_read_gives_the_start_itself() -> None:
    start = cut(s0=5)
    assert advance(start, {T: topology(Layout.initial(1, now_ms=0), s0=5)}) is start


def test_children_come_into_the_map_while_they_are_empty_so_that_their_parent_may_be_pruned() -> None:
    layout = split_once()
    moved = advance(cut(s0=5), {T: topology(layout, s0=5)})
    assert at(moved) == {1: 0, 2: 0}
    assert advance(moved, {T: topology(layout, s0=5)}) is moved
    assert forget_gone(moved, {T: topology(layout.prune([0]))}, fail) is moved


def test_a_classic_topic_that_gets_more_partitions_is_read_on_with_all_of_them() -> None:
    def classic(count: int, **counts: int) -> Topology:
        ranges = FULL.parts(count)
        segments = {n: Segment(n, part, legacy_topic=f"{T}-partition-{n}") for n, part in enumerate(ranges)}
        return topology(Layout(0, count, segments), **counts)

    start = Cut({T: resolve("latest", classic(2, s0=5, s1=6), T)})
    view = classic(4, s0=5, s1=7, s2=3)
    end = advance(start, {T: view})
    assert at(end) == {0: 5, 1: 7, 2: 3, 3: 0}
    slices = slices_between(start, end, {T: view}, fail)
    assert [(s.segment, s.lo, s.hi, s.routed) for s in slices] == [(1, 6, 7, False), (2, 0, 3, False)]
    assert advance(end, {T: view}) is end


def test_chained_children_follow_their_parent_in_the_same_batch() -> None:
    view = topology(split_once(), s0=5, s1=3, s2=4)
    assert at(advance(cut(s0=2), {T: view}, chain=True)) == {0: 5, 1: 3, 2: 4}
    assert at(advance(cut(s0=2), {T: view}, chain=False)) == {0: 5}


def test_a_finished_parent_leaves_the_map_in_the_batch_after() -> None:
    view = topology(split_once(), s0=5, s1=3, s2=4)
    assert at(advance(cut(s0=5), {T: view}, chain=False)) == {1: 3, 2: 4}


def test_a_merged_child_waits_for_all_its_parents() -> None:
    layout = Layout.initial(2, now_ms=0).merge([0, 1], now_ms=0)
    view = topology(layout, s0=5, s1=5, s2=7)
    found = advance(cut(s0=4, s1=0), {T: view}, Limit(rows=3))
    assert 2 not in at(found)
    assert at(advance(cut(s0=5, s1=5), {T: view})) == {2: 7}


def test_segments_sealed_empty_are_passed_without_a_batch_of_their_own() -> None:
    layout = split_once().split(1, now_ms=0)
    view = topology(layout, s0=5, s3=6)
    assert at(advance(cut(s0=5), {T: view}, chain=False)) == {2: 0, 3: 6, 4: 0}


def test_a_limit_is_shared_in_proportion_and_leaves_none_out() -> None:
    layout = Layout.initial(3, now_ms=0)
    view = topology(layout, s0=9000, s1=900, s2=3)
    taken = at(advance(cut(s0=0, s1=0, s2=0), {T: view}, Limit(rows=100)))
    assert sum(taken.values()) <= 100
    assert taken[0] > 80
    assert taken[1] >= 5
    assert taken[2] >= 1


def test_a_limit_of_one_row_takes_one_row() -> None:
    layout = Layout.initial(3, now_ms=0)
    view = topology(layout, s0=10, s1=20, s2=10)
    assert at(advance(cut(s0=0, s1=0, s2=0), {T: view}, Limit(rows=1))) == {0: 0, 1: 1, 2: 0}


def test_a_limit_in_bytes_counts_the_size_of_messages_where_it_is_known() -> None:
    layout = Layout.initial(1, now_ms=0)
    view = topology(layout, s0=1000)
    sizes = Sizes({(T, 0): 100.0})
    assert at(advance(cut(s0=0), {T: view}, Limit(bytes=5000), sizes=sizes)) == {0: 50}
    assert at(advance(cut(s0=0), {T: view}, Limit(bytes=1), sizes=sizes)) == {0: 1}
    assert at(advance(cut(s0=0), {T: view}, Limit(rows=7, bytes=5000), sizes=sizes)) == {0: 7}


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
