"""Laws of the cuts that a weighed topic suggests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.layout import Layout
from anabranch.model.ranges import HASH_SLOTS
from anabranch.spark.decide.pipelines.skew import BUCKET_CELLS, better_boundaries, weigh_segments

FOUR = Layout.initial(4, now_ms=0, bucket_budget=16)


@given(st.dictionaries(st.integers(0, HASH_SLOTS - 1), st.integers(1, 10**9), max_size=60), st.integers(1, 9))
def test_every_suggestion_can_be_carried_out(slots: dict[int, int], wanted: int) -> None:
    for one in weigh_segments(FOUR, slots, wanted):
        if one.points:
            after = FOUR.split(one.segment.id, one.points, now_ms=0)
            assert len(after.active) == len(FOUR.active) + len(one.points)


@given(st.dictionaries(st.integers(0, BUCKET_CELLS - 1), st.integers(0, 10**9), max_size=60))
def test_every_suggested_boundary_can_be_carried_out(cells: dict[int, int]) -> None:
    segment = FOUR.active[2]
    boundaries = better_boundaries(segment, cells)
    if boundaries:
        FOUR.rebucket(segment.id, boundaries, now_ms=0)
