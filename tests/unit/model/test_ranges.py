from __future__ import annotations

import pytest

from anabranch.errors import LayoutError
from anabranch.model.ranges import FULL, HASH_SLOTS, HashRange, initial_ranges


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (6, 5), (0, HASH_SLOTS), (HASH_SLOTS, HASH_SLOTS)])
def test_a_range_lies_on_the_ring_and_is_not_empty(start: int, end: int) -> None:
    with pytest.raises(LayoutError):
        HashRange(start, end)


def test_both_ends_belong_to_a_range() -> None:
    part = HashRange(10, 20)
    assert 10 in part
    assert 20 in part
    assert 9 not in part
    assert 21 not in part
    assert part.width == 11


def test_a_range_prints_as_hex_and_reads_back() -> None:
    assert str(HashRange(0, 0x7FFF)) == "0000-7fff"
    assert HashRange.parse("0000-7fff") == HashRange(0, 0x7FFF)


@pytest.mark.parametrize(
    "text", ["", "0000", "0000-", "0-7fff", "0000-7FFF", "7fff-0000", "0000_7fff", "-0000"]
)
def test_other_texts_are_no_range(text: str) -> None:
    with pytest.raises(LayoutError):
        HashRange.parse(text)


def test_overlap_and_touch_tell_neighbours_from_strangers() -> None:
    left, right, far = HashRange(0, 9), HashRange(10, 19), HashRange(30, 39)
    assert left.touches(right)
    assert right.touches(left)
    assert not left.overlaps(right)
    assert left.overlaps(HashRange(9, 10))
    assert not left.touches(far)
    assert not left.touches(left)


def test_halves_give_the_odd_slot_to_the_lower_one() -> None:
    assert FULL.halves() == (HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF))
    assert HashRange(5, 7).halves() == (HashRange(5, 6), HashRange(7, 7))


def test_split_points_are_first_slots() -> None:
    assert HashRange(0, 9).split([3, 4]) == (HashRange(0, 2), HashRange(3, 3), HashRange(4, 9))


@pytest.mark.parametrize("points", [[], [0], [10], [5, 5], [6, 5], [-1]])
def test_split_points_must_ascend_inside_the_range(points: list[int]) -> None:
    with pytest.raises(LayoutError):
        HashRange(0, 9).split(points)


@pytest.mark.parametrize("count", [0, -1, 4])
def test_a_range_has_at_most_one_part_per_slot(count: int) -> None:
    with pytest.raises(LayoutError):
        HashRange(5, 7).parts(count)


def test_join_wants_neighbours_in_order() -> None:
    assert HashRange.join([HashRange(0, 4), HashRange(5, 9), HashRange(10, 19)]) == HashRange(0, 19)
    with pytest.raises(LayoutError):
        HashRange.join([HashRange(5, 9), HashRange(0, 4)])
    with pytest.raises(LayoutError):
        HashRange.join([HashRange(0, 4), HashRange(6, 9)])
    with pytest.raises(LayoutError):
        HashRange.join([])


def test_initial_ranges_leave_the_rest_to_the_last() -> None:
    assert [str(part) for part in initial_ranges(3)] == ["0000-5554", "5555-aaa9", "aaaa-ffff"]
    assert initial_ranges(1) == (FULL,)
    assert len(initial_ranges(HASH_SLOTS)) == HASH_SLOTS


@pytest.mark.parametrize("count", [0, -1, HASH_SLOTS + 1])
def test_a_topic_starts_with_a_possible_number_of_ranges(count: int) -> None:
    with pytest.raises(LayoutError):
        initial_ranges(count)
