"""The positions of a checkpoint consumer, and the checkpoints made from them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from anabranch.client.decide.consuming.ordering import place
from anabranch.client.decide.consuming.read_positions import ReadPositions
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.layout import Layout


def entry(number: int, count: int = 4, *, segment: int = 0, time_ms: int = 0) -> Any:
    """An entry whose messages follow those of the entries before it."""
    return SimpleNamespace(
        source=SimpleNamespace(segment_id=segment),
        position=(1, number),
        count=count,
        batch_size=count,
        wanted=(1 << count) - 1,
        index=(number + 1) * count - 1,
        publish_time_ms=time_ms,
        before=None,
        wanted_indexes=lambda: range(count),
    )


def reading(start: Checkpoint, layout: Layout) -> ReadPositions:
    positions = ReadPositions(start)
    positions.begin(layout)
    return positions


ONE = Layout.initial(1, now_ms=0)
SPLIT = ONE.split(0, now_ms=100)


def test_a_checkpoint_covers_the_messages_of_the_entry_at_hand_that_left() -> None:
    positions = reading(Checkpoint.earliest(), ONE)
    at_hand = entry(0)
    begin = positions.checkpoint(None, 0)
    assert positions.checkpoint(at_hand, 4) == begin
    assert positions.checkpoint(at_hand, 3).positions[0] == place(at_hand, 0)
    assert positions.checkpoint(at_hand, 0).positions[0] == place(at_hand, 3)
    at_hand.wanted = 0
    assert positions.checkpoint(at_hand, 0) == begin, "all its messages were dropped"


def test_a_checkpoint_of_a_member_has_only_the_segments_it_knows() -> None:
    positions = reading(Checkpoint.earliest(), Layout.initial(2, now_ms=0))
    assert set(positions.checkpoint(None, 0, known=(1,)).positions) == {1}


def test_removed_messages_are_counted() -> None:
    positions = reading(Checkpoint({}), ONE)
    assert positions.missing_before(entry(0)) == 0
    assert positions.missing_before(entry(2)) == 8
    positions.advance(entry(1))
    assert positions.missing_before(entry(2)) == 0


def test_a_start_at_a_time_covers_older_entries_and_sealed_segments() -> None:
    positions = reading(Checkpoint.at_ms(150), SPLIT)
    assert list(positions.finished) == [0], "the parent was sealed before"
    old, new = entry(0, segment=1, time_ms=149), entry(1, segment=1, time_ms=150)
    assert not positions.accept(old)
    assert positions.positions[1] == place(old, 3)
    assert positions.accept(new)
    assert new.before == place(old, 3)


def test_a_sealed_segment_is_read_when_its_last_message_is_covered() -> None:
    positions = reading(Checkpoint.earliest(), SPLIT)
    positions.ends[0] = place(entry(1), 3)
    positions.advance(entry(0))
    assert not positions.is_read(0)
    assert positions.unread(SPLIT.prune([0])) == (0,)
    positions.advance(entry(1))
    assert positions.is_read(0)
    assert positions.unread(SPLIT.prune([0])) == (), "the segment is read, though nothing was done about it"
    positions.finish(0)
    assert positions.unread(SPLIT.prune([0])) == ()


def test_a_removed_segment_is_unread_until_it_is_finished() -> None:
    positions = reading(Checkpoint.earliest(), SPLIT)
    later = SPLIT.prune([0])
    assert positions.unread(later) == (0,)
    positions.follow(later)
    assert sorted(positions.positions) == [1, 2]
