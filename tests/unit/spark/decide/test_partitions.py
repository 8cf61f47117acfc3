from __future__ import annotations

from anabranch.model.ranges import FULL, HashRange
from anabranch.spark.decide.source.partitions import (
    KeyStrand,
    PartitionLimits,
    plan_by_position,
    plan_in_key_order,
    tasks_for,
)
from anabranch.spark.decide.source.topology import Sizes, Slice

LOW, HIGH = FULL.halves()


def part(segment: int, range_: HashRange, rows: int = 100, lo: int = 0) -> Slice:
    return Slice("t", segment, range_, lo, lo + rows)


def test_slices_of_one_generation_are_whole_runs_without_a_filter() -> None:
    planned = plan_in_key_order([part(1, LOW), part(2, HIGH)], max_partitions=8)
    assert [[strand.slices for strand in strands] for strands in planned] == [
        [(part(1, LOW),)],
        [(part(2, HIGH),)],
    ]
    assert all(
        strand.ranges_for(s) is None for strands in planned for strand in strands for s in strand.slices
    )


def test_a_grandchild_follows_its_grandparent_though_no_child_lies_between() -> None:
    quarter = LOW.halves()[0]
    old, young = part(0, FULL), part(3, quarter)
    planned = plan_in_key_order([old, young], max_partitions=8)
    of_quarter = next(strand for strands in planned for strand in strands if young in strand.slices)
    assert of_quarter.slices == (old, young)
    assert of_quarter.ranges_for(old) == (quarter,)
    assert of_quarter.ranges_for(young) is None


def test_runs_of_one_task_that_share_a_slice_read_it_once() -> None:
    old = part(0, FULL)
    planned = plan_in_key_order([old, part(1, LOW), part(2, HIGH)], max_partitions=1)
    assert planned == [(KeyStrand((old, part(1, LOW), part(2, HIGH)), (FULL,)),)]
    assert planned[0][0].ranges_for(old) is None


def test_a_rebucketed_segment_is_read_behind_its_parent() -> None:
    planned = plan_in_key_order([part(1, FULL), part(0, FULL)], max_partitions=4)
    assert planned == [(KeyStrand((part(0, FULL), part(1, FULL)), (FULL,)),)]


def test_many_runs_are_packed_into_few_tasks_of_like_size() -> None:
    slices = [part(n, r, rows=1 + n % 7) for n, r in enumerate(FULL.parts(1000))]
    planned = plan_in_key_order(slices, max_partitions=3)
    loads = [sum(s.rows for strand in strands for s in strand.slices) for strands in planned]
    assert len(planned) == 3
    assert max(loads) - min(loads) <= 7
    assert sum(loads) == sum(s.rows for s in slices)


def test_a_run_of_one_slice_is_cut_by_bucket_hashes() -> None:
    planned = plan_in_key_order([part(1, LOW)], max_partitions=4, buckets=4)
    slices = [s for strands in planned for strand in strands for s in strand.slices]
    assert slices == [part(1, LOW)._replace(bucket_hashes=r) for r in FULL.parts(4)]
    assert all(strand.ranges_for(strand.slices[0]) is None for strands in planned for strand in strands)


def test_a_run_of_several_slices_or_of_a_shared_one_is_cut_by_slots() -> None:
    old, young = part(0, FULL), part(1, LOW)
    planned = plan_in_key_order([old, young], max_partitions=8, buckets=2)
    found = {(strand.slices, strand.ranges) for strands in planned for strand in strands}
    below, above = ([(r,) for r in half.halves()] for half in (LOW, HIGH))
    assert found == {*(((old, young), r) for r in below), *(((old,), r) for r in above)}


def test_a_slice_of_pulsar_is_cut_by_slots_because_its_broker_does_not_filter() -> None:
    planned = plan_in_key_order([part(0, FULL)._replace(estimate=100)], max_partitions=4, buckets=4)
    assert [strand.ranges for strands in planned for strand in strands] == [(r,) for r in FULL.parts(4)]


def test_many_rows_of_one_segment_get_several_tasks() -> None:
    assert [tasks_for(rows, None) for rows in (0, 100_000, 399_999, 400_000, 10**9)] == [1, 1, 1, 2, 2]
    assert [tasks_for(10**9, most) for most in (1, 2, 3, 100)] == [1, 2, 3, 4]
    assert tasks_for(600_000, 100) == 3


def test_the_heaviest_runs_are_cut_until_there_are_enough_tasks() -> None:
    heavy, light = part(1, LOW, rows=900), part(2, HIGH, rows=100)
    planned = plan_in_key_order([heavy, light], max_partitions=32, min_partitions=4)
    slices = [s for strands in planned for strand in strands for s in strand.slices]
    assert sorted(slices, key=str) == sorted(
        [*(heavy._replace(bucket_hashes=r) for r in FULL.parts(3)), light], key=str
    )
    assert len(plan_in_key_order([heavy, light], max_partitions=32, min_partitions=2)) == 2


def test_a_classic_partition_is_never_cut() -> None:
    classic = part(0, FULL)._replace(routed=False)
    assert len(plan_in_key_order([classic], max_partitions=32, min_partitions=4)) == 1


def test_topics_never_share_a_run() -> None:
    one, other = part(0, FULL), part(0, FULL)._replace(topic="u")
    planned = plan_in_key_order([one, other], max_partitions=1)
    assert planned == [(KeyStrand((one,), (FULL,)), KeyStrand((other,), (FULL,)))]


def test_large_slices_are_cut_by_bytes_and_small_ones_share_a_task() -> None:
    sizes = Sizes(otherwise=10.0)
    planned = plan_by_position(
        [part(0, LOW, rows=1000), part(1, HIGH, rows=10)], PartitionLimits(2500), sizes
    )
    rows = [[s.rows for strand in strands for s in strand.slices] for strands in planned]
    assert rows == [[250], [250], [250], [250], [10]]
    planned = plan_by_position([part(n, LOW, rows=10) for n in range(6)], PartitionLimits(400), sizes)
    assert [len(strands) for strands in planned] == [4, 2]


def test_more_tasks_can_be_asked_for_and_fewer_be_demanded() -> None:
    slices = [part(0, FULL, rows=1000)]
    assert len(plan_by_position(slices, PartitionLimits(2**30, min_partitions=7))) == 7
    assert len(plan_by_position(slices, PartitionLimits(1024, max_partitions=3))) == 3
    assert len(plan_by_position(slices, PartitionLimits(2**30, max_rows=300))) == 4


def test_ten_thousand_segments_are_planned_at_once() -> None:
    slices = [part(n, r) for n, r in enumerate(FULL.parts(10_000))]
    older = [part(n - 20_000, r) for n, r in enumerate(FULL.parts(5_000))]
    planned = plan_in_key_order([*older, *slices], max_partitions=2)
    assert sum(len(strand.slices) for strands in planned for strand in strands) >= 15_000


def test_no_slices_need_no_tasks() -> None:
    assert plan_in_key_order([], max_partitions=2) == []
    assert plan_by_position([], PartitionLimits(1000)) == []
