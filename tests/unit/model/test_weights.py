from __future__ import annotations

import pytest

from anabranch.errors import LayoutError
from anabranch.model.ranges import FULL, HashRange
from anabranch.model.weights import balanced_points, largest_share

PART = HashRange(100, 199)


def test_without_weights_parts_are_equally_wide() -> None:
    assert balanced_points(FULL, (), 4) == (0x4000, 0x8000, 0xC000)
    assert balanced_points(FULL, [(HashRange(0, 9), 0.0)], 2) == (0x8000,)
    assert balanced_points(PART, (), 1) == ()


def test_points_follow_the_weight() -> None:
    cells = [(HashRange(100, 149), 3.0), (HashRange(150, 199), 1.0)]
    assert balanced_points(PART, cells, 2) == (133,)
    assert largest_share(PART, cells, (133,)) == pytest.approx(0.5, abs=0.02)
    assert largest_share(PART, cells, (150,)) == pytest.approx(0.75)


def test_cells_beyond_the_range_do_not_count() -> None:
    cells = [(HashRange(0, 199), 2.0), (HashRange(200, 300), 99.0)]
    assert balanced_points(PART, cells, 2) == (150,)


def test_points_stand_around_a_hot_slot() -> None:
    cells = [(HashRange(100, 199), 1.0), (HashRange(150, 150), 99.0)]
    points = balanced_points(PART, cells, 4)
    assert {150, 151} <= set(points)
    assert len(points) == 3
    assert largest_share(PART, cells, points) > 0.9


def test_a_hot_slot_at_either_end_still_leaves_room_for_all_parts() -> None:
    for hot in (100, 199):
        points = balanced_points(PART, [(HashRange(hot, hot), 1.0)], 5)
        assert len(PART.split(points)) == 5


def test_a_range_cannot_be_cut_finer_than_its_slots() -> None:
    with pytest.raises(LayoutError):
        balanced_points(HashRange(1, 2), (), 3)
    assert balanced_points(HashRange(1, 2), (), 2) == (2,)


def test_the_share_of_a_cut_without_weights_is_its_width() -> None:
    assert largest_share(PART, (), (175,)) == 0.75
    assert largest_share(PART, (), ()) == 1.0
