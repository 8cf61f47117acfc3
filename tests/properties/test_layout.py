from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.hashing import bucket_hash, bucket_index, bucket_ranges, segment_hash
from anabranch.model.layout import Layout
from anabranch.model.ranges import FULL, HASH_SLOTS, HashRange, initial_ranges
from anabranch.model.routing import Router
from anabranch.model.weights import balanced_points, largest_share
from simulation.judges.layout_checks import check, check_step
from tests.properties.layouts import layouts, next_layouts, points

slots = st.integers(0, HASH_SLOTS - 1)
ranges = st.tuples(slots, slots).map(lambda ends: HashRange(min(ends), max(ends)))


@given(ranges, st.data())
def test_parts_of_a_split_tile_the_range_and_join_back(part: HashRange, data: st.DataObject) -> None:
    if part.width == 1:
        return
    cut = part.split(data.draw(points(part)))
    assert HashRange.join(cut) == part
    assert sum(piece.width for piece in cut) == part.width
    assert HashRange.parse(str(part)) == part


@given(ranges, st.integers(1, 300))
def test_even_parts_differ_by_one_slot_at_most(part: HashRange, count: int) -> None:
    cut = part.parts(min(count, part.width))
    assert HashRange.join(cut) == part
    assert max(piece.width for piece in cut) - min(piece.width for piece in cut) <= 1


@given(st.integers(1, HASH_SLOTS))
def test_initial_ranges_tile_the_ring(count: int) -> None:
    found = initial_ranges(count)
    assert len(found) == count
    assert HashRange.join(found) == FULL


@given(st.data())
def test_every_operation_leads_from_a_sound_layout_to_a_sound_one(data: st.DataObject) -> None:
    before = data.draw(layouts())
    assert check(before) == ()
    after = data.draw(next_layouts(before))
    assert check_step(before, after) == ()
    assert after.epoch == before.epoch + 1


@given(layouts(), st.integers(0, 2**32 - 1))
def test_every_hash_has_exactly_one_segment_and_bucket(layout: Layout, raw: int) -> None:
    router = Router(layout)
    segment = router.segment_for(raw)
    holders = [held for held in layout.active if segment_hash(raw) in held.range]
    assert holders == [segment]
    buckets = bucket_ranges(segment.bucket_splits)
    assert HashRange.join(buckets) == FULL
    assert bucket_hash(raw) in buckets[bucket_index(segment.bucket_splits, bucket_hash(raw))]


@given(layouts(prune=False))
def test_ancestors_and_descendants_mirror_each_other(layout: Layout) -> None:
    for id_ in layout.segments:
        assert all(id_ in layout.descendants(other) for other in layout.ancestors(id_))
        assert all(id_ in layout.ancestors(other) for other in layout.descendants(id_))
        assert all(other < id_ for other in layout.ancestors(id_))


@given(st.data())
def test_pruning_in_any_allowed_order_ends_in_the_same_layout(data: st.DataObject) -> None:
    layout = data.draw(layouts(prune=False))
    if not layout.sealed:
        return
    one = layout.prune([segment.id for segment in layout.sealed])
    while layout.sealed:
        ready = [segment.id for segment in layout.sealed if not segment.parents]
        layout = layout.prune([data.draw(st.sampled_from(ready))])
        assert check(layout) == ()
    assert one.segments == layout.segments


cells = st.lists(st.tuples(ranges, st.floats(0, 1e6)), max_size=8)


@given(ranges, cells, st.integers(1, 20))
def test_balanced_points_always_cut_into_that_many_parts(
    part: HashRange, weights: list[tuple[HashRange, float]], count: int
) -> None:
    count = min(count, part.width)
    found = balanced_points(part, weights, count)
    assert len(found) == count - 1
    if found:
        assert len(part.split(found)) == count
    assert 0 < largest_share(part, weights, found) <= 1 + 1e-9


@given(st.lists(st.floats(0.01, 100), min_size=256, max_size=256), st.integers(2, 8))
def test_balanced_points_share_the_load_up_to_one_slot(loads: list[float], count: int) -> None:
    part = HashRange(1000, 1255)
    weights = [(HashRange(1000 + index, 1000 + index), load) for index, load in enumerate(loads)]
    share = largest_share(part, weights, balanced_points(part, weights, count))
    assert share <= 1 / count + 2 * max(loads) / sum(loads) + 1e-9
