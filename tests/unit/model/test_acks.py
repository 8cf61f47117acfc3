from __future__ import annotations

import pytest

from anabranch.errors import CorruptDataError
from anabranch.model.acks import AckSet, bits_at, bits_from_words, indexes_of, words_from_bits


def test_a_new_set_has_everything_pending() -> None:
    acks = AckSet()
    assert acks.mark == 0
    assert 0 not in acks
    assert acks.next_pending(5) == 5
    assert acks.pending_count(10) == 10
    assert acks.holes == 0


def test_acknowledging_in_order_moves_the_mark() -> None:
    acks = AckSet()
    for ordinal in range(100):
        acks.acknowledge([ordinal])
    assert acks.mark == 100
    assert acks.holes == 0
    assert acks.pending_count(103) == 3


def test_holes_stay_until_they_are_filled() -> None:
    acks = AckSet()
    acks.acknowledge([2, 5])
    assert (acks.mark, acks.top, acks.holes) == (0, 6, 4)
    assert 2 in acks
    assert 3 not in acks
    assert acks.next_pending(2) == 3
    assert acks.next_pending(5) == 6
    assert acks.pending_count(6) == 4
    acks.acknowledge([0, 1])
    assert acks.mark == 3
    acks.acknowledge([4, 3])
    assert (acks.mark, acks.holes) == (6, 0)


def test_acknowledging_twice_changes_nothing() -> None:
    acks = AckSet(10)
    acks.acknowledge([3, 10, 10, 12])
    before = AckSet.decode(acks.encode())
    acks.acknowledge([10, 12, 0])
    acks.acknowledge_up_to(4)
    assert acks == before


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    given = [7, 3, 3, 100, 50, 0, 1, 99, 12, 13, 14]
    bulk, single = AckSet(2), AckSet(2)
    for acks in (bulk, single):
        acks.acknowledge_part(12, 0b01, 2)
    bulk.acknowledge(iter(given))
    for ordinal in given:
        single.acknowledge((ordinal,))
    assert bulk == single
    assert bulk.mark == single.mark == 2


def test_up_to_takes_holes_and_parts_along() -> None:
    acks = AckSet()
    acks.acknowledge([5, 9])
    acks.acknowledge_part(3, 0b10, 2)
    acks.acknowledge_part(7, 0b10, 2)
    acks.acknowledge_up_to(5)
    assert (acks.mark, acks.holes, acks.parts) == (6, 3, 1)
    acks.acknowledge_up_to(20)
    assert (acks.mark, acks.top, acks.holes, acks.parts) == (20, 20, 0, 0)


def test_up_to_leaves_the_entry_it_names() -> None:
    acks = AckSet()
    acks.acknowledge_part(5, 0b10, 2)
    acks.acknowledge_up_to(5)
    assert acks.remaining(5) == 0b10
    assert 5 not in acks


def test_reset_forgets_everything_else() -> None:
    acks = AckSet()
    acks.acknowledge([5, 9])
    acks.acknowledge_part(3, 0b10, 2)
    acks.reset(7)
    assert acks == AckSet(7)
    acks.reset(0)
    assert acks == AckSet()


def test_an_entry_is_done_when_its_last_message_is() -> None:
    acks = AckSet()
    assert not acks.acknowledge_part(0, 0b110, 3)
    assert acks.remaining(0) == 0b110
    assert 0 not in acks
    assert acks.next_pending(0) == 0
    assert not acks.acknowledge_part(0, 0b101, 3)
    assert acks.remaining(0) == 0b100
    assert acks.acknowledge_part(0, 0b011, 3)
    assert acks.remaining(0) is None
    assert acks.mark == 1
    assert acks.acknowledge_part(0, 0b111, 3)


def test_a_part_that_acknowledges_nothing_leaves_no_trace() -> None:
    acks = AckSet()
    assert not acks.acknowledge_part(4, 0b1111, 2)
    assert acks.parts == 0
    assert acks.remaining(4) is None


def test_acknowledging_the_whole_entry_ends_its_part() -> None:
    acks = AckSet()
    acks.acknowledge_part(4, 0b10, 2)
    acks.acknowledge([4])
    assert acks.remaining(4) is None
    assert acks.parts == 0


def test_negative_ordinals_are_refused() -> None:
    acks = AckSet()
    for ordinals in ([-1], [-1, *range(20)]):
        with pytest.raises(ValueError, match="negative"):
            acks.acknowledge(ordinals)
    with pytest.raises(ValueError, match="negative"):
        acks.reset(-1)
    with pytest.raises(ValueError, match="negative"):
        AckSet(-1)
    with pytest.raises(ValueError, match="in part"):
        acks.acknowledge_part(0, 0, 0)
    assert acks == AckSet()


def test_sets_with_different_parts_differ() -> None:
    acks, other = AckSet(), AckSet()
    other.acknowledge_part(1, 0b10, 2)
    assert acks != other
    assert acks != "acks"


def test_bytes_carry_holes_parts_and_the_far_end() -> None:
    acks = AckSet(2**40)
    acks.acknowledge([2**40 + 3, 2**40 + 70_000])
    acks.acknowledge_part(2**40 + 1, (1 << 200) - 2, 200)
    acks.acknowledge_part(2**40 + 80_000, 0b10, 2)
    back = AckSet.decode(memoryview(acks.encode()))
    assert back == acks
    assert back.mark == acks.mark
    assert back.remaining(2**40 + 1) == (1 << 200) - 2


@pytest.mark.parametrize("cut", [0, 1, 12, -1])
def test_bytes_cut_short_are_no_set(cut: int) -> None:
    acks = AckSet()
    acks.acknowledge([5])
    acks.acknowledge_part(2, 0b10, 2)
    with pytest.raises(CorruptDataError):
        AckSet.decode(acks.encode()[:cut])


def test_bytes_of_another_version_are_no_set() -> None:
    with pytest.raises(CorruptDataError):
        AckSet.decode(b"\x09" + AckSet().encode()[1:])


def test_bytes_with_a_pending_entry_beyond_the_end_are_no_set() -> None:
    acks = AckSet()
    acks.acknowledge([5])
    damaged = bytearray(acks.encode())
    damaged[1] = 3
    with pytest.raises(CorruptDataError):
        AckSet.decode(bytes(damaged))


def test_a_million_holes_are_kept_exactly() -> None:
    acks = AckSet()
    acks.acknowledge(range(1, 2_000_000, 2))
    assert acks.holes == 1_000_000
    data = acks.encode()
    assert len(data) < 300_000
    back = AckSet.decode(data)
    assert back == acks
    assert back.next_pending(1_234_567) == 1_234_568
    assert back.pending_count(2_000_000) == 1_000_000


def test_the_size_of_the_bytes_follows_the_holes_not_their_distance() -> None:
    acks = AckSet()
    acks.acknowledge([10_000_000])
    assert len(acks.encode()) < 10_000


def test_words_are_signed_and_lowest_first() -> None:
    assert bits_from_words([]) == 0
    assert bits_from_words([-1]) == 2**64 - 1
    assert bits_from_words([1, 1]) == 2**64 + 1
    assert words_from_bits(0) == []
    assert words_from_bits(2**63) == [-(2**63)]
    assert words_from_bits(2**64 + 5) == [5, 1]


def test_a_set_describes_itself() -> None:
    acks = AckSet(3)
    acks.acknowledge([5])
    assert repr(acks) == "AckSet(mark=3, top=6, holes=2, parts=0)"


@pytest.mark.parametrize("indexes", [[], [0], [1, 3], [7, 8, 63, 64, 65], [0, 100_000]])
def test_indexes_and_bits_are_the_same_set(indexes: list[int]) -> None:
    assert bits_at(indexes) == sum(1 << index for index in indexes)
    assert indexes_of(bits_at(indexes)) == indexes
