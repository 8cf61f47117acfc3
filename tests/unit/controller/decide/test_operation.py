"""Operations as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from anabranch.controller.decide import operation
from anabranch.controller.decide.operation import LayoutVersion, Origin, RequestedChange
from anabranch.errors import ConflictError, LayoutError, SegmentNotFoundError
from anabranch.metadata.records import IntentRecord
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.scaling.observed import LoadHistory
from anabranch.model.scaling.scale_steps import Action, Merge, Rebucket, Split
from simulation.judges.layout_checks import check

TOPIC = TopicName.parse("topic://public/default/orders")
ORIGIN = Origin(term=3, now_ms=50, reason="by hand")
LAYOUT = Layout.initial(4, now_ms=0, bucket_budget=16)


def finish(intent: IntentRecord, layout: Layout = LAYOUT) -> Layout:
    after = operation.next_layout(operation.reserve(layout, intent), intent, 60)
    assert check(after) == ()
    return after


def test_a_split_without_points_is_in_the_middle() -> None:
    intent = operation.plan_split(LAYOUT, TOPIC, {1: None}, ORIGIN)
    assert intent.steps[0].points == (0x6000,)
    assert intent.child_names == (
        "segment://public/default/orders/4000-5fff-4",
        "segment://public/default/orders/6000-7fff-5",
    )
    assert (intent.first_id, intent.term, intent.started_at_ms, intent.reason) == (4, 3, 50, "by hand")


def test_children_take_the_reserved_ids_and_the_time_of_the_commit() -> None:
    intent = operation.plan_split(LAYOUT, TOPIC, {1: [0x5000, 0x6000]}, ORIGIN)
    after = finish(intent)
    assert [str(operation.segment_name(TOPIC, after.segment(id_))) for id_ in (4, 5, 6)] == list(
        intent.child_names
    )
    assert after.segment(1).sealed_ms == after.segment(4).created_ms == 60
    assert after.next_id == 7


def test_one_operation_may_split_several_segments() -> None:
    intent = operation.plan_split(LAYOUT, TOPIC, {2: None, 0: [0x1000]}, ORIGIN)
    after = finish(intent)
    assert len(after.active) == 6
    assert [segment.id for segment in operation.parents(LAYOUT, intent)] == [0, 2]
    assert [place.name.segment.id for place in operation.children(intent) if place.name.segment] == [
        4,
        5,
        6,
        7,
    ]
    assert after.segment(0).children == (4, 5)


def test_one_operation_may_rebucket_several_segments() -> None:
    after = finish(operation.plan_rebucket(LAYOUT, TOPIC, {3: (7,), 1: (8, 9)}, ORIGIN))
    assert [after.segment(id_).bucket_splits for id_ in (4, 5)] == [(8, 9), (7,)]


def test_a_merge_takes_any_run_of_neighbours() -> None:
    after = finish(operation.plan_merge(LAYOUT, TOPIC, [2, 1, 3], ORIGIN))
    assert [segment.id for segment in after.active] == [0, 4]


def test_ids_reserved_by_others_meanwhile_are_not_disturbed() -> None:
    intent = operation.plan_split(LAYOUT, TOPIC, {1: None}, ORIGIN)
    later = operation.reserve(LAYOUT, intent).reserve(5)
    after = operation.next_layout(later, intent, 60)
    assert (sorted(after.segments)[-1], after.next_id) == (5, 11)


def test_a_creation_lists_the_segments_to_make_and_changes_nothing() -> None:
    intent = operation.plan_create(LAYOUT, TOPIC, ORIGIN)
    assert len(operation.children(intent)) == 4
    assert operation.parents(LAYOUT, intent) == ()
    assert operation.next_layout(LAYOUT, intent, 60) == LAYOUT


@pytest.mark.parametrize(
    "actions",
    [
        (Split(0, (5,)), Split(1, (0x5000,))),
        (Merge((0, 1)),),
        (Rebucket(0, (9,)), Rebucket(2, (9,))),
    ],
)
def test_the_steps_of_one_decision_become_one_operation(actions: tuple[Action, ...]) -> None:
    intent = operation.plan(LAYOUT, TOPIC, actions, Origin(1, 2, "load", automatic=True))
    assert intent.automatic
    assert len(intent.steps) == len(actions)
    finish(intent)


def test_an_impossible_operation_is_refused_before_it_is_recorded() -> None:
    with pytest.raises(SegmentNotFoundError):
        operation.plan_split(LAYOUT, TOPIC, {9: None}, ORIGIN)
    with pytest.raises(LayoutError):
        operation.plan_split(LAYOUT, TOPIC, {1: [0]}, ORIGIN)
    with pytest.raises(LayoutError):
        operation.plan_merge(LAYOUT, TOPIC, [0, 2], ORIGIN)
    with pytest.raises(LayoutError):
        operation.plan_rebucket(LAYOUT, TOPIC, {}, ORIGIN)
    sealed = finish(operation.plan_split(LAYOUT, TOPIC, {1: None}, ORIGIN))
    with pytest.raises(LayoutError):
        operation.plan_split(sealed, TOPIC, {1: None}, ORIGIN)


def test_history_counts_automatic_merges_only_but_starts_every_cooldown() -> None:
    def after(kind: str, automatic: bool) -> LoadHistory:
        origin = Origin(1, 2, "", automatic)
        intent = {
            "split": operation.plan_split(LAYOUT, TOPIC, {0: None}, origin),
            "merge": operation.plan_merge(LAYOUT, TOPIC, [0, 1], origin),
            "rebucket": operation.plan_rebucket(LAYOUT, TOPIC, {0: (9,)}, origin),
        }[kind]
        return operation.remember(LoadHistory(), LAYOUT, intent, 77.0)

    for automatic in (False, True):
        assert after("split", automatic) == LoadHistory(last_split_s=77.0)
        assert after("rebucket", automatic) == LoadHistory(last_rebucket_s=77.0)
        assert after("merge", automatic).last_merge_s == 77.0
    assert after("merge", False).merges == ()
    assert after("merge", True).merges_in(LAYOUT.segment(0).range) == 1


def test_a_legacy_segment_is_where_its_messages_are() -> None:
    legacy = replace(LAYOUT.segment(0), legacy_topic="persistent://public/default/old-partition-0")
    assert str(operation.segment_name(TOPIC, legacy)) == "persistent://public/default/old-partition-0"


def test_new_segments_go_to_the_stores_that_hold_the_fewest() -> None:
    origin = replace(ORIGIN, stores=(0, 1, 2))
    intent = operation.plan_split(LAYOUT, TOPIC, {1: [0x4800, 0x5000, 0x6000]}, origin)
    # Segments 0, 2 and 3 stay where they are, in store 0.
    assert intent.child_stores == (1, 2, 1, 2)
    assert [place.store for place in operation.children(intent)] == [1, 2, 1, 2]
    after = finish(intent)
    assert [after.segment(id_).store for id_ in (0, 4, 5, 6, 7)] == [0, 1, 2, 1, 2]


@pytest.mark.parametrize("points", [None, [0x5000], [0x5000, 0x6000]])
def test_a_split_was_made_if_the_children_are_those_that_were_asked_for(points: list[int] | None) -> None:
    def change(layout: Layout, at: list[int] | None = points) -> Layout:
        return layout.split(1, at, now_ms=0)

    after = finish(operation.plan_split(LAYOUT, TOPIC, {1: points}, ORIGIN))
    assert operation.was_made(after, [1], change)
    assert operation.was_made(after.merge([4, 5], now_ms=0), [1], change), "later changes do not matter"
    assert not operation.was_made(LAYOUT, [1], change), "it is not sealed"
    assert not operation.was_made(after, [1], lambda layout: change(layout, [0x4800]))
    assert not operation.was_made(after, [1], lambda layout: change(layout, [0x9000])), "it cannot be made"
    other = LAYOUT.merge([1, 2], now_ms=0)
    assert not operation.was_made(other, [1], change)


def test_a_merge_was_made_if_the_same_segments_have_one_child() -> None:
    after = LAYOUT.merge([2, 1], now_ms=0)
    assert operation.was_made(after, [1, 2], lambda layout: layout.merge([1, 2], now_ms=0))
    assert not operation.was_made(
        LAYOUT.merge([1, 2, 3], now_ms=0), [1, 2], lambda layout: layout.merge([1, 2], now_ms=0)
    )
    apart = LAYOUT.split(1, now_ms=0).split(2, now_ms=0)
    assert not operation.was_made(apart, [1, 2], lambda layout: layout.merge([1, 2], now_ms=0))


def test_a_rebucket_was_made_if_the_boundaries_are_those_that_were_asked_for() -> None:
    after = LAYOUT.rebucket(1, [0x4000], now_ms=0)
    assert operation.was_made(after, [1], lambda layout: layout.rebucket(1, [0x4000], now_ms=0))
    assert not operation.was_made(after, [1], lambda layout: layout.rebucket(1, [0x5000], now_ms=0))


def requested(points: Sequence[int] | None, expected: LayoutVersion | None) -> RequestedChange:
    return RequestedChange(
        (1,), lambda layout: operation.plan_split(layout, TOPIC, {1: points}, ORIGIN), expected
    )


def test_a_repeated_change_is_recognised_by_the_layout_that_it_refers_to() -> None:
    seen = LayoutVersion(7, LAYOUT.epoch)
    after = LAYOUT.split(1, None, now_ms=0)
    assert not operation.is_made(requested(None, seen), LAYOUT, 7), "it arrives for the first time"
    assert operation.is_made(requested(None, seen), after, 7)
    assert not operation.is_made(requested([0x4800], seen), after, 7), "another split came first"
    assert not operation.is_made(requested(None, LayoutVersion(7, after.epoch)), after, 7)
    assert not operation.is_made(requested(None, None), after, 7)


def test_a_repeated_change_conflicts_if_the_topic_or_the_segment_is_gone() -> None:
    seen = LayoutVersion(7, LAYOUT.epoch)
    after = LAYOUT.split(1, None, now_ms=0)
    with pytest.raises(ConflictError, match="created again"):
        operation.is_made(requested(None, seen), after, 8)
    with pytest.raises(ConflictError, match="may already have been made"):
        operation.is_made(requested(None, seen), after.prune([1]), 7)
