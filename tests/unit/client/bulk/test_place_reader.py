"""Entries and tails by place, as Apache Pulsar stores them."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.client.bulk.place_reader import EntryPlace, PlacedEntry, PlaceReader, PlaceTails
from anabranch.errors import AlreadyClosedError, OperationTimeoutError
from anabranch.protocol.frames import build_entry
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.unit.client.toy_pulsar import PLACES, ToyPulsar

TOPIC = "persistent://public/default/orders"


def reader_of(toy: Any, start: EntryPlace | None, stop: EntryPlace | None, permits: int = 3) -> PlaceReader:
    return PlaceReader(toy, TOPIC, start, stop, permits)


async def places(reader: PlaceReader) -> list[EntryPlace]:
    found: list[PlacedEntry] = []
    while entries := await reader.read():
        found += entries
    return [entry.place for entry in found]


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (None, (8, 1)),
        ((3, 2), (7, 2)),
        ((3, 6), (7, 0)),
        ((3, 9), (8, 0)),
        ((5, 0), (7, 1)),
        ((8, 0), (8, 1)),
    ],
)
async def test_the_entries_between_two_places_are_read(
    start: tuple[int, int] | None, stop: tuple[int, int]
) -> None:
    first = None if start is None else EntryPlace(*start)
    reader = reader_of(ToyPulsar([*PLACES]), first, EntryPlace(*stop))
    assert await places(reader) == [place for place in PLACES if (start or (0, 0)) <= place < stop]
    assert reader.stop_passed


async def test_reading_goes_on_with_the_next_entry_after_a_lost_connection() -> None:
    toy = ToyPulsar([*PLACES])
    reader = reader_of(toy, None, EntryPlace(8, 1))
    found = []
    while entries := await reader.read():
        found += [entry.place for entry in entries]
        toy.connections[-1].lose()
    assert found == PLACES
    assert len(toy.connections) > 2


async def test_entries_before_the_start_are_dropped() -> None:
    toy = ToyPulsar([*PLACES])
    toy.starts_early = True
    assert await places(reader_of(toy, EntryPlace(7, 1), EntryPlace(7, 3), 100)) == [(7, 1), (7, 2)]


async def test_a_reader_ends_when_the_entries_before_its_stop_are_gone() -> None:
    toy = ToyPulsar([])
    reader = reader_of(toy, EntryPlace(3, 1), EntryPlace(7, 2))
    assert await places(reader) == []
    assert not reader.stop_passed


async def test_a_reader_waits_for_entries_that_are_not_stored_yet() -> None:
    toy = ToyPulsar([*PLACES])
    reader = reader_of(toy, EntryPlace(8, 0), None)
    assert [entry.place for entry in await reader.read()] == [EntryPlace(8, 0)]
    # The toy claims an entry that it never delivers.
    toy.stored.append(EntryPlace(8, 1))
    with pytest.raises(OperationTimeoutError, match="delivered no message within 5 s"):
        await reader.read(5)
    await reader.close()
    with pytest.raises(AlreadyClosedError):
        await reader.read()


async def test_the_tail_names_the_first_ledger_and_the_last_entry() -> None:
    toy: Any = ToyPulsar([*PLACES])
    tails = PlaceTails(toy)
    tail = await tails.tail(TOPIC)
    assert (tail.first, tail.last, tail.last_messages) == (EntryPlace(3, 0), EntryPlace(8, 0), 5)
    assert await tails.tails([TOPIC]) == {TOPIC: tail}
    subscribed = [m for m in toy.connections[0].sent if isinstance(m, pb.CommandSubscribe)]
    assert len(subscribed) == 1, "one subscription serves all questions"
    toy.stored.clear()
    tail = await tails.tail(TOPIC)
    assert (tail.first, tail.last) == (EntryPlace(9, 0), EntryPlace(-1, -1))
    await tails.close()
    with pytest.raises(AlreadyClosedError):
        await tails.tail(TOPIC)


async def test_the_tail_of_a_topic_ends_before_its_empty_ledger() -> None:
    toy: Any = ToyPulsar([*PLACES])
    toy.ends_empty = True
    metadata = pb.MessageMetadata(producer_name="me", sequence_id=1, publish_time=1, num_messages_in_batch=3)
    toy.data = build_entry(metadata.SerializeToString(), b"payload")
    tails = PlaceTails(toy)
    tail = await tails.tail(TOPIC)
    assert (tail.first, tail.last, tail.last_messages) == (EntryPlace(3, 0), EntryPlace(8, 0), 3)
    await tails.close()
