"""Laws of positions on Apache Pulsar: numbers in the order of the places, and cuts that move forward."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from anabranch.spark.decide.source.places import (
    MessagePlace,
    entry_borders,
    parse_place,
    place_of,
    position_after,
    position_of,
    rows_between,
)

# Each number around a border between two widths, or anywhere below it.
LEDGERS = st.one_of(*(st.integers(max(0, 2**bits - 2), 2**bits + 1) for bits in (0, 15, 21, 27)))
LEDGERS |= st.integers(0, 2**33 - 1)
ENTRIES = st.one_of(st.integers(0, 3), st.integers(1022, 1026), st.integers(65534, 65538))
BATCHES = st.one_of(st.just(0), st.integers(0, 15))
PLACES = st.builds(MessagePlace, LEDGERS, ENTRIES, BATCHES)


@given(PLACES, PLACES)
def test_positions_have_the_order_of_their_places(one: MessagePlace, other: MessagePlace) -> None:
    assert (position_of(one) < position_of(other)) == (one < other)
    assert (position_of(one) == position_of(other)) == (one == other)


@given(PLACES)
def test_a_place_is_found_again(place: MessagePlace) -> None:
    position = position_of(place)
    assert 0 <= position < 2**63
    assert place_of(position) == place
    assert parse_place(str(place)) == position


@given(PLACES, st.integers(0, 15))
def test_messages_of_one_entry_have_successive_positions(place: MessagePlace, index: int) -> None:
    first = position_of(place._replace(batch=0))
    assert position_of(place._replace(batch=index)) == first + index


@given(PLACES, PLACES, st.integers(1, 10**6), st.floats(1, 5000))
def test_a_cut_moves_forward_and_never_behind_the_end(
    one: MessagePlace, other: MessagePlace, rows: int, per_entry: float
) -> None:
    assume(one != other)
    lo, hi = sorted((position_of(one), position_of(other)))
    assume(place_of(lo).entry + rows < 2**22)
    assert lo < position_after(lo, rows, hi, per_entry) <= hi
    assert rows_between(lo, hi, per_entry) >= 1


@given(PLACES, PLACES, st.integers(1, 9))
def test_parts_make_the_whole(one: MessagePlace, other: MessagePlace, parts: int) -> None:
    assume(one != other)
    lo, hi = sorted((position_of(one), position_of(other)))
    borders = entry_borders(lo, hi, parts)
    assert (borders[0], borders[-1]) == (lo, hi)
    assert all(left < right for left, right in pairwise(borders))
    assert len(borders) <= parts + 1
