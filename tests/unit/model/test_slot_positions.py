"""Positions by slot, and the checkpoints that hold them."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.checkpoint import Checkpoint
from anabranch.model.drains import ALL, difference, intersection, union
from anabranch.model.ids import EARLIEST, LATEST, MessageId
from anabranch.model.ranges import HashRange
from anabranch.model.slot_positions import UNKNOWN, SlotPositions

LOWER, UPPER = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)


def at(entry: int, next_index: int = -1) -> MessageId:
    return MessageId(3, 5, entry, next_index=next_index)


PLACES = st.one_of(
    st.integers(0, 4).map(at), st.sampled_from((MessageId(3, *EARLIEST), MessageId(3, *LATEST)))
)
SLOTS = st.integers(0, 0xFFFF)
RANGES = st.lists(st.tuples(SLOTS, SLOTS), max_size=3).map(
    lambda pairs: union(HashRange(min(pair), max(pair)) for pair in pairs)
)


@st.composite
def positions(draw: st.DrawFn) -> SlotPositions:
    found = SlotPositions.whole(draw(PLACES))
    for _ in range(draw(st.integers(0, 3))):
        found = found.placed(draw(RANGES), draw(PLACES))
    return found


@given(positions(), positions(), RANGES, SLOTS)
def test_each_operation_acts_slot_by_slot(
    one: SlotPositions, other: SlotPositions, slots: tuple[HashRange, ...], slot: int
) -> None:
    inside = any(slot in part for part in slots)
    assert one.replaced(slots, other).of(slot) == (other if inside else one).of(slot)
    assert one.merged(other).of(slot) == max(one.of(slot), other.of(slot))
    assert any(slot in part for part in one.exceeding(other)) == (one.of(slot) > other.of(slot))
    assert any(slot in part for part in one.finished()) == (one.of(slot).position == LATEST)
    assert any(slot in part for part in difference(ALL, slots)) == (not inside)
    assert one.lowest <= one.of(slot)
    assert intersection(difference(slots, one.finished()), one.finished()) == ()


@given(positions())
def test_a_checkpoint_keeps_positions_by_slot(found: SlotPositions) -> None:
    checkpoint = Checkpoint(parts={3: found})
    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint
    assert pickle.loads(pickle.dumps(checkpoint)) == checkpoint
    assert checkpoint.slots(3) == found
    assert checkpoint.positions == {3: found.lowest}


def test_other_clients_read_the_lowest_position() -> None:
    checkpoint = Checkpoint(parts={3: SlotPositions.whole(at(9)).placed((LOWER,), at(7))})
    head, lowest = "00 00000001 0000000000000003 0000002a", "080510073000"
    parts = "d23e0e080010ffff011a06080510073000 d23e100880800210ffff031a06080510093000"
    assert checkpoint.to_bytes() == bytes.fromhex(f"{head} {lowest} {parts}")
    assert Checkpoint.from_bytes(checkpoint.to_bytes()).positions == {3: at(7)}
    assert str(checkpoint) == "Checkpoint(3/5:7@0000-7fff 3/5:9@8000-ffff)"


def test_a_merge_takes_the_later_position_of_each_bucket() -> None:
    one = Checkpoint(parts={3: SlotPositions.whole(at(2)).placed((LOWER,), at(7))})
    other = Checkpoint(parts={3: SlotPositions.whole(at(9)).placed((LOWER,), at(1))})
    assert Checkpoint.merge([one, other]).parts[3].parts == ((LOWER, at(7)), (UPPER, at(9)))
    assert Checkpoint.merge([one, Checkpoint({3: at(8)})]) == Checkpoint({3: at(8)})


def test_an_unknown_position_counts_as_the_beginning_of_the_segment() -> None:
    found = SlotPositions.unknown(3).placed((UPPER,), at(1))
    assert found.of(0).position == UNKNOWN
    assert found.known(3).parts == ((LOWER, MessageId(3, *EARLIEST)), (UPPER, at(1)))
