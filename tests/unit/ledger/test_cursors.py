"""Durable cursors: few steps, the same set after a replay, and each change of a name once."""

from __future__ import annotations

import pytest

from anabranch.errors import TopicNotFoundError
from anabranch.ledger.cursors import Cursor, DurableCursor, LogCursors, replay
from anabranch.ledger.format.commits import Acked, Noted, Reset, UpTo
from anabranch.model.acks import AckSet


class ListedJournal:
    """Lists the changes of cursors instead of writing them."""

    def __init__(self) -> None:
        self.waiting: list[DurableCursor] = []
        self.changes: list[str] = []

    def cursor_created(self, log: int, name: str, ordinal: int, properties: dict[str, str]) -> None:
        self.changes.append(f"created {name} of log {log} at {ordinal}")

    def cursor_deleted(self, log: int, name: str) -> None:
        self.changes.append(f"deleted {name} of log {log}")

    def steps_waiting(self, cursor: DurableCursor) -> None:
        self.waiting.append(cursor)

    async def flush(self, *, patient: bool = False) -> None:
        return None


def cursor_on(journal: ListedJournal, mark: int = 0) -> DurableCursor:
    return DurableCursor(1, "s", AckSet(mark), {}, journal)


def test_a_cursor_speaks_up_once_until_its_steps_are_taken() -> None:
    journal = ListedJournal()
    cursor = cursor_on(journal)
    cursor.acknowledge([3])
    cursor.acknowledge([5])
    cursor.acknowledge_up_to(2)
    assert journal.waiting == [cursor]
    cursor.take_steps()
    cursor.reset(0)
    assert journal.waiting == [cursor, cursor]


def test_nothing_new_is_no_step() -> None:
    journal = ListedJournal()
    cursor = cursor_on(journal, 10)
    cursor.acknowledge([])
    cursor.acknowledge_up_to(10)
    cursor.acknowledge_up_to(4)
    assert journal.waiting == []
    assert cursor.take_steps() == []


def test_steps_of_one_kind_are_drawn_together() -> None:
    cursor = cursor_on(ListedJournal())
    for ordinal in range(1, 100):
        cursor.acknowledge_up_to(ordinal)
    for ordinal in range(200, 300, 2):
        cursor.acknowledge([ordinal])
    steps = cursor.take_steps()
    assert [type(step) for step in steps] == [UpTo, Acked]
    assert steps[0] == UpTo(99)


def test_a_reset_makes_earlier_steps_void() -> None:
    cursor = cursor_on(ListedJournal())
    cursor.acknowledge_up_to(50)
    cursor.acknowledge([70])
    cursor.reset(7)
    assert cursor.take_steps() == [Reset(7)]


def test_a_deleted_cursor_has_no_steps() -> None:
    cursor = cursor_on(ListedJournal())
    cursor.acknowledge([3])
    cursor.mark_deleted()
    cursor.acknowledge([4])
    assert cursor.take_steps() == []


def test_steps_played_twice_change_nothing_more() -> None:
    cursor = cursor_on(ListedJournal())
    cursor.acknowledge([3, 9, 4])
    cursor.acknowledge_part(6, 0b101, 3)
    cursor.acknowledge_up_to(5)
    cursor.acknowledge_part(6, 0b001, 3)
    cursor.set_note(b"note")
    steps = cursor.take_steps()
    again = Cursor("s", AckSet())
    for _ in range(2):
        replay(again, steps)
        assert (again.acks, again.note) == (cursor.acks, b"note")


def test_only_the_last_note_becomes_a_step_and_the_same_note_none() -> None:
    journal = ListedJournal()
    cursor = cursor_on(journal)
    for note in (b"one", b"two"):
        cursor.set_note(note)
    cursor.acknowledge([3])
    assert journal.waiting == [cursor]
    steps = cursor.take_steps()
    assert [type(step) for step in steps] == [Acked, Noted]
    assert steps[-1] == Noted(b"two")
    cursor.set_note(b"two")
    assert cursor.take_steps() == []
    assert journal.waiting == [cursor]


def test_a_reset_clears_the_note_and_a_later_note_counts() -> None:
    cursor = cursor_on(ListedJournal())
    cursor.set_note(b"before")
    cursor.reset(7)
    assert cursor.note == b""
    assert cursor.take_steps() == [Reset(7)]
    cursor.set_note(b"after")
    steps = [Reset(7), *cursor.take_steps()]
    again = Cursor("s", AckSet())
    again.note = b"before"
    replay(again, steps)
    assert again.note == b"after"


async def test_a_cursor_is_created_and_deleted_once() -> None:
    journal = ListedJournal()
    cursors = LogCursors(7, "log", journal)
    cursor = cursors.open("s", 3, {"a": "b"})
    assert cursors.open("s", 9) is cursor
    assert (cursor.acks.mark, cursor.properties, list(cursors)) == (3, {"a": "b"}, ["s"])
    await cursors.delete("s")
    await cursors.delete("s")
    assert journal.changes == ["created s of log 7 at 3", "deleted s of log 7"]


def test_a_deleted_log_takes_no_cursor_and_no_step() -> None:
    cursors = LogCursors(7, "log", ListedJournal())
    cursor = cursors.open("s", 0)
    cursors.log_deleted()
    cursor.acknowledge([1])
    assert cursor.take_steps() == []
    with pytest.raises(TopicNotFoundError, match="log was deleted"):
        cursors.open("other", 0)


def test_properties_outlast_a_reset_before_the_commit() -> None:
    journal = ListedJournal()
    cursor = cursor_on(journal)
    cursor.set_properties({"size": "2"})
    cursor.reset(7)
    again = Cursor("s", AckSet(0), {"colour": "red"})
    replay(again, cursor.take_steps())
    assert (dict(again.properties), again.acks.mark) == ({"size": "2"}, 7)
    assert journal.waiting == [cursor]
