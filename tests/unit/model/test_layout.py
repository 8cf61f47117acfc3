from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from anabranch.errors import LayoutError, SegmentNotFoundError
from anabranch.model.hashing import MAX_BUCKETS, equal_bucket_splits
from anabranch.model.layout import Layout, Segment, SegmentState
from anabranch.model.ranges import FULL, HashRange
from simulation.judges.layout_checks import check, check_step


def ring(layout: Layout) -> list[tuple[int, str]]:
    return [(segment.id, str(segment.range)) for segment in layout.active]


def test_a_new_topic_has_equal_segments_that_share_the_bucket_budget() -> None:
    layout = Layout.initial(2, now_ms=5)
    assert (layout.epoch, layout.next_id) == (0, 2)
    assert ring(layout) == [(0, "0000-7fff"), (1, "8000-ffff")]
    assert [segment.bucket_count for segment in layout.active] == [2, 2]
    assert layout.segment(0).created_ms == 5
    assert check(layout) == ()


@pytest.mark.parametrize(
    ("count", "budget", "buckets"), [(1, 4, 4), (3, 4, 1), (8, 4, 1), (1, 10**6, MAX_BUCKETS)]
)
def test_every_segment_gets_at_least_one_bucket(count: int, budget: int, buckets: int) -> None:
    layout = Layout.initial(count, now_ms=0, bucket_budget=budget)
    assert {segment.bucket_count for segment in layout.active} == {buckets}


def test_a_recreated_topic_goes_on_with_the_ids() -> None:
    layout = Layout.initial(2, now_ms=0, first_id=7)
    assert [segment.id for segment in layout.active] == [7, 8]
    assert layout.next_id == 9
    assert check(layout) == ()


def test_a_split_seals_the_parent_and_gives_the_lower_half_the_lower_id() -> None:
    before = Layout.initial(1, now_ms=0)
    after = before.split(0, now_ms=9)
    assert ring(after) == [(1, "0000-7fff"), (2, "8000-ffff")]
    parent, child = after.segment(0), after.segment(1)
    assert parent.state is SegmentState.SEALED
    assert (parent.children, parent.sealed_epoch, parent.sealed_ms) == ((1, 2), 1, 9)
    assert (child.parents, child.created_epoch, child.created_ms) == ((0,), 1, 9)
    assert child.bucket_count == 2
    assert (after.epoch, after.next_id) == (1, 3)
    assert before.segment(0).active
    assert check_step(before, after) == ()


def test_a_split_takes_any_points() -> None:
    layout = Layout.initial(1, now_ms=0, bucket_budget=9).split(0, [1, 0x10, 0xFFFF], now_ms=1)
    assert ring(layout) == [(1, "0000-0000"), (2, "0001-000f"), (3, "0010-fffe"), (4, "ffff-ffff")]
    assert {segment.bucket_count for segment in layout.active} == {2}
    assert check(layout) == ()


def test_one_operation_makes_sixty_four_segments() -> None:
    points = [part.start for part in FULL.parts(64)[1:]]
    layout = Layout.initial(1, now_ms=0).split(0, points, now_ms=1)
    assert len(layout.active) == 64
    assert layout.epoch == 1


def test_a_single_slot_cannot_be_split() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, [1], now_ms=1)
    with pytest.raises(LayoutError, match="single slot"):
        layout.split(1, now_ms=2)


def test_a_merge_joins_any_run_named_in_any_order() -> None:
    before = Layout.initial(4, now_ms=0, bucket_budget=12)
    after = before.merge([3, 1, 2], now_ms=9)
    assert ring(after) == [(0, "0000-3fff"), (4, "4000-ffff")]
    assert after.segment(4).parents == (1, 2, 3)
    assert after.segment(4).bucket_count == 9
    assert after.segment(2).children == (4,)
    assert check_step(before, after) == ()


def test_a_merge_keeps_at_most_the_largest_number_of_buckets() -> None:
    layout = Layout.initial(2, now_ms=0, bucket_budget=2000).merge([0, 1], now_ms=1)
    assert layout.active[0].bucket_count == MAX_BUCKETS


@pytest.mark.parametrize("ids", [[], [0], [0, 0], [0, 2], [0, 1, 3]])
def test_a_merge_wants_two_or_more_neighbours(ids: list[int]) -> None:
    with pytest.raises(LayoutError):
        Layout.initial(4, now_ms=0).merge(ids, now_ms=1)


def test_a_merge_says_which_segments_are_not_neighbours() -> None:
    with pytest.raises(LayoutError, match=r"segments 1 \(4000-7fff\) and 3 \(c000-ffff\) are not neighbours"):
        Layout.initial(4, now_ms=0).merge([3, 0, 1], now_ms=1)


def test_a_rebucket_keeps_the_range_and_takes_any_boundaries() -> None:
    before = Layout.initial(2, now_ms=0)
    after = before.rebucket(1, [2, 3, 0xFFFF], now_ms=9)
    assert ring(after) == [(0, "0000-7fff"), (2, "8000-ffff")]
    assert after.segment(2).bucket_splits == (2, 3, 0xFFFF)
    assert after.segment(2).parents == (1,)
    assert check_step(before, after) == ()


@pytest.mark.parametrize("splits", [[0x8000], [1], [5, 5], [70000], list(range(2, 2000))])
def test_a_rebucket_refuses_the_same_or_impossible_boundaries(splits: list[int]) -> None:
    with pytest.raises(LayoutError):
        Layout.initial(2, now_ms=0).rebucket(1, splits, now_ms=1)


def test_operations_refuse_what_is_sealed_or_unknown() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, now_ms=1)
    operations: list[Callable[[int], Layout]] = [
        lambda id_: layout.split(id_, now_ms=2),
        lambda id_: layout.merge([id_, 1], now_ms=2),
        lambda id_: layout.rebucket(id_, [2], now_ms=2),
    ]
    for operation in operations:
        with pytest.raises(LayoutError, match="children are 1, 2"):
            operation(0)
        with pytest.raises(SegmentNotFoundError, match=r"no segment 99; active segments: 1, 2$"):
            operation(99)
    with pytest.raises(SegmentNotFoundError, match=r"active segments: 0, 1, 2, 3, 4, 5, 6, 7, [.]{3}$"):
        Layout.initial(9, now_ms=0).segment(99)


def test_reserved_ids_are_used_by_the_operation_they_were_reserved_for() -> None:
    layout = Layout.initial(1, now_ms=0)
    reserved = layout.reserve(2)
    assert (reserved.epoch, reserved.next_id) == (0, 3)
    assert reserved.split(0, now_ms=1, first_id=1) == layout.split(0, now_ms=1)
    skipped = reserved.split(0, now_ms=1)
    assert [segment.id for segment in skipped.active] == [3, 4]
    assert check(skipped) == ()
    with pytest.raises(LayoutError, match="not free"):
        skipped.split(3, now_ms=2, first_id=4)
    with pytest.raises(LayoutError):
        layout.reserve(-1)


def test_a_prune_forgets_the_oldest_and_cuts_the_links() -> None:
    layout = Layout.initial(2, now_ms=0).split(0, now_ms=1).merge([3, 1], now_ms=2)
    pruned = layout.prune([0])
    assert pruned.epoch == layout.epoch + 1
    assert pruned.segment(3).parents == ()
    assert pruned.segment(4).parents == (3, 1)
    assert check_step(layout, pruned) == ()
    half = pruned.prune([1])
    assert half.segment(4).parents == (3,)
    assert check_step(pruned, half) == ()
    together = layout.prune([3, 0, 1])
    assert [segment.id for segment in together.active] == [2, 4]
    assert not together.sealed
    assert check_step(layout, together) == ()


def test_a_prune_refuses_active_segments_and_those_with_ancestors() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, now_ms=1).split(1, now_ms=2)
    with pytest.raises(LayoutError, match="active"):
        layout.prune([2])
    with pytest.raises(LayoutError, match="before its ancestors 0"):
        layout.prune([1])
    with pytest.raises(LayoutError, match="at least one"):
        layout.prune([])
    with pytest.raises(SegmentNotFoundError):
        layout.prune([99])


def test_lineage_is_transitive() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, now_ms=1).split(1, now_ms=2).merge([4, 2], now_ms=3)
    assert layout.ancestors(5) == {0, 1, 2, 4}
    assert layout.ancestors(3) == {0, 1}
    assert layout.descendants(0) == {1, 2, 3, 4, 5}
    assert layout.descendants(5) == frozenset()
    assert [segment.id for segment in layout.sealed] == [0, 1, 2, 4]


def test_a_migrated_topic_is_sound() -> None:
    parents = {
        id_: Segment(
            id_,
            FULL,
            SegmentState.SEALED,
            children=(2, 3),
            sealed_epoch=0,
            sealed_ms=1,
            legacy_topic=f"p{id_}",
        )
        for id_ in (0, 1)
    }
    children = {
        id_: Segment(id_, part, parents=(0, 1)) for id_, part in zip((2, 3), FULL.halves(), strict=True)
    }
    assert check(Layout(0, 4, parents | children)) == ()


SOUND = Layout.initial(2, now_ms=0).split(0, now_ms=1).merge([3, 1], now_ms=2)


def broken(id_: int, **changes: object) -> Layout:
    segment = replace(SOUND.segment(id_), **changes)  # type: ignore[arg-type]
    return Layout(SOUND.epoch, SOUND.next_id, {**SOUND.segments, id_: segment})


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (broken(2, range=HashRange(0, 0x3FFE)), "starts at"),
        (broken(4, range=HashRange(0x4000, 0xFFFE)), "end at"),
        (broken(4, range=HashRange(0x3000, 0xFFFF)), "starts at"),
        (broken(2, state=SegmentState.SEALED, sealed_epoch=1), "starts at"),
        (broken(2, id=9), "another id"),
        (Layout(2, 4, SOUND.segments), "outside"),
        (broken(2, bucket_splits=(1,)), "boundaries"),
        (broken(2, bucket_splits=(9, 9)), "boundaries"),
        (broken(2, bucket_splits=(*equal_bucket_splits(1024), 65535)), "at most"),
        (broken(2, created_epoch=7), "created at epoch"),
        (broken(2, children=(4,)), "active and has children"),
        (broken(2, sealed_epoch=2), "time of sealing"),
        (broken(2, sealed_ms=2), "time of sealing"),
        (broken(0, sealed_epoch=9), "sealed at epoch"),
        (broken(0, sealed_epoch=-1), "sealed at epoch"),
        (broken(2, parents=()), "does not name it as a parent"),
        (broken(2, parents=(99,)), "unknown parent"),
        (broken(2, parents=(0, 0)), "twice"),
        (broken(2, parents=(0, 1)), "does not name it as a child"),
        (broken(0, children=(2,)), "uncovered"),
        (broken(0, children=()), "uncovered"),
        (broken(0, children=(2, 3, 99)), "unknown child"),
        (broken(0, parents=(3,)), "not above its parent"),
        (broken(4, created_epoch=1), "epoch that sealed its parent"),
        (broken(1, range=HashRange(0, 9)), "takes nothing"),
        (Layout(0, 0, {}), "end at"),
    ],
)
def test_the_check_of_a_layout_names_each_defect(layout: Layout, says: str) -> None:
    assert check(SOUND) == ()
    assert any(says in wrong for wrong in check(layout)), check(layout)


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (SOUND, "does not rise"),
        (Layout(9, 3, SOUND.segments), "next id falls"),
        (replace(broken(0, range=HashRange(0, 1)), epoch=9), "changed its range"),
        (replace(broken(2, bucket_splits=(2,)), epoch=9), "changed its range"),
        (replace(broken(2, parents=(0, 1)), epoch=9), "gained parents"),
        (replace(broken(0, state=SegmentState.ACTIVE), epoch=9), "changed its state"),
        (Layout(9, 9, {2: replace(SOUND.segment(2), range=FULL)}), "vanished"),
    ],
)
def test_history_may_not_be_rewritten(after: Layout, says: str) -> None:
    assert any(says in wrong for wrong in check_step(SOUND, after)), check_step(SOUND, after)


def test_a_new_segment_may_not_take_an_old_id() -> None:
    before = SOUND.prune([0])
    after = replace(SOUND, epoch=9)
    assert any("not above the ids before" in wrong for wrong in check_step(before, after))


def classic(count: int) -> Layout:
    """The layout before a migration: classic topics, each with some range."""
    segments = {
        id_: replace(segment, legacy_topic=f"persistent://public/default/t-partition-{id_}", bucket_splits=())
        for id_, segment in Layout.initial(count, now_ms=0).segments.items()
    }
    return Layout(0, count, segments)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_classic_topics_go_on_in_segments_that_descend_from_all_of_them(count: int) -> None:
    before = classic(count)
    after = before.migrate((100, 200), now_ms=5)
    assert check(before) == check(after) == check_step(before, after) == ()
    assert [segment.range for segment in after.sealed] == [FULL] * count
    assert [segment.parents for segment in after.active] == [tuple(range(count))] * count
    assert all(segment.bucket_splits == (100, 200) for segment in after.active)
    later = after.split(count, now_ms=6)
    assert check(later) == check_step(after, later) == ()
    assert check(later.prune(range(count))) == ()


def test_only_classic_topics_are_migrated() -> None:
    with pytest.raises(LayoutError, match="classic"):
        Layout.initial(2, now_ms=0).migrate(now_ms=1)
    with pytest.raises(LayoutError, match="classic"):
        classic(2).migrate(now_ms=1).migrate(now_ms=2)
