"""Spilled entries: their form, the note that names side logs, old ledgers, and when a spill pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.dispatch.spilled import (
    OldLedgers,
    Retained,
    SideRecord,
    SpillNote,
    SpillOrigin,
    decode_copy,
    decode_note,
    encode_copy,
    encode_note,
    spill_is_done,
    spill_is_due,
)
from anabranch.errors import CorruptDataError
from anabranch.model.ids import Position

numbers = st.integers(0, 2**63 - 1)


@given(
    st.tuples(numbers, numbers, numbers, numbers, st.integers(1, 2**32 - 1), st.integers(-5, 2**50)),
    st.binary(),
)
def test_a_copy_keeps_the_numbers_and_the_bytes_of_its_original(
    fields: tuple[int, int, int, int, int, int], data: bytes
) -> None:
    ledger, entry, ordinal, index, count, timestamp_ms = fields
    origin = SpillOrigin(Position(ledger, entry), ordinal, index, count, timestamp_ms)
    assert decode_copy(encode_copy(origin, data)) == (origin, data)


@pytest.mark.parametrize("data", [b"", b"short", b"\x02" + bytes(100)])
def test_other_bytes_are_no_copy(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_copy(data)


def test_a_note_comes_back_and_an_empty_one_takes_no_bytes() -> None:
    note = SpillNote(b"of the lanes", (SideRecord("spill://a/b/c", 7),), ((3, 100),))
    assert decode_note(encode_note(note)) == note
    assert encode_note(SpillNote()) == b""
    assert decode_note(b"") == SpillNote()
    with pytest.raises(CorruptDataError):
        decode_note(b"\xff\x00")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_positions_and_ordinals_of_known_ledgers_agree(sizes: list[int], data: st.DataObject) -> None:
    """Ledgers have ids with gaps, and some of them have no spilled entries."""
    places: list[Position] = [
        Position(3 * ledger, at) for ledger, size in enumerate(sizes) for at in range(size)
    ]
    spilled = sorted(data.draw(st.sets(st.sampled_from(range(len(places))), min_size=1)))
    old = OldLedgers()
    for ordinal in spilled:
        old.add(places[ordinal], ordinal)
    again = OldLedgers(old.known)
    for ordinal in spilled:
        assert again.ordinal_of(places[ordinal]) == ordinal
        assert again.position_of(ordinal) == places[ordinal]
    for ordinal, place in enumerate(places):
        behind = [other for other in spilled if other >= ordinal]
        found = again.ordinal_of(place)
        assert found is None or (bool(behind) and ordinal <= found <= behind[0]) or found == ordinal


@pytest.mark.parametrize(
    ("retained", "due", "done"),
    [
        (Retained(101, 10, 5), True, False),
        (Retained(100, 10, 5), False, False),
        (Retained(75, 10, 5), False, True),
        (Retained(101, 10, 9), False, False),
        (Retained(101, 10, 0), True, True),
        (Retained(0, 0, 0), False, True),
    ],
)
def test_a_spill_pays_above_the_limit_unless_most_entries_are_pending(
    retained: Retained, due: bool, done: bool
) -> None:
    assert (spill_is_due(retained, 100), spill_is_done(retained, 100)) == (due, done)
