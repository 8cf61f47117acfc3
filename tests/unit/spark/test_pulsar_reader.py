"""Slices of Apache Pulsar: the places of entries, and entries that retention removed unread."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.client.consume.place_reader import EntryPlace, PlaceReader, PlaceTails
from anabranch.model.ranges import FULL
from anabranch.spark.decide.places import MessagePlace, place_of, position_of
from anabranch.spark.decide.topology import Slice
from anabranch.spark.pulsar_reader import PlacedSlice, next_stored
from anabranch.spark.topics import StoredEntry
from tests.unit.client.toy_pulsar import PLACES, ToyPulsar

TOPIC = "persistent://public/default/orders"


def slice_of(toy: Any, lo: tuple[int, int], hi: tuple[int, int]) -> PlacedSlice:
    part = Slice(
        "orders",
        0,
        FULL,
        position_of(MessagePlace(*lo)),
        position_of(MessagePlace(*hi)),
        estimate=10,
    )
    reader = PlaceReader(toy, TOPIC, EntryPlace(*lo), EntryPlace(*hi))
    return PlacedSlice(reader, PlaceTails(toy), TOPIC, part)


async def read_all(part: PlacedSlice) -> list[StoredEntry]:
    found = []
    while entries := await part.read(30.0):
        found += entries
    await part.close()
    return found


def places(entries: list[StoredEntry]) -> list[tuple[int, int]]:
    return [place_of(entry.first)[:2] for entry in entries if entry.positions]


@pytest.mark.parametrize(
    ("lo", "hi"), [((3, 0), (8, 1)), ((3, 2), (3, 5)), ((3, 6), (7, 1)), ((3, 9), (7, 0)), ((7, 5), (8, 1))]
)
async def test_nothing_is_missing_while_the_ledgers_are_stored(
    lo: tuple[int, int], hi: tuple[int, int]
) -> None:
    entries = await read_all(slice_of(ToyPulsar([*PLACES]), lo, hi))
    assert places(entries) == [place for place in PLACES if lo <= place < hi]
    assert all(entry.complete for entry in entries)
    assert entries[-1] == StoredEntry(position_of(MessagePlace(*hi)), 0, b"", True)


@pytest.mark.parametrize(("lo", "hi"), [((3, 2), (7, 2)), ((3, 2), (3, 5)), ((3, 6), (7, 1))])
async def test_a_ledger_that_retention_removed_is_noticed(lo: tuple[int, int], hi: tuple[int, int]) -> None:
    toy = ToyPulsar([place for place in PLACES if place.ledger > 3])
    entries = await read_all(slice_of(toy, lo, hi))
    assert entries[0].complete is False


async def test_a_topic_that_lost_all_its_entries_does_not_reach_the_end_of_the_slice() -> None:
    assert await read_all(slice_of(ToyPulsar([]), (3, 2), (7, 2))) == []


@pytest.mark.parametrize(
    ("at", "next_"),
    [((3, 2), (3, 2)), ((3, 6), (7, 0)), ((3, 9), (7, 0)), ((5, 1), (7, 0)), ((7, 9), (8, 0))],
)
async def test_a_position_behind_its_ledger_moves_to_the_next_entry(
    at: tuple[int, int], next_: tuple[int, int]
) -> None:
    toy: Any = ToyPulsar([*PLACES])
    reader = PlaceReader(toy, TOPIC, EntryPlace(*at), None, 1)
    position = position_of(MessagePlace(*at))
    assert place_of(await next_stored(reader, PlaceTails(toy), TOPIC, position))[:2] == next_


async def test_a_position_does_not_move_over_entries_that_were_removed() -> None:
    toy: Any = ToyPulsar([place for place in PLACES if place.ledger > 3])
    reader = PlaceReader(toy, TOPIC, EntryPlace(3, 2), None, 1)
    position = position_of(MessagePlace(3, 2))
    assert await next_stored(reader, PlaceTails(toy), TOPIC, position) == position
