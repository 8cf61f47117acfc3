"""Which segments are dropped, and how much of the others, as pure decisions."""

from __future__ import annotations

from anabranch.controller.decide import groups
from anabranch.controller.decide.retention import NO_SIZES, Sizes, kept_sizes, prunable
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.layout import Layout
from anabranch.model.policies.retention import Retention
from anabranch.model.ranges import HashRange
from tests.harness.control import TWO, group

LAYOUT = TWO.split(0, now_ms=100).split(2, now_ms=200)
"""0 -> 2, 3; 2 -> 4, 5; 1, 3, 4 and 5 are active."""

SIZES = {0: 10, 1: 1, 2: 20, 3: 2, 4: 3, 5: 4}
"""40 in all."""

ALWAYS = Retention(None)


def gone(
    *records: SubscriptionRecord,
    limits: Retention = ALWAYS,
    now_ms: int = 1000,
    sizes: Sizes = SIZES,
    layout: Layout = LAYOUT,
) -> tuple[int, ...]:
    return prunable(layout, records, limits, now_ms, sizes)


def test_sealed_segments_are_kept_until_drained_by_all_and_old_enough() -> None:
    drained, behind = group(drained=(0, 2)), group(drained=(0,))
    at_once = Retention(0)
    assert gone() == ()
    assert gone(limits=at_once) == (0, 2)
    assert gone(limits=at_once, now_ms=99) == ()
    assert gone(limits=at_once, now_ms=100) == (0,)
    assert gone(limits=Retention(0.85)) == (0,)
    assert gone(drained, limits=at_once) == (0, 2)
    in_part = groups.rewind(behind, LAYOUT, (0,), {}, {2: (HashRange(0, 9),)})
    assert gone(in_part, limits=at_once) == (0,)
    assert gone(drained, behind, limits=at_once) == (0,)
    assert gone(group(drained=(2,)), limits=at_once) == (), "ancestors first"


def test_checkpoint_groups_and_unused_names_hold_nothing_but_members_without_a_position_do() -> None:
    layout = TWO.split(0, now_ms=100)
    at_once = Retention(0)
    member = groups.join(SubscriptionRecord(type="STREAM"), layout, "a", {})
    assert gone(group("a", kind="CHECKPOINT", layout=layout), limits=at_once, layout=layout) == (0,)
    assert gone(SubscriptionRecord(type="STREAM"), limits=at_once, layout=layout) == (0,)
    assert gone(member, limits=at_once, layout=layout) == ()


def test_the_oldest_go_as_long_as_the_topic_keeps_its_size() -> None:
    assert gone(limits=Retention(None, 31)) == ()
    assert gone(limits=Retention(None, 30)) == (0,)
    assert gone(limits=Retention(None, 11)) == (0,)
    assert gone(limits=Retention(None, 10)) == (0, 2)
    assert gone(limits=Retention(None, 0)) == (0, 2), "active segments stay"


def test_a_segment_that_a_subscription_needs_stays_at_any_size() -> None:
    assert gone(group(drained=(0,)), limits=Retention(None, 0)) == (0,)
    assert gone(group(drained=(2,)), limits=Retention(None, 0)) == (), "ancestors first"


def test_old_data_that_a_subscription_needs_does_not_displace_newer_data() -> None:
    layout = TWO.split(1, now_ms=100).split(0, now_ms=200)
    sizes = {1: 30, 0: 10, 2: 1, 3: 1, 4: 1, 5: 1}
    behind_in_the_first = group(drained=(0,), layout=layout)
    assert gone(behind_in_the_first, limits=Retention(None, 5), sizes=sizes, layout=layout) == ()
    assert gone(behind_in_the_first, limits=Retention(None, 4), sizes=sizes, layout=layout) == (0,)
    behind_in_the_second = group(drained=(1,), layout=layout)
    assert gone(behind_in_the_second, limits=Retention(None, 15), sizes=sizes, layout=layout) == ()
    assert gone(behind_in_the_second, limits=Retention(None, 14), sizes=sizes, layout=layout) == (1,)


def test_either_limit_is_enough_and_data_dropped_by_time_counts_for_the_size() -> None:
    first_is_old = Retention(0.85, 30)
    assert gone(limits=first_is_old) == (0,)
    assert gone(limits=first_is_old._replace(size_bytes=11)) == (0,)
    assert gone(limits=first_is_old._replace(size_bytes=10)) == (0, 2)
    assert gone(limits=Retention(0.7, 1000)) == (0, 2)


def test_a_segment_of_unknown_size_counts_for_nothing_and_stays() -> None:
    without = {id_: size for id_, size in SIZES.items() if id_ != 0}
    assert gone(limits=Retention(None, 0), sizes=without) == (), "its child waits for it"
    assert gone(limits=Retention(None, 15), sizes={0: 10, 2: 20}) == (0,)
    assert gone(limits=Retention(None, 0), sizes=NO_SIZES) == ()
    assert gone(limits=Retention(None, 5), sizes={**SIZES, 77: 1000}) == (0, 2)
    assert gone(limits=Retention(None, 11), sizes={**SIZES, 77: 1000}) == (0,), "not a segment of the topic"


def test_active_segments_give_up_the_same_part_of_their_data() -> None:
    layout = LAYOUT.prune([0, 2])
    assert kept_sizes(layout, Retention(None, 5), SIZES) == {1: 1, 3: 1, 4: 2, 5: 2}
    assert kept_sizes(layout, Retention(None, 0), SIZES) == dict.fromkeys([1, 3, 4, 5], 0)
    assert kept_sizes(layout, Retention(None, 10), SIZES) == {}
    assert kept_sizes(layout, ALWAYS, SIZES) == {}
    assert kept_sizes(layout, Retention(None, 5), NO_SIZES) == {}


def test_sealed_segments_do_not_count_against_active_ones() -> None:
    assert kept_sizes(LAYOUT, Retention(None, 10), SIZES) == {}
    assert kept_sizes(LAYOUT, Retention(None, 5), SIZES) == {1: 1, 3: 1, 4: 2, 5: 2}
    assert kept_sizes(LAYOUT, Retention(None, 0), {0: 10}) == {}
