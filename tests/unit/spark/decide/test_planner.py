from __future__ import annotations

from dataclasses import replace
from math import inf

from anabranch.model.layout import Layout, Segment
from anabranch.model.ranges import FULL
from anabranch.spark.decide.source.offsets import Cut
from anabranch.spark.decide.source.planner import Pace, advance, counts_between
from anabranch.spark.decide.source.shares import last_served_of
from anabranch.spark.decide.source.slices import forget_gone, slices_between
from anabranch.spark.decide.source.starts import resolve
from anabranch.spark.decide.source.topology import Limit, SegmentSpan, Sizes, Topology
from tests.unit.spark.plans import T, at, cut, fail, split_once, topology


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
    assert at(advance(cut(s0=2), {T: view})) == {0: 5, 1: 3, 2: 4}
    assert at(advance(cut(s0=2), {T: view}, Pace(chain=False))) == {0: 5}


def test_a_finished_parent_leaves_the_map_in_the_batch_after() -> None:
    view = topology(split_once(), s0=5, s1=3, s2=4)
    assert at(advance(cut(s0=5), {T: view}, Pace(chain=False))) == {1: 3, 2: 4}


def test_a_merged_child_waits_for_all_its_parents() -> None:
    layout = Layout.initial(2, now_ms=0).merge([0, 1], now_ms=0)
    view = topology(layout, s0=5, s1=5, s2=7)
    found = advance(cut(s0=4, s1=0), {T: view}, Pace(Limit(rows=3)))
    assert 2 not in at(found)
    assert at(advance(cut(s0=5, s1=5), {T: view})) == {2: 7}


def test_segments_sealed_empty_are_passed_without_a_batch_of_their_own() -> None:
    layout = split_once().split(1, now_ms=0)
    view = topology(layout, s0=5, s3=6)
    assert at(advance(cut(s0=5), {T: view}, Pace(chain=False))) == {2: 0, 3: 6, 4: 0}


def test_a_limit_is_shared_in_proportion_and_leaves_none_out() -> None:
    layout = Layout.initial(3, now_ms=0)
    view = topology(layout, s0=9000, s1=900, s2=3)
    taken = at(advance(cut(s0=0, s1=0, s2=0), {T: view}, Pace(Limit(rows=100))))
    assert sum(taken.values()) <= 100
    assert taken[0] > 80
    assert taken[1] >= 5
    assert taken[2] >= 1


def test_segments_take_turns_when_there_are_fewer_rows_than_segments() -> None:
    layout = Layout.initial(3, now_ms=0)
    view = topology(layout, s0=10, s1=2000, s2=10)
    start = cut(s0=0, s1=0, s2=0)
    one = Pace(Limit(rows=1))
    assert at(advance(start, {T: view}, one)) == {0: 1, 1: 0, 2: 0}
    assert at(advance(start, {T: view}, replace(one, last_served=(T, 0)))) == {0: 0, 1: 1, 2: 0}
    assert at(advance(start, {T: view}, replace(one, last_served=(T, 2)))) == {0: 1, 1: 0, 2: 0}


def test_a_small_segment_beside_a_large_backlog_is_read_in_a_few_triggers() -> None:
    layout = Layout.initial(16, now_ms=0)
    view = topology(layout, **{f"s{id_}": 1_000_000 if id_ else 3 for id_ in range(16)})
    start, last_served = cut(**{f"s{id_}": 0 for id_ in range(16)}), None
    for _ in range(12):
        end = advance(start, {T: view}, Pace(Limit(rows=4), last_served=last_served))
        last_served = last_served_of(counts_between(start, end, {T: view}), last_served)
        start = end
    assert at(start)[0] == 3
    assert sum(at(start).values()) == 48


def test_children_of_a_large_slice_wait_for_the_next_batch() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, [n * 4096 for n in range(1, 16)], now_ms=0)
    waiting = {f"s{id_}": 50 for id_ in range(1, 17)}
    large, small = topology(layout, s0=100_000, **waiting), topology(layout, s0=100, **waiting)
    assert at(advance(cut(s0=0), {T: large})) == {0: 100_000}
    assert at(advance(cut(s0=99_950), {T: large}))[16] == 50
    assert at(advance(cut(s0=0), {T: small}))[16] == 50
    assert at(advance(cut(s0=0), {T: large}, Pace(chained_bytes=inf)))[16] == 50


def test_empty_children_of_a_large_slice_need_no_batch_of_their_own() -> None:
    layout = split_once()
    empty = topology(layout, s0=100_000)
    end = advance(cut(s0=0), {T: empty})
    assert at(end) == {0: 100_000, 1: 0, 2: 0}
    assert advance(end, {T: empty}) is end
    assert at(advance(end, {T: topology(layout, s0=100_000, s1=5)})) == {1: 5, 2: 0}


def test_messages_below_empty_children_of_a_large_slice_wait_for_the_next_batch() -> None:
    merged = topology(split_once().merge([1, 2], now_ms=0), s0=100_000, s3=50)
    assert at(advance(cut(s0=0), {T: merged})) == {0: 100_000, 1: 0, 2: 0}
    assert at(advance(cut(s0=100_000, s1=0, s2=0), {T: merged})) == {3: 50}


def test_an_only_child_follows_a_large_parent_at_once_but_its_children_do_not() -> None:
    layout = Layout.initial(1, now_ms=0).rebucket(0, (1000,), now_ms=0).split(1, now_ms=0)
    view = topology(layout, s0=100_000, s1=5, s2=7, s3=7)
    assert at(advance(cut(s0=0), {T: view})) == {0: 100_000, 1: 5}


def test_a_parent_read_to_its_end_and_pruned_is_finished() -> None:
    layout = split_once().split(1, now_ms=0).prune([0, 1], {0: 5, 1: 3})
    view = Topology.of(layout, {id_: SegmentSpan(0, 4, False) for id_ in layout.segments})
    read = advance(cut(s1=3, s2=4), {T: view})
    assert at(read) == {2: 4, 3: 4, 4: 4}
    assert [s.segment for s in slices_between(cut(s1=3, s2=4), read, {T: view}, fail)] == [3, 4]
    losses: list[str] = []
    slices = slices_between(cut(s1=2, s2=4), advance(cut(s1=2, s2=4), {T: view}), {T: view}, losses.append)
    assert sorted(s.segment for s in slices) == [3, 4]
    assert losses == [
        "segment 1 of topic orders should be read from position 2, but the first message still stored is 3"
    ]


def test_a_limit_in_bytes_counts_the_size_of_messages_where_it_is_known() -> None:
    layout = Layout.initial(1, now_ms=0)
    view = topology(layout, s0=1000)
    sizes = Sizes({(T, 0): 100.0})
    assert at(advance(cut(s0=0), {T: view}, Pace(Limit(bytes=5000), sizes=sizes))) == {0: 50}
    assert at(advance(cut(s0=0), {T: view}, Pace(Limit(bytes=1), sizes=sizes))) == {0: 1}
    assert at(advance(cut(s0=0), {T: view}, Pace(Limit(rows=7, bytes=5000), sizes=sizes))) == {0: 7}
