from __future__ import annotations

from anabranch.model.inheritance import BYTES_MAX, Known, Piece, handed_on, inherit
from anabranch.model.ranges import FULL, HashRange

LOW, HIGH = FULL.halves()


def test_children_of_a_split_inherit_the_same() -> None:
    told = handed_on(FULL, {"p": 6}, ())
    assert inherit(LOW, told) == (Piece(LOW, {"p": 6}),)
    assert inherit(HIGH, told) == (Piece(HIGH, {"p": 6}),)


def test_a_merged_segment_keeps_its_parents_apart() -> None:
    told = [*handed_on(LOW, {"p": 10}, ()), *handed_on(HIGH, {"p": 2, "q": 1}, ())]
    known = Known(inherit(FULL, told), "p")
    assert known.is_duplicate(10, LOW.end)
    assert not known.is_duplicate(3, HIGH.start)
    assert not known.is_duplicate(3, None)
    assert known.is_duplicate(2, None)
    assert known.highest == 10


def test_a_producer_of_one_parent_only_is_new_to_the_range_of_the_other() -> None:
    told = [*handed_on(LOW, {"p": 10}, ()), *handed_on(HIGH, {}, ())]
    known = Known(inherit(FULL, told), "p")
    assert not known.is_duplicate(0, HIGH.start)
    assert not known.is_duplicate(0, None)


def test_messages_stored_after_a_merge_count_for_all_pieces() -> None:
    merged = inherit(FULL, [Piece(LOW, {"p": 10}), Piece(HIGH, {"p": 2})])
    assert inherit(FULL, handed_on(FULL, {"p": 11}, merged)) == (Piece(FULL, {"p": 11}),)


def test_a_lower_id_of_ones_own_does_not_lower_what_was_inherited() -> None:
    merged = inherit(FULL, [Piece(LOW, {"p": 10}), Piece(HIGH, {"p": 2})])
    assert handed_on(FULL, {"p": 3}, merged) == (Piece(LOW, {"p": 10}), Piece(HIGH, {"p": 3}))


def test_nothing_known_is_no_piece_at_all() -> None:
    assert inherit(FULL, handed_on(FULL, {}, ())) == ()
    assert not Known((), "p").is_duplicate(0, None)
    assert not Known((), "p").is_duplicate(0, 5)


def test_a_gap_between_pieces_is_unknown() -> None:
    known = Known((Piece(HashRange(0, 9), {"p": 5}), Piece(HashRange(20, 29), {"p": 5})), "p")
    assert known.is_duplicate(5, 9)
    assert not known.is_duplicate(5, 10)
    assert not known.is_duplicate(5, 30)
    assert not known.is_duplicate(5, None)


def test_neighbours_that_lose_least_are_joined_first() -> None:
    parts = FULL.parts(3)
    told = [Piece(parts[0], {"p": 9, "q": 1}), Piece(parts[1], {"p": 3}), Piece(parts[2], {"p": 4})]
    kept = inherit(FULL, told, pieces_max=2)
    assert kept == (told[0], Piece(HashRange(parts[1].start, parts[2].end), {"p": 3}))


def test_producers_longest_unused_are_forgotten_first() -> None:
    told = [Piece(FULL, {"old": 1, "newer": 2, "newest": 3})]
    assert inherit(FULL, told, bytes_max=40) == (Piece(FULL, {"newer": 2, "newest": 3}),)


def test_the_inheritance_is_bounded_for_any_number_of_pieces_and_producers() -> None:
    inherited = tuple(Piece(part, {"old": n}) for n, part in enumerate(FULL.parts(32)))
    own = {f"producer-{n}": n for n in range(10_000)}
    told = handed_on(FULL, own, inherited)
    assert sum(len(name) for piece in told for name in piece.sequences) < BYTES_MAX
    assert all("producer-9999" in piece.sequences for piece in told)
    assert HashRange.join(piece.range for piece in told) == FULL


def test_use_is_remembered_through_a_seal() -> None:
    inherited = (Piece(FULL, {"a": 1, "b": 2}),)
    (piece,) = handed_on(FULL, {"a": 3}, inherited)
    assert list(piece.sequences) == ["b", "a"]


def test_where_parents_overlap_what_all_of_them_have_stored_counts() -> None:
    told = [Piece(FULL, {"p": 9, "q": 4}), Piece(FULL, {"p": 5}), Piece(LOW, {"p": 7})]
    assert inherit(FULL, told) == (Piece(FULL, {"p": 5}),)
    assert inherit(HIGH, told[:1]) == (Piece(HIGH, {"p": 9, "q": 4}),)
    assert inherit(FULL, [told[0], told[2]]) == (Piece(LOW, {"p": 7}), Piece(HIGH, {"p": 9, "q": 4}))
