"""Slices of Apache Pulsar: the places of entries, and entries that retention removed unread."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.client.bulk.place_reader import EntryPlace, PlaceReader, PlaceTails
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.client.options import parse_topic
from anabranch.model.layout import Layout
from anabranch.model.ranges import FULL
from anabranch.spark.brokers.pulsar_reader import PlacedSlice, PulsarReader, next_stored
from anabranch.spark.decide.source.places import MessagePlace, place_of, position_of
from anabranch.spark.decide.source.topology import Slice
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


class SealedTopic:
    """The client of a session with one topic of one sealed segment."""

    def __init__(self, toy: ToyPulsar) -> None:
        self._toy: Any = toy
        self.topics: dict[int, str] = {}

    def place_tails(self) -> PlaceTails:
        return PlaceTails(self._toy)

    async def layout(self, topic: str) -> TopicLayout:
        layout = Layout.initial(1, now_ms=0).split(0, now_ms=1)
        return TopicLayout(parse_topic(topic), layout, topics=self.topics)


class SealedSession:
    def __init__(self, toy: ToyPulsar) -> None:
        self.client = SealedTopic(toy)

    def run(self, work: Any) -> Any:
        return asyncio.run(work)


def test_a_query_that_begins_asks_where_a_sealed_segment_begins_now() -> None:
    toy = ToyPulsar([*PLACES])
    session: Any = SealedSession(toy)
    reader = PulsarReader(session)
    first = position_of(MessagePlace(3, 0))
    assert reader.topology("orders").tails[0].first == first
    toy.stored = [place for place in PLACES if place.ledger > 3]
    assert reader.topology("orders").tails[0].first == first, "a running query asks once in a while"
    assert reader.topology("orders", fresh=True).tails[0].first == position_of(MessagePlace(7, 0))


def test_versions_are_those_of_the_topic_that_holds_a_segment_for_a_control_process() -> None:
    session: Any = SealedSession(ToyPulsar([*PLACES]))
    reader = PulsarReader(session)
    assert reader.schema_topic("orders", 0) == "orders", "the segments of a broker share its versions"
    held = {0: "persistent://public/default/orders.segment-0000-ffff-0"}
    session.client.topics = held
    assert PulsarReader(session).schema_topic("orders", 0) == held[0]
    assert PulsarReader(session).schema_topic("orders", 99) == "orders"
