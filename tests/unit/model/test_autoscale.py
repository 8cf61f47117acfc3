from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from anabranch.model.hashing import equal_bucket_splits
from anabranch.model.layout import Layout
from anabranch.model.ranges import HashRange
from anabranch.model.scaling.autoscale import Decision, decide, record_action
from anabranch.model.scaling.observed import LoadHistory, Observed, SegmentRates
from anabranch.model.scaling.policy import AutoScalePolicy
from anabranch.model.scaling.scale_steps import Keep, Merge, Rebucket, Split
from anabranch.model.scaling.traffic_sketch import HotHash

POLICY = AutoScalePolicy()
NOW = 100_000.0
IDLE = SegmentRates()


def of(layout: Layout, rates: Mapping[int, SegmentRates] | SegmentRates = IDLE, **more: object) -> Observed:
    """What is seen of a topic that has been as it is for a long time."""
    ids = [segment.id for segment in layout.active]
    given = dict.fromkeys(ids, rates) if isinstance(rates, SegmentRates) else rates
    history = LoadHistory(cold_since=dict.fromkeys(ids, 0.0))
    observed = Observed(layout, given, history=history, now_s=NOW)
    return replace(observed, **more)  # type: ignore[arg-type]


def parts(decision: Decision) -> dict[int, int]:
    steps = (decision.action, *decision.then)
    return {step.segment: len(step.points) + 1 for step in steps if isinstance(step, Split)}


def says(decision: Decision, text: str) -> bool:
    return any(text in reason for reason in decision.against)


def topic(count: int, buckets: int = 1) -> Layout:
    return Layout.initial(count, now_ms=0, bucket_budget=count * buckets)


def test_nothing_is_done_when_switched_off() -> None:
    decision = decide(of(topic(1), SegmentRates(1e9)), replace(POLICY, enabled=False))
    assert decision == Decision(Keep(), "auto-scaling is switched off for this topic")


@pytest.mark.parametrize(
    ("rates", "metric"),
    [
        (SegmentRates(12_000, 1, 1, 1), "splitMsgRateInThreshold"),
        (SegmentRates(1, 60_000_000, 1, 1), "splitBytesRateInThreshold"),
        (SegmentRates(1, 1, 60_000, 1), "splitMsgRateOutThreshold"),
        (SegmentRates(1, 1, 1, 300_000_000), "splitBytesRateOutThreshold"),
    ],
)
def test_a_rate_a_fifth_over_its_threshold_splits(rates: SegmentRates, metric: str) -> None:
    decision = decide(of(topic(1), rates), POLICY)
    assert decision.action == Split(0, (0x8000,))
    assert f"segment 0 is at 120% of {metric}" in decision.reason


def test_a_split_goes_straight_to_the_number_the_load_needs() -> None:
    decision = decide(of(topic(1), SegmentRates(400_000)), POLICY)
    assert parts(decision) == {0: 54}
    assert decide(of(topic(1), SegmentRates(10**7)), POLICY).action == Split(
        0, tuple(index * 1024 for index in range(1, 64))
    )


def test_all_segments_over_a_threshold_are_split_in_one_decision() -> None:
    rates = {
        0: SegmentRates(20_000),
        1: SegmentRates(5_000),
        2: SegmentRates(16_000),
        3: SegmentRates(40_000),
    }
    decision = decide(of(topic(4), rates), POLICY)
    assert parts(decision) == {3: 6, 0: 3, 2: 3}
    assert isinstance(decision.action, Split)
    assert decision.action.segment == 3


def test_when_room_is_short_the_fullest_segments_are_served() -> None:
    rates = {0: SegmentRates(20_000), 1: SegmentRates(50_000), 2: SegmentRates(11_000)}
    decision = decide(of(topic(3), rates), replace(POLICY, max_segments=6))
    assert parts(decision) == {1: 3, 0: 2}
    assert says(
        decision, "segment 2 is at 110% of splitMsgRateInThreshold, but maxSegments (6) leaves no room"
    )


def test_a_full_topic_says_so() -> None:
    decision = decide(of(topic(2), SegmentRates(20_000)), replace(POLICY, max_segments=2))
    assert decision.action == Keep()
    assert says(decision, "maxSegments (2)")


def test_equal_loads_fall_to_the_lowest_id() -> None:
    decision = decide(of(topic(2), SegmentRates(11_000)), replace(POLICY, max_segments=3))
    assert parts(decision) == {0: 2}


def test_a_single_slot_cannot_be_helped() -> None:
    layout = topic(1).split(0, [1], now_ms=1)
    decision = decide(of(layout, {1: SegmentRates(20_000), 2: IDLE}), POLICY)
    assert decision.action == Keep()
    assert says(decision, "single hash slot")


def test_points_follow_the_sketch() -> None:
    weights = ((HashRange(0, 0x0FFF), 9.0), (HashRange(0x1000, 0xFFFF), 1.0))
    decision = decide(of(topic(1), SegmentRates(12_000, weights=weights)), POLICY)
    assert isinstance(decision.action, Split)
    assert decision.action.points[0] < 0x1000


def test_a_hot_slot_is_cut_out_without_parts_that_help_nothing() -> None:
    weights = ((HashRange(0, 0xFFFF), 40.0), (HashRange(77, 77), 60.0))
    decision = decide(of(topic(1), SegmentRates(60_000, weights=weights)), POLICY)
    assert isinstance(decision.action, Split)
    # 8 parts would be needed for an even load; here 60 % is in one slot, and 4 parts hold the rest.
    assert {77, 78} <= set(decision.action.points)
    assert len(decision.action.points) == 5
    assert "6 parts, cut by traffic" in decision.reason


def test_one_hot_hash_is_not_split_in_vain() -> None:
    weights = ((HashRange(0, 0xFFFF), 1.0), (HashRange(77, 77), 99.0))
    hottest = (HotHash(77 << 16, 0.98, b"account-1"),)
    decision = decide(of(topic(1), SegmentRates(50_000, weights=weights, hottest=hottest)), POLICY)
    assert decision.action == Keep()
    assert says(decision, "one hot spot takes 99% of its traffic")
    assert says(decision, "its hottest key is 'account-1', with 98%")
    assert decision.look_again_s is None


def test_the_split_cooldown_is_kept_and_said() -> None:
    observed = of(topic(1), SegmentRates(20_000), history=LoadHistory(last_split_s=NOW - 45))
    decision = decide(observed, POLICY)
    assert decision.action == Keep()
    assert decision.look_again_s == 15
    assert says(decision, "the split cooldown runs for 15 s more")
    assert isinstance(decide(replace(observed, now_s=NOW + 15), POLICY).action, Split)


def test_missing_and_stale_rates_cause_nothing() -> None:
    for rates in ({}, {0: SegmentRates(99_999, measured_s=NOW - 1_000)}):
        decision = decide(of(topic(1), rates), POLICY)
        assert decision.action == Keep()
        assert says(decision, "the load of 1 segment is unknown")


def test_too_few_segments_are_split_up_to_the_minimum() -> None:
    decision = decide(of(topic(1)), replace(POLICY, min_segments=4))
    assert parts(decision) == {0: 4}
    assert "fewer than minSegments" in decision.reason


def test_consumers_get_segments_where_there_is_traffic_for_them() -> None:
    decision = decide(of(topic(1), SegmentRates(5_000), stream_consumers=4), POLICY)
    assert parts(decision) == {0: 4}
    assert "4 ordered consumers for 1 segment" in decision.reason


def test_the_parts_made_for_consumers_are_not_made_tiny() -> None:
    decision = decide(of(topic(1), SegmentRates(1_000), stream_consumers=64), POLICY)
    assert parts(decision) == {0: 2}


def test_the_busiest_segments_are_split_for_consumers() -> None:
    rates = {0: SegmentRates(2_000), 1: SegmentRates(6_000), 2: SegmentRates(100)}
    assert parts(decide(of(topic(3), rates, stream_consumers=5), POLICY)) == {1: 3}
    assert parts(decide(of(topic(3), rates, stream_consumers=7), POLICY)) == {1: 4, 0: 2}


def test_without_a_rate_floor_consumers_alone_split() -> None:
    policy = replace(POLICY, split_vs_rebucket_min_msg_rate_in_threshold=0)
    assert parts(decide(of(topic(1), stream_consumers=3), policy)) == {0: 3}
    assert parts(decide(of(topic(1), {}, stream_consumers=3), policy)) == {0: 3}


def test_checkpoint_groups_cause_splits_but_never_buckets() -> None:
    decision = decide(of(topic(1), SegmentRates(5_000), checkpoint_consumers=3), POLICY)
    assert parts(decision) == {0: 3}
    assert decide(of(topic(1), checkpoint_consumers=3), POLICY).action == Keep()


def test_idle_consumers_share_buckets_instead() -> None:
    decision = decide(of(topic(1, buckets=4), stream_consumers=4), POLICY)
    assert decision.action == Keep()
    assert says(decision, "no segment takes the 1000 messages/s")
    assert says(decision, "4 buckets are enough for 4 stream consumers")


def test_all_small_segments_are_rebucketed_in_one_decision() -> None:
    layout = topic(64)
    decision = decide(of(layout, stream_consumers=200), POLICY)
    steps = (decision.action, *decision.then)
    assert steps == tuple(Rebucket(id_, equal_bucket_splits(4)) for id_ in range(64))
    assert "200 stream consumers for 64 buckets" in decision.reason


def test_the_rebucket_cooldown_and_limit_are_kept() -> None:
    observed = of(topic(1), stream_consumers=3, history=LoadHistory(last_rebucket_s=NOW - 50))
    decision = decide(observed, POLICY)
    assert (decision.action, decision.look_again_s) == (Keep(), 10)
    limited = decide(
        replace(observed, history=LoadHistory()), replace(POLICY, entry_bucket_max_per_segment=1)
    )
    assert limited.action == Keep()
    assert says(limited, "entryBucketMaxPerSegment is 1")


def test_bucket_boundaries_follow_the_sketch() -> None:
    rates = SegmentRates(bucket_weights=((HashRange(0, 0x0FFF), 1.0),))
    decision = decide(of(topic(1), rates, stream_consumers=2), POLICY)
    assert decision.action == Rebucket(0, (0x0800,))
    hot = SegmentRates(bucket_weights=((HashRange(0, 0), 1.0),))
    assert decide(of(topic(1), hot, stream_consumers=2), POLICY).action == Rebucket(0, (2,))


def test_nothing_else_is_tried_while_a_split_is_only_put_off() -> None:
    observed = of(
        topic(1), SegmentRates(5_000), stream_consumers=4, history=LoadHistory(last_split_s=NOW - 1)
    )
    decision = decide(observed, POLICY)
    assert decision.action == Keep()
    assert says(decision, "rebucket: comes after the split")
    assert decision.look_again_s == 59


def test_far_too_many_buckets_are_taken_away_late() -> None:
    layout = topic(1, buckets=16)
    early = decide(of(layout, history=LoadHistory(surplus_since={0: NOW - 2_000})), POLICY)
    assert (early.action, early.look_again_s) == (Keep(), 1_000)
    late = decide(of(layout, history=LoadHistory(surplus_since={0: NOW - 3_000})), POLICY)
    assert late.action == Rebucket(0, equal_bucket_splits(4))
    assert decide(of(layout, stream_consumers=5), POLICY).action == Keep()


def test_a_cold_topic_becomes_one_segment_in_one_merge() -> None:
    decision = decide(of(topic(64)), POLICY)
    assert decision.action == Merge(tuple(range(64)))
    assert decision.then == ()


def test_a_merge_leaves_a_segment_for_each_consumer() -> None:
    assert decide(of(topic(4), stream_consumers=3), POLICY).action == Merge((0, 1))
    for observed in (of(topic(4), stream_consumers=4), of(topic(4), checkpoint_consumers=4)):
        decision = decide(observed, POLICY)
        assert decision.action == Keep()
        assert says(decision, "no segment can be spared of 4: minSegments is 1, with 4 ordered consumers")


def test_a_merge_keeps_the_minimum() -> None:
    assert decide(of(topic(4)), replace(POLICY, min_segments=3)).action == Merge((0, 1))
    assert decide(of(topic(4)), replace(POLICY, min_segments=4)).action == Keep()


def test_a_merge_is_judged_by_the_load_of_its_result() -> None:
    policy = replace(POLICY, merge_msg_rate_in_threshold=9_999)
    assert decide(of(topic(4), SegmentRates(2_000)), policy).action == Merge((0, 1))
    decision = decide(of(topic(4), SegmentRates(2_600)), policy)
    assert decision.action == Keep()
    assert says(decision, "together would be too full")


def test_unlike_units_are_not_added_up() -> None:
    rates = SegmentRates(600, 3_000_000, 3_000, 15_000_000)
    assert decide(of(topic(8), rates), POLICY).action == Merge(tuple(range(8)))


def test_the_emptiest_of_equal_runs_is_merged() -> None:
    rates = {0: SegmentRates(900), 1: SegmentRates(900), 2: SegmentRates(10), 3: SegmentRates(10)}
    assert decide(of(topic(4), rates, stream_consumers=3), POLICY).action == Merge((2, 3))


def test_a_warm_segment_divides_the_cold() -> None:
    rates = {0: IDLE, 1: SegmentRates(5_000), 2: IDLE, 3: IDLE}
    assert decide(of(topic(4), rates), POLICY).action == Merge((2, 3))
    rates = {0: IDLE, 1: SegmentRates(5_000), 2: IDLE, 3: SegmentRates(5_000)}
    decision = decide(of(topic(4), rates), POLICY)
    assert decision.action == Keep()
    assert says(decision, "no two neighbours are cold")


def test_a_merge_threshold_of_zero_never_merges() -> None:
    assert decide(of(topic(2)), replace(POLICY, merge_msg_rate_in_threshold=0)).action == Keep()


def test_unknown_load_is_never_cold() -> None:
    stale = SegmentRates(measured_s=NOW - 121)
    for rates in ({}, {0: IDLE}, {0: IDLE, 1: stale}):
        decision = decide(of(topic(2), rates), POLICY)
        assert decision.action == Keep()
        assert says(decision, "is unknown" if rates else "the load of 2 segments is unknown")


def test_a_segment_must_be_cold_for_the_whole_window() -> None:
    observed = of(topic(2), history=LoadHistory(cold_since={0: 0, 1: NOW - 200}))
    decision = decide(observed, POLICY)
    assert (decision.action, decision.look_again_s) == (Keep(), 100)
    assert says(decision, "must stay cold for 100 s more")
    assert decide(of(topic(2), history=LoadHistory()), POLICY).action == Keep()


@pytest.mark.parametrize(
    ("history", "name", "left"),
    [
        (LoadHistory(last_split_s=NOW - 20), "split", 40),
        (LoadHistory(last_merge_s=NOW - 20), "merge", 280),
        (LoadHistory(last_split_s=NOW - 20, last_merge_s=NOW - 20), "split", 40),
    ],
)
def test_no_merge_runs_beside_a_cooldown(history: LoadHistory, name: str, left: float) -> None:
    observed = of(topic(2), history=replace(history, cold_since={0: 0, 1: 0}))
    decision = decide(observed, POLICY)
    assert (decision.action, decision.look_again_s) == (Keep(), left)
    assert says(decision, f"merge: the {name} cooldown runs for {left} s more")


def test_one_part_of_the_ring_is_merged_only_so_often() -> None:
    merges = ((HashRange(0, 0x4FFF), 10),)
    history = LoadHistory(cold_since=dict.fromkeys(range(4), 0.0), merges=merges)
    assert decide(of(topic(4), history=history), POLICY).action == Merge((2, 3))
    worn = replace(history, merges=((HashRange(0, 0xFFFF), 10),))
    decision = decide(of(topic(4), history=worn), POLICY)
    assert decision.action == Keep()
    assert says(decision, "merged too often")
    assert decision.capped == {"max_dag_depth"}
    assert decide(of(topic(4)), replace(POLICY, max_dag_depth=0)).action == Keep()


def test_cold_neighbours_make_room_for_a_hot_segment() -> None:
    rates = {0: SegmentRates(20_000), 1: SegmentRates(3_000), 2: IDLE, 3: IDLE}
    assert decide(of(topic(4), rates), replace(POLICY, max_segments=4)).action == Merge((2, 3))


def test_every_other_kind_of_step_has_its_reason() -> None:
    quiet = decide(of(topic(1)), POLICY)
    assert [reason.partition(":")[0] for reason in quiet.against] == [
        "split",
        "split",
        "rebucket",
        "merge",
        "rebucket down",
    ]
    busy = decide(of(topic(1), SegmentRates(20_000)), POLICY)
    assert says(busy, "merge: comes after the step taken now")
    assert busy.look_again_s == POLICY.split_cooldown_seconds


def test_only_what_was_done_is_recorded() -> None:
    layout = topic(4)
    assert record_action(LoadHistory(), layout, Keep(), 5) == LoadHistory()
    assert record_action(LoadHistory(), layout, Split(0, (9,)), 5) == LoadHistory(last_split_s=5)
    assert record_action(LoadHistory(), layout, Rebucket(0, (9,)), 5) == LoadHistory(last_rebucket_s=5)
    merged = record_action(LoadHistory(), layout, Merge((2, 1)), 5)
    assert merged == LoadHistory(last_merge_s=5, merges=((HashRange(0x4000, 0xBFFF), 1),))
