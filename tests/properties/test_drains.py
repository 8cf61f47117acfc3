"""Laws of open buckets after partial drains of sealed segments, compared slot by slot."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.assignment import assign
from anabranch.model.drains import Parts, Ranges, covers, intersection, open_buckets, open_slots, union
from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout
from anabranch.model.ranges import LAST_SLOT, HashRange
from tests.fakes.ready import ready_segments
from tests.properties.layouts import layouts

slots = st.integers(0, LAST_SLOT)
hash_ranges = st.tuples(slots, slots).map(lambda pair: HashRange(min(pair), max(pair)))
slot_sets = st.lists(hash_ranges, max_size=6).map(union)
names = st.lists(st.sampled_from("abcdef"), max_size=6, unique=True)


@st.composite
def drains(draw: st.DrawFn, layout: Layout) -> tuple[frozenset[int], dict[int, Ranges]]:
    """Draw drained segments, and others drained in part: by their own buckets, or by any slots."""
    whole: set[int] = set()
    parts: dict[int, Ranges] = {}
    for segment in layout.sealed:
        how = draw(st.sampled_from(["not", "whole", "buckets", "slots"]))
        if how == "whole":
            whole.add(segment.id)
        elif how == "buckets":
            buckets = bucket_ranges(segment.bucket_splits)
            parts[segment.id] = union(draw(st.sets(st.sampled_from(buckets))))
        elif how == "slots":
            parts[segment.id] = draw(slot_sets)
    return frozenset(whole), parts


def edges(*sets: Ranges) -> set[int]:
    """Slots at which a set can change: looking at these is looking at all."""
    found = {0, LAST_SLOT}
    for part in (part for ranges in sets for part in ranges):
        found |= {part.start, part.end, max(part.start - 1, 0), min(part.end + 1, LAST_SLOT)}
    return found


def open_ranges(layout: Layout, drained: frozenset[int], parts: Parts, id_: int) -> Ranges:
    """The buckets of one segment that may be read."""
    return open_buckets(layout.segment(id_), open_slots(layout, drained, parts)[id_])


def has(ranges: Ranges, slot: int) -> bool:
    return any(slot in part for part in ranges)


@given(st.lists(hash_ranges, max_size=6), slot_sets, hash_ranges)
def test_sets_of_slots_are_sets(given_: list[HashRange], other: Ranges, part: HashRange) -> None:
    one = union(given_)
    both = intersection(one, other)
    for slot in edges(tuple(given_), other, (part,)):
        assert has(one, slot) == any(slot in range_ for range_ in given_)
        assert has(both, slot) == (has(one, slot) and has(other, slot))
    assert both == union(both) == intersection(other, one)
    assert all(left.end + 1 < right.start for left, right in pairwise(one))
    inside = [slot for slot in edges(one, (part,)) if slot in part]
    assert covers(one, part) == all(has(one, slot) for slot in inside)


@given(st.data(), layouts())
def test_a_slot_is_open_exactly_when_every_ancestor_has_drained_it(
    data: st.DataObject, layout: Layout
) -> None:
    drained, parts = data.draw(drains(layout))
    found = open_slots(layout, drained, parts)
    looked_at = edges(*parts.values(), *(bucket_ranges(s.bucket_splits) for s in layout.segments.values()))

    def free(id_: int, slot: int) -> bool:
        return all(up in drained or has(parts.get(up, ()), slot) for up in layout.ancestors(id_))

    for id_, segment in layout.segments.items():
        for slot in looked_at:
            assert has(found[id_], slot) == free(id_, slot)
        readable = open_ranges(layout, drained, parts, id_)
        for bucket in bucket_ranges(segment.bucket_splits):
            wholly = all(free(id_, slot) for slot in looked_at if slot in bucket)
            assert covers(readable, bucket) == wholly
            assert wholly or not intersection(readable, (bucket,)), "never part of a bucket"
    ready = {segment.id for segment in ready_segments(layout, drained, parts)}
    assert ready == {
        id_
        for id_, segment in layout.segments.items()
        if open_ranges(layout, drained, parts, id_) and (segment.active or id_ not in drained)
    }


@given(st.data(), layouts(), names, names)
def test_an_assignment_by_buckets_is_ordered_complete_and_sticky(
    data: st.DataObject, layout: Layout, first: list[str], second: list[str]
) -> None:
    drained, parts = data.draw(drains(layout))
    previous = assign(layout, first, drained, parts=parts)
    result = assign(layout, second, drained, previous, parts=parts)
    ready = {segment.id for segment in ready_segments(layout, drained, parts)}
    readers: dict[int, list[bool]] = {}
    for given_ in result.values():
        for assigned in given_:
            readers.setdefault(assigned.segment, []).append(assigned.shared)
    assert set(readers) == (ready if second else set())
    for id_, shared in readers.items():
        only_part = open_ranges(layout, drained, parts, id_) != (HashRange(0, LAST_SLOT),)
        assert len(set(shared)) == 1, "all its readers read it in the same way"
        assert shared[0] or (len(shared) == 1 and not only_part)
    tails = {id_ for id_ in ready if ready & set(layout.segment(id_).children)}
    counts = [sum(a.segment not in tails for a in given_) for given_ in result.values()]
    if second:
        assert max(counts) - min(counts) <= 1
    assert assign(layout, second, drained, result, parts=parts) == result, "asking again changes nothing"
    alone = assign(layout, second, drained, previous, share=False, parts=parts)
    assert not any(a.shared for given_ in alone.values() for a in given_)
    assert {a.segment for given_ in alone.values() for a in given_} == (
        {segment.id for segment in ready_segments(layout, drained)} if second else set()
    )


@given(st.data(), layouts(), names)
def test_more_open_buckets_of_the_same_segments_move_no_consumer(
    data: st.DataObject, layout: Layout, group: list[str]
) -> None:
    drained, parts = data.draw(drains(layout))
    before = assign(layout, group, drained, parts=parts)
    more = {id_: union((*slots_, *data.draw(slot_sets))) for id_, slots_ in parts.items()}
    ready = {segment.id for segment in ready_segments(layout, drained, parts)}
    if {segment.id for segment in ready_segments(layout, drained, more)} == ready:
        after = assign(layout, group, drained, before, parts=more)
        assert after == before
