"""Apache Pulsar, with Anabranch's control processes, as the host of an exactly-once sink.

Pulsar does not number messages, so positions in the logs are places (`decide.source.places`). It does not
tell what sealed topics stored under the sink's name, so the driver reads the topics of segments behind the
marks of the pin; `decide.sink.stored_levels` says which ones and why.

The topic of an active segment is read as well, after the sink's producer is registered there. Pulsar gives a
name to one producer at a time. Before another driver gets it, the connection of the previous one is closed,
and each entry that arrived on it is stored, refused, or still being stored. For the last case, Pulsar's
answer to the registration contains the highest sequence id that it has accepted, and the driver reads until
it finds that id. If storing fails, Pulsar closes all producers of the topic, which ends this attempt. Reading
does not rely on Pulsar's memory, which drops the sequence ids of a producer that was away for six hours.

Pulsar's own deduplication remains the last safeguard. It compares the lowest id of an entry, and the driver
sends no entry that overlaps what is stored, so an entry that Pulsar takes for a duplicate ends the attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace

from anabranch.client.bulk.entry_sender import EntrySender
from anabranch.client.bulk.place_reader import EntryPlace, PlaceReader, PlaceTail, PlaceTails
from anabranch.client.bulk.segment_reader import RawEntry
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.errors import (
    AnabranchError,
    DataLossError,
    OperationTimeoutError,
    TopicNotFoundError,
    UnsupportedFeatureError,
)
from anabranch.protocol.outer import read_outer
from anabranch.spark.brokers.segment_questions import ASKED_AT_ONCE
from anabranch.spark.brokers.thread_client import ThreadClient
from anabranch.spark.decide.sink.records import Pending, Pin, SinkState
from anabranch.spark.decide.sink.republishing import RowJudge
from anabranch.spark.decide.sink.stored_levels import Marks, SegmentLevel, StoredLevels, earlier_segments
from anabranch.spark.decide.source.places import MessagePlace, place_of, position_of
from anabranch.spark.sink.hosts import RECENT_RECORDS, OpenSegments, SinkLogExtent, SinkLogReader

STORING_S = 0.1
"""Pause before the driver looks again for an entry that Pulsar has accepted."""

LAYOUTS_MAX = 20
"""How often a changing layout is looked up before marking its segments is given up."""


class PulsarSinkHost:
    """The topics of a Pulsar cluster."""

    on_pulsar = True

    def __init__(self, clients: ThreadClient) -> None:
        self._client = clients.bulk()
        self._tails: PlaceTails = clients.client.place_tails()

    async def extent(self, log: str) -> SinkLogExtent:
        tail = await self._tails.tail(log)
        next_ = _end_of(tail)
        recent = position_of(MessagePlace(*tail.first))
        if tail.last.entry >= 0:
            newest = MessagePlace(tail.last.ledger, max(0, tail.last.entry - RECENT_RECORDS + 1))
            recent = max(recent, position_of(newest))
        # The place of the first entry does not tell whether earlier ones were removed. Only released entries
        # are removed, and the done record that replaces them stays.
        return SinkLogExtent(0, min(recent, next_), next_)

    def read(self, log: str, start: int, stop: int) -> SinkLogReader:
        if start >= stop:
            return _NoEntries()
        end = place_of(stop)
        first = None if start == 0 else _entry_place(start)
        return _PlacedLog(
            self._client.read_places(log, first, EntryPlace(end.ledger, end.entry + (end.batch > 0)))
        )

    async def may_lack(self, log: str, position: int) -> bool:
        # The position may also be the end of a ledger that was removed. Then nothing is missing.
        return (await self._tails.tail(log)).first > _entry_place(position)

    async def marked(self, pin: Pin, topics: Collection[str], state: SinkState) -> Pin:
        marks = {topic: await self._marks(topic) for topic in sorted(topics)}
        return replace(pin, marks=marks, follows=bool(state.sink))

    async def _marks(self, topic: str) -> Marks:
        """Return the end of each active segment of a topic; no row of the batch is stored before it."""
        for _ in range(LAYOUTS_MAX):
            found = await self._client.layout(topic, create=True)
            self.check(found)
            names = {found.segment_topic(segment): segment.id for segment in found.layout.active}
            try:
                return await self._ends(names)
            except TopicNotFoundError:
                continue  # The segment was sealed and pruned in the meantime, or the topic was deleted.
        raise TopicNotFoundError(
            f"{topic} changed {LAYOUTS_MAX} times while its segments were looked up; write again"
        )

    async def _ends(self, names: Mapping[str, int]) -> dict[int, int]:
        found: dict[int, int] = {}
        listed = list(names)
        for at in range(0, len(listed), ASKED_AT_ONCE):
            for name, tail in (await self._tails.tails(listed[at : at + ASKED_AT_ONCE])).items():
                found[names[name]] = _end_of(tail)
                self._tails.forget(name)
        return found

    def check(self, layout: TopicLayout) -> None:
        if any(segment.is_classic for segment in layout.layout.active):
            raise UnsupportedFeatureError(
                f"{layout.name} is a classic topic of Apache Pulsar, which does not tell whether it "
                "recognises repeated messages; write to a scalable topic, or set delivery=at-least-once"
            )

    def segments(self, pending: Pending, name: str) -> OpenSegments:
        return _ReadSegments(self, pending, name)

    async def tail(self, log: str) -> PlaceTail:
        """Return which entries the topic of a segment has now."""
        try:
            return await self._tails.tail(log)
        finally:
            self._tails.forget(log)

    def reader(self, log: str, start: EntryPlace, stop: EntryPlace) -> PlaceReader:
        return self._client.read_places(log, start, stop)

    @property
    def limit_s(self) -> float:
        return self._client.operation_timeout_s


class _ReadSegments:
    """Reads which rows of one batch the segments have stored; for sealed segments the result is kept."""

    def __init__(self, host: PulsarSinkHost, pending: Pending, name: str) -> None:
        self._host = host
        self._pending = pending
        self._name = name
        self._sealed: dict[str, int] = {}

    async def open(self, topic: str, layout: TopicLayout, id_: int, sender: EntrySender) -> RowJudge:
        segments = layout.layout.segments
        marks = self._marks_of(topic)
        await sender.open(layout.owners.get(id_))
        levels = []
        for earlier in earlier_segments(layout.layout, id_, marks):
            log = layout.segment_topic(segments[earlier])
            if log not in self._sealed:
                self._sealed[log] = await _Search(self._host, log, self._name).run(
                    marks.get(earlier), self._pending.first_number
                )
            levels.append(SegmentLevel(segments[earlier].range, self._sealed[log]))
        own = await self._own(layout.segment_topic(segments[id_]), marks.get(id_), sender)
        return StoredLevels(segments[id_].range, [*levels, SegmentLevel(segments[id_].range, own)])

    async def _own(self, log: str, mark: int | None, sender: EntrySender) -> int:
        """Return the highest number in the topic of a registered sender, once what it accepted is stored."""
        first_number, loop = self._pending.first_number, asyncio.get_running_loop()
        search, give_up_at = _Search(self._host, log, self._name), loop.time() + self._host.limit_s
        while True:
            found = await search.run(mark, first_number)
            if found >= sender.own or sender.own < first_number:
                return found
            if loop.time() > give_up_at:
                raise OperationTimeoutError(f"{log} has accepted row {sender.own} but has not stored it")
            await asyncio.sleep(STORING_S)
            await sender.wait_until(0)  # Raises the error if the registration has ended.

    def _marks_of(self, topic: str) -> Marks:
        found = self._pending.pin.marks.get(topic)
        if found is None:
            raise DataLossError(f"a batch of the sink has rows for {topic}, which its pin does not name")
        return found


class _Search:
    """Searches one topic for the highest number that the sink stored there."""

    def __init__(self, host: PulsarSinkHost, log: str, name: str) -> None:
        self._host = host
        self._log = log
        self._name = name
        self._read_up_to = EntryPlace(-1, -1)
        self._highest = -1

    async def run(self, mark: int | None, first_number: int) -> int:
        """Return the highest number behind the mark, or in the whole topic without a mark; -1 if none."""
        tail = await self._host.tail(self._log)
        start = max(self._read_up_to, tail.first if mark is None else _entry_place(mark))
        stop = EntryPlace(tail.last.ledger, tail.last.entry + 1)
        if tail.last.entry >= 0 and start < stop:
            await self._read(max(start, tail.first), stop)
            self._read_up_to = stop
        if mark is not None and tail.first > _entry_place(mark) and self._highest < first_number:
            raise DataLossError(
                f"messages of {self._log} were removed before a batch of the sink was published, so it is "
                "not known which rows of the batch are stored; set a longer retention"
            )
        return self._highest

    async def _read(self, start: EntryPlace, stop: EntryPlace) -> None:
        reader = self._host.reader(self._log, start, stop)
        try:
            while entries := await reader.read():
                for entry in entries:
                    try:
                        outer = read_outer(entry.data)
                    except AnabranchError:
                        continue  # An unreadable entry is not one of the sink's.
                    if outer.producer_name == self._name:
                        number = max(outer.sequence_id, outer.highest_sequence_id)
                        self._highest = max(self._highest, number)
        finally:
            await reader.close()


class _PlacedLog:
    """A log with places as indexes."""

    def __init__(self, reader: PlaceReader) -> None:
        self._reader = reader

    async def read(self) -> list[RawEntry]:
        return [
            RawEntry(position_of(MessagePlace(*place)), count, place.ledger, place.entry, 0, data)
            for place, count, data in await self._reader.read()
        ]

    async def close(self) -> None:
        await self._reader.close()


class _NoEntries:
    async def read(self) -> list[RawEntry]:
        return []

    async def close(self) -> None:
        """Nothing is open."""


def _entry_place(position: int) -> EntryPlace:
    place = place_of(position)
    return EntryPlace(place.ledger, place.entry)


def _end_of(tail: PlaceTail) -> int:
    first = position_of(MessagePlace(*tail.first))
    if tail.last.entry < 0:
        return first
    return max(first, position_of(MessagePlace(tail.last.ledger, tail.last.entry + 1)))
