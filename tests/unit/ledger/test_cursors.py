"""Steps of a cursor: as few as possible, and playing them gives the same set."""

from __future__ import annotations

from anabranch.ledger.cursors import DurableCursor, replay
from anabranch.ledger.format.changes import Acked, Reset, UpTo
from anabranch.model.acks import AckSet


class Sink:
    def __init__(self) -> None:
        self.waiting: list[DurableCursor] = []

    def cursor_created(self, log: int, name: str, ordinal: int, properties: dict[str, str]) -> None: ...

    def cursor_deleted(self, log: int, name: str) -> None: ...

    def steps_waiting(self, cursor: DurableCursor) -> None:
        self.waiting.append(cursor)

    async def flush(self) -> None:
        return None


def cursor_on(sink: Sink, mark: int = 0) -> DurableCursor:
    return DurableCursor(1, "s", AckSet(mark), {}, sink)


def test_a_cursor_speaks_up_once_until_its_steps_are_taken() -> None:
    sink = Sink()
    cursor = cursor_on(sink)
    cursor.acknowledge([3])
    cursor.acknowledge([5])
    cursor.acknowledge_up_to(2)
    assert sink.waiting == [cursor]
    cursor.take_steps()
    cursor.reset(0)
    assert sink.waiting == [cursor, cursor]


def test_nothing_new_is_no_step() -> None:
    sink = Sink()
    cursor = cursor_on(sink, 10)
    cursor.acknowledge([])
    cursor.acknowledge_up_to(10)
    cursor.acknowledge_up_to(4)
    assert sink.waiting == []
    assert cursor.take_steps() == []


def test_steps_of_one_kind_are_drawn_together() -> None:
    cursor = cursor_on(Sink())
    for ordinal in range(1, 100):
        cursor.acknowledge_up_to(ordinal)
    for ordinal in range(200, 300, 2):
        cursor.acknowledge([ordinal])
    steps = cursor.take_steps()
    assert [type(step) for step in steps] == [UpTo, Acked]
    assert steps[0] == UpTo(99)


def test_a_reset_makes_earlier_steps_void() -> None:
    cursor = cursor_on(Sink())
    cursor.acknowledge_up_to(50)
    cursor.acknowledge([70])
    cursor.reset(7)
    assert cursor.take_steps() == [Reset(7)]


def test_a_deleted_cursor_has_no_steps() -> None:
    cursor = cursor_on(Sink())
    cursor.acknowledge([3])
    cursor.mark_deleted()
    cursor.acknowledge([4])
    assert cursor.take_steps() == []


def test_steps_played_twice_change_nothing_more() -> None:
    cursor = cursor_on(Sink())
    cursor.acknowledge([3, 9, 4])
    cursor.acknowledge_part(6, 0b101, 3)
    cursor.acknowledge_up_to(5)
    cursor.acknowledge_part(6, 0b001, 3)
    steps = cursor.take_steps()
    acks = AckSet()
    for _ in range(2):
        replay(acks, steps)
        assert acks == cursor.acks
