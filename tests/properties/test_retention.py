"""Laws of retention over any layouts, sizes and limits."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.controller.decide.retention import kept_sizes, prunable
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.layout import Layout, Segment
from anabranch.model.policies.retention import Retention

NOW_MS = 20_000


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    layout = Layout.initial(draw(st.integers(1, 3)), now_ms=0)
    for step in range(draw(st.integers(0, 8))):
        if draw(st.booleans()) and len(layout.active) > 1:
            layout = layout.merge([segment.id for segment in layout.active[:2]], now_ms=step * 1000)
        else:
            layout = layout.split(draw(st.sampled_from(layout.active)).id, now_ms=step * 1000)
    return layout


LIMITS = st.builds(
    Retention, st.none() | st.sampled_from([0, 13.0, 16.0, 100.0]), st.none() | st.integers(0, 100)
)


def newer(layout: Layout, than: Segment, sizes: Mapping[int, int]) -> int:
    """Bytes in segments that are active or were sealed later."""
    place = than.sealed_ms, than.id
    return sum(sizes[s.id] for s in layout.segments.values() if s.active or (s.sealed_ms, s.id) > place)


@settings(max_examples=300)
@given(st.data(), layouts(), LIMITS)
def test_dropped_segments_are_unneeded_and_beyond_a_limit_and_no_more_could_go(
    data: st.DataObject, layout: Layout, limits: Retention
) -> None:
    sizes = {id_: data.draw(st.integers(0, 30)) for id_ in layout.segments}
    drained = {s.id for s in layout.sealed if data.draw(st.integers(0, 3))}
    record = SubscriptionRecord(type="QUEUE", initial_position="earliest", drained=tuple(sorted(drained)))
    gone = prunable(layout, [record], limits, NOW_MS, sizes)
    left = layout.prune(gone) if gone else layout
    needed = {segment.id for segment in layout.sealed}.difference(record.drained)
    assert not needed & set(gone)
    by_time = set(prunable(layout, [record], limits._replace(size_bytes=None), NOW_MS, sizes))
    assert by_time <= set(gone)
    for id_ in set(gone) - by_time:
        assert limits.size_bytes is not None
        assert newer(layout, layout.segment(id_), sizes) >= limits.size_bytes
    for segment in left.sealed:
        if segment.id not in needed and not segment.parents:
            assert limits.time_s is None or segment.sealed_ms > NOW_MS - limits.time_s * 1000
            assert limits.size_bytes is None or newer(layout, segment, sizes) < limits.size_bytes


@settings(max_examples=300)
@given(st.data(), layouts(), LIMITS)
def test_the_active_segments_keep_enough_for_the_topic(
    data: st.DataObject, layout: Layout, limits: Retention
) -> None:
    sizes = {id_: data.draw(st.integers(0, 30)) for id_ in layout.segments if data.draw(st.integers(0, 5))}
    kept = kept_sizes(layout, limits, sizes)
    assert kept.keys() <= {segment.id for segment in layout.active}
    assert all(0 <= size <= sizes[id_] for id_, size in kept.items())
    held = {segment.id: sizes[segment.id] for segment in layout.active if segment.id in sizes}
    after = sum({**held, **kept}.values())
    if limits.size_bytes is None or sum(held.values()) <= limits.size_bytes:
        assert not kept
    else:
        assert limits.size_bytes <= after <= limits.size_bytes + len(kept)
