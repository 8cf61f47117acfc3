from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.assignment import Assigned, assign
from anabranch.model.layout import Layout
from tests.fakes.ready import ready_segments
from tests.properties.layouts import layouts

Result = Mapping[str, tuple[Assigned, ...]]
groups = st.lists(st.sampled_from("abcdefghij"), max_size=10)


@st.composite
def drains(draw: st.DrawFn, layout: Layout) -> frozenset[int]:
    """Any set of sealed segments, or a set in which children come after parents."""
    sealed = [segment.id for segment in layout.sealed]
    some = frozenset(draw(st.sets(st.sampled_from(sealed)))) if sealed else frozenset[int]()
    if draw(st.booleans()):
        return some
    return frozenset(id_ for id_ in some if layout.ancestors(id_) <= some)


def owners(result: Result) -> dict[int, list[tuple[str, bool]]]:
    found: dict[int, list[tuple[str, bool]]] = {}
    for name, given_ in result.items():
        for assigned in given_:
            found.setdefault(assigned.segment, []).append((name, assigned.shared))
    return found


@given(st.data(), layouts(), groups, groups)
def test_an_assignment_is_ordered_complete_even_and_sticky(
    data: st.DataObject, layout: Layout, first: list[str], second: list[str]
) -> None:
    drained = data.draw(drains(layout))
    load = {id_: float(data.draw(st.integers(0, 5))) for id_ in layout.segments}
    previous = assign(layout, first, drained, {}, load)
    result = assign(layout, second, drained, previous, load)
    assert result == assign(layout, list(reversed(second)), drained, previous, load)
    assert sorted(result) == sorted(set(second))

    ready = {segment.id: segment for segment in ready_segments(layout, drained)}
    given_ = owners(result)
    for id_ in given_:
        assert layout.ancestors(id_) <= drained
        assert layout.segment(id_).active or id_ not in drained
    assert set(given_) == (set(ready) if second else set())
    for id_, names in given_.items():
        assert len(names) <= ready[id_].bucket_count or len(names) == 1
        assert all(shared == (len(names) > 1) for _, shared in names)

    counts = [len(segments) for segments in result.values()]
    if second and len(result) <= len(ready):
        assert max(counts) - min(counts) <= 1
        assert all(len(names) == 1 for names in given_.values())
    elif second:
        assert max(counts) <= 1
        buckets = sum(segment.bucket_count for segment in ready.values())
        assert sum(counts) == min(len(result), buckets)
    # Asking again changes nothing.
    assert assign(layout, second, drained, result, load) == result


@given(layouts(prune=False), st.integers(1, 12), st.data())
def test_join_and_leave_move_the_fewest_segments_possible(
    layout: Layout, count: int, data: st.DataObject
) -> None:
    names = [f"c{index}" for index in range(count)]
    drained = frozenset(segment.id for segment in layout.sealed)
    before = assign(layout, names, drained)
    if data.draw(st.booleans()):
        after_names = [*names, data.draw(st.sampled_from(["a", "z"]))]
    else:
        leaver = data.draw(st.sampled_from(names))
        after_names = [name for name in names if name != leaver]
    after = assign(layout, after_names, drained, before)
    if not after_names:
        return
    segments = len(layout.active)
    kept = {name: len(set(_ids(before.get(name, ()))) & set(_ids(after[name]))) for name in after_names}
    if len(names) <= segments and len(after_names) <= segments:
        even, odd = divmod(segments, len(after_names))
        had = sorted((len(before.get(name, ())) for name in after_names), reverse=True)
        most = sum(min(size, even + (place < odd)) for place, size in enumerate(had))
        assert sum(kept.values()) == most
    elif len(names) > segments and len(after_names) > segments:
        moved = [name for name in after_names if before.get(name) and not kept[name]]
        # A leaver may leave a segment unread, or too little shared; one other consumer steps in.
        assert len(moved) <= (len(after_names) < len(names))


@given(layouts(prune=False, steps=3), st.integers(1, 6), st.data())
def test_a_child_goes_to_the_reader_of_a_parent_when_balance_allows(
    layout: Layout, count: int, data: st.DataObject
) -> None:
    names = [f"c{index}" for index in range(count)]
    drained = frozenset(segment.id for segment in layout.sealed)
    before = assign(layout, names, drained)
    wide = [segment for segment in layout.active if segment.range.width > 1]
    segment = data.draw(st.sampled_from(wide))
    after_split = layout.split(segment.id, now_ms=9)
    children = after_split.segment(segment.id).children
    after = assign(after_split, names, drained | {segment.id}, before)
    readers = {name for name in names if segment.id in _ids(before[name])}
    heirs = {name for name in names if set(children) & set(_ids(after[name]))}
    assert readers & heirs
    for name in names:
        # The other consumers keep their segments.
        lost = set(_ids(before[name])) - set(_ids(after[name])) - {segment.id}
        assert not lost or len(names) > len(layout.active)


def _ids(given_: tuple[Assigned, ...]) -> list[int]:
    return [assigned.segment for assigned in given_]
