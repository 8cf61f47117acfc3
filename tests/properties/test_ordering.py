"""Laws of reading order: parents before children, and every segment has its turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.decide.consuming.ordering import covers, readable
from anabranch.client.decide.consuming.read_positions import ReadPositions
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.ids import EARLIEST, LATEST, MessageId
from anabranch.model.layout import Layout
from tests.properties.layouts import layouts


def begun(layout: Layout, start: Checkpoint) -> dict[int, MessageId]:
    reading = ReadPositions(start)
    reading.begin(layout)
    return reading.positions


@given(layout=layouts(), data=st.data())
def test_nothing_is_readable_before_all_its_ancestors_are_finished(
    layout: Layout, data: st.DataObject
) -> None:
    finished: set[int] = set()
    order: list[int] = []
    while ready := readable(layout, finished):
        for segment in ready:
            assert layout.ancestors(segment.id) <= finished
            assert segment.id not in finished
        chosen = data.draw(st.sampled_from(ready))
        finished.add(chosen.id)
        order.append(chosen.id)
    assert sorted(order) == sorted(layout.segments)


@given(layout=layouts())
def test_every_segment_has_a_position_from_the_start(layout: Layout) -> None:
    for start, place in ((Checkpoint.earliest(), EARLIEST), (Checkpoint.latest(), LATEST)):
        positions = begun(layout, start)
        assert sorted(positions) == sorted(layout.segments)
        assert {id_.position for id_ in positions.values()} == {place}


@given(layout=layouts(), data=st.data())
def test_a_segment_the_checkpoint_does_not_name_starts_at_its_beginning(
    layout: Layout, data: st.DataObject
) -> None:
    named = data.draw(st.sets(st.sampled_from(sorted(layout.segments))))
    start = Checkpoint({id_: MessageId(id_, 5, 7) for id_ in named})
    positions = begun(layout, start)
    for id_ in layout.segments:
        assert positions[id_].position == ((5, 7) if id_ in named else EARLIEST)


@given(layout=layouts(), data=st.data())
def test_positions_follow_the_layout(layout: Layout, data: st.DataObject) -> None:
    known = data.draw(st.sets(st.integers(0, max(layout.segments) + 5)))
    reading = ReadPositions(Checkpoint.earliest())
    reading.positions = {id_: MessageId(id_, 1, 2) for id_ in known}
    reading.follow(layout)
    positions = reading.positions
    assert sorted(positions) == sorted(layout.segments)
    assert all((positions[id_].position == (1, 2)) == (id_ in known) for id_ in positions)


PLACES = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


@given(position=PLACES, message=PLACES)
def test_a_position_covers_itself_and_what_lies_before(
    position: tuple[int, int, int], message: tuple[int, int, int]
) -> None:
    assert covers(MessageId(0, *position), *message) == (message <= position)
    whole = MessageId(0, position[0], position[1])
    assert covers(whole, *message) == (message[:2] <= position[:2])
