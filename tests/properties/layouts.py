"""Strategies for layouts as a topic's life makes them: any run of splits, merges, rebuckets and prunes."""

from __future__ import annotations

from hypothesis import strategies as st

from anabranch.model.layout import Layout
from anabranch.model.ranges import HashRange


@st.composite
def points(draw: st.DrawFn, part: HashRange, most: int = 5) -> list[int]:
    """Split points inside a range of two slots or more."""
    inside = st.integers(part.start + 1, part.end)
    return sorted(draw(st.sets(inside, min_size=1, max_size=min(most, part.width - 1))))


@st.composite
def next_layouts(draw: st.DrawFn, layout: Layout, prune: bool = True) -> Layout:
    """The layout after one operation that it allows."""
    kinds = ["rebucket"]
    wide = [segment for segment in layout.active if segment.range.width > 1]
    if wide and len(layout.active) < 40:
        kinds.append("split")
    if len(layout.active) > 1:
        kinds.append("merge")
    ready = [segment.id for segment in layout.sealed if not segment.parents]
    if prune and ready:
        kinds.append("prune")
    kind = draw(st.sampled_from(kinds))
    now_ms = layout.epoch + 1
    if kind == "split":
        segment = draw(st.sampled_from(wide))
        return layout.split(segment.id, draw(points(segment.range)), now_ms=now_ms)
    if kind == "merge":
        first = draw(st.integers(0, len(layout.active) - 2))
        last = draw(st.integers(first + 1, min(first + 4, len(layout.active) - 1)))
        ids = [segment.id for segment in layout.active[first : last + 1]]
        return layout.merge(draw(st.permutations(ids)), now_ms=now_ms)
    if kind == "prune":
        return layout.prune(draw(st.sets(st.sampled_from(ready), min_size=1)))
    segment = draw(st.sampled_from(layout.active))
    splits = draw(
        st.sets(st.integers(2, 65535), max_size=5)
        .map(lambda found: tuple(sorted(found)))
        .filter(lambda found: found != segment.bucket_splits)
    )
    return layout.rebucket(segment.id, splits, now_ms=now_ms)


@st.composite
def layouts(draw: st.DrawFn, steps: int = 6, prune: bool = True) -> Layout:
    """Any layout a topic may have after a few operations."""
    layout = Layout.initial(
        draw(st.integers(1, 6)), now_ms=0, bucket_budget=draw(st.sampled_from([1, 4, 16, 64]))
    )
    for _ in range(draw(st.integers(0, steps))):
        layout = draw(next_layouts(layout, prune))
    return layout
