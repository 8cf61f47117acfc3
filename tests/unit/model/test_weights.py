from __future__ import annotations

import pytest

from anabranch.errors import LayoutError
from anabranch.model.hashing import check_bucket_splits, equal_bucket_splits
from anabranch.model.ranges import FULL, HashRange
from anabranch.model.scaling.weights import balanced_bucket_splits, balanced_points, largest_share

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


def test_points_that_a_hot_slot_cannot_use_share_the_rest() -> None:
    cells = [(HashRange(100, 199), 40.0), (HashRange(150, 150), 60.0)]
    points = balanced_points(PART, cells, 6)
    assert {150, 151} <= set(points)
    parts = PART.split(points)
    assert max(part.width for part in parts) == 25
    assert min(part.width for part in parts if part.start != 150) == 16


def test_two_hot_slots_stand_alone_if_there_are_parts_enough() -> None:
    cells = [(HashRange(100, 199), 1.0), (HashRange(120, 120), 50.0), (HashRange(121, 121), 49.0)]
    assert balanced_points(PART, cells, 4) == (120, 121, 122)
    assert balanced_points(PART, cells, 3) == (120, 121)
    assert balanced_points(PART, cells, 2) == (121,)


def test_parts_of_one_slot_do_not_count_among_those_that_can_be_cut() -> None:
    cells = [(HashRange(100, 199), 40.0), (HashRange(150, 150), 60.0)]
    points = (150, 151)
    assert largest_share(PART, cells, points) == pytest.approx(0.604)
    assert largest_share(PART, cells, points, divisible=True) == pytest.approx(0.2)
    assert largest_share(HashRange(1, 1), (), (), divisible=True) == 0.0


def test_bucket_boundaries_by_traffic_leave_two_slots_to_the_first_bucket() -> None:
    for hot in (0, 1, 2, 0xFFFF):
        for count in (2, 3, 4, 64, 1024):
            splits = balanced_bucket_splits([(HashRange(hot, hot), 1.0)], count)
            assert len(splits) == count - 1
            assert check_bucket_splits(splits) is None
    assert balanced_bucket_splits((), 4) == equal_bucket_splits(4)
    assert balanced_bucket_splits((), 1) == ()


def test_a_range_cannot_be_cut_finer_than_its_slots() -> None:
    with pytest.raises(LayoutError):
        balanced_points(HashRange(1, 2), (), 3)
    assert balanced_points(HashRange(1, 2), (), 2) == (2,)


def test_the_share_of_a_cut_without_weights_is_its_width() -> None:
    assert largest_share(PART, (), (175,)) == 0.75
    assert largest_share(PART, (), ()) == 1.0
