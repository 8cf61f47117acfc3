"""Reads topics of Apache Pulsar, which does not number messages, by ledger, entry and batch index.

Segments and partitions are read like those of Anabranch brokers, with the positions of
`decide.source.places`. A broker tells the first ledger that it stores, so entries that retention removed
before they were read are noticed. It does not tell how many entries an old ledger had. This module must not
know Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from anabranch.client.bulk.place_reader import EntryPlace, PlacedEntry, PlaceReader, PlaceTail, PlaceTails
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.client.options import parse_topic
from anabranch.errors import TopicNotFoundError, UnsupportedFeatureError
from anabranch.spark.brokers.segment_questions import KeptTails
from anabranch.spark.brokers.slices_ahead import SlicesAhead
from anabranch.spark.brokers.thread_client import ThreadClient
from anabranch.spark.decide.source.offsets import TopicCut
from anabranch.spark.decide.source.places import MessagePlace, place_of, position_of
from anabranch.spark.decide.source.topic_names import TopicPattern, short_name
from anabranch.spark.decide.source.topology import SegmentSpan, Slice, Topology
from anabranch.spark.topics import StoredEntry

if TYPE_CHECKING:
    from anabranch.client.net.topics.schemas import TopicSchema

FADING = 0.9
"""The part of a larger estimate of messages per entry that remains at the next lookup."""


class PulsarReader:
    """The reading port for brokers of Apache Pulsar."""

    def __init__(self, clients: ThreadClient) -> None:
        self._clients = clients
        self._tails = clients.run(_tails_of(clients))
        self._layouts: dict[str, TopicLayout] = {}
        self._classic: set[str] = set()
        """Topics that were asked for as scalable ones but exist only as classic ones."""
        self._kept = KeptTails(self._tails)
        self._per_entry: dict[str, float] = {}

    def topology(self, topic: str, *, fresh: bool = False) -> Topology:
        if fresh:
            self._kept.clear()
        return self._clients.run(self._topology(topic))

    def topics(self, pattern: TopicPattern) -> Sequence[str]:
        names = self._clients.run(self._list(pattern))
        return [name for name in map(short_name, names) if pattern.matches(name)]

    def positions_at(self, topic: str, topology: Topology, time_ms: int) -> Mapping[int, int]:
        return self._clients.run(self._positions_at(topic, topology, time_ms))

    def cursor_positions(self, topic: str, topology: Topology, subscription: str) -> Mapping[int, int] | None:
        raise UnsupportedFeatureError("the option subscription needs an Anabranch broker")

    def mirror(self, topic: str, subscription: str, cut: TopicCut, topology: Topology) -> None:
        raise UnsupportedFeatureError("the option subscription needs an Anabranch broker")

    def read(self, slices: Sequence[Slice], timeout_s: float) -> Iterator[tuple[int, Sequence[StoredEntry]]]:
        ahead = SlicesAhead(self._open_slice, slices, timeout_s, self._clients.client.service_url)
        try:
            while True:
                found = self._clients.run(ahead.next())
                if found is None:
                    return
                yield found
        finally:
            self._clients.leave(ahead.close())

    def schema(self, topic: str, version: bytes | None = None) -> TopicSchema | None:
        return self._clients.run(self._clients.client.topic_schema(topic, version=version))

    def schema_topic(self, topic: str, segment: int) -> str:
        name = _name_in(self._clients.run(self._layout(topic)), segment)
        # Imported late: few queries ask for schemas, and these modules take long to load.
        from anabranch.client.net.topics.schemas import has_own_schemas

        return topic if name is None or not has_own_schemas(parse_topic(topic), name) else name

    def stored_at(self, topic: str, positions: Mapping[int, int]) -> dict[int, int]:
        """Return nothing: Pulsar does not tell when it stored a message."""
        return {}

    def stored_after(self, topic: str, segments: Sequence[int], time_ms: int) -> dict[int, int]:
        """Return nothing: Pulsar does not tell when it stored a message."""
        return {}

    def settle(self, topic: str, positions: Mapping[int, int]) -> Mapping[int, int]:
        """Return for each position the one of the first entry stored there or later."""
        return self._clients.run(self._settle(topic, positions))

    async def _positions_at(self, topic: str, topology: Topology, time_ms: int) -> dict[int, int]:
        layout = await self._layout(topic)
        found = {}
        for id_ in topology.layout.segments:
            name = _name_in(layout, id_)
            if name is not None:
                found[id_] = position_of(MessagePlace(*await self._tails.at_time(name, max(time_ms, 0))))
        return found

    async def _settle(self, topic: str, positions: Mapping[int, int]) -> Mapping[int, int]:
        layout = await self._layout(topic)
        found = await asyncio.gather(
            *(self._next_stored(_name_in(layout, id_), position) for id_, position in positions.items())
        )
        return dict(zip(positions, found, strict=True))

    async def _next_stored(self, name: str | None, position: int) -> int:
        if name is None:
            return position
        place = place_of(position)
        reader = self._clients.client.read_places(name, EntryPlace(place.ledger, place.entry), None, 1)
        return await next_stored(reader, self._tails, name, position)

    async def _topology(self, topic: str) -> Topology:
        while True:
            found = await self._layout(topic, fresh=True)
            segments = found.layout.segments
            # Asked after the layout, so the ends of its sealed segments are final.
            try:
                return Topology(found.layout, await self._spans(found))
            except TopicNotFoundError:
                # If a segment was pruned in the meantime, a newer layout lacks it.
                newer = await self._layout(topic, fresh=True)
                if segments.keys() <= newer.layout.segments.keys():
                    raise

    async def _spans(self, found: TopicLayout) -> dict[int, SegmentSpan]:
        names = {found.segment_topic(segment): id_ for id_, segment in found.layout.segments.items()}
        sealed = {found.segment_topic(segment) for segment in found.layout.sealed}
        tails = await self._kept.of(names, lambda name, _: name in sealed)
        return {names[name]: self._span(name, tail, name in sealed) for name, tail in tails.items()}

    async def _layout(self, topic: str, *, fresh: bool = False) -> TopicLayout:
        known = self._layouts.get(topic)
        if known is None or fresh:
            known = self._layouts[topic] = await self._look_up(topic)
        return known

    async def _list(self, pattern: TopicPattern) -> list[str]:
        """Return the full names of topics; without scalable topics, classic ones take their names."""
        client = self._clients.client
        try:
            return await client.topics(pattern.namespace, classic=pattern.is_classic)
        except UnsupportedFeatureError:
            names = await client.topics(pattern.namespace, classic=True)
            return [name.replace("persistent://", "topic://", 1) for name in names]

    async def _look_up(self, topic: str) -> TopicLayout:
        """Return the layout of the scalable topic of that name, or of the classic one if there is none."""
        name = parse_topic(topic)
        if topic not in self._classic:
            try:
                return await self._clients.client.layout(topic)
            except TopicNotFoundError:
                if not name.is_scalable:
                    raise
        classic = str(name).replace("topic://", "persistent://", 1)
        found = await self._clients.client.layout(classic)
        self._classic.add(topic)
        return found

    def _span(self, name: str, tail: PlaceTail, sealed: bool) -> SegmentSpan:
        # Too high an estimate is better than too low a one, because it limits the size of a micro-batch.
        per_entry = max(float(tail.last_messages), FADING * self._per_entry.get(name, 1.0))
        self._per_entry[name] = per_entry
        first = next_ = position_of(MessagePlace(*tail.first))
        if tail.last.entry >= 0:
            next_ = max(first, position_of(MessagePlace(tail.last.ledger, tail.last.entry + 1)))
        return SegmentSpan(first, next_, sealed, per_entry)

    async def _open_slice(self, part: Slice) -> PlacedSlice | None:
        """Return a reader of the slice, or None if its segment is gone."""
        name = _name_in(await self._layout(part.topic), part.segment)
        if name is None:
            name = _name_in(await self._layout(part.topic, fresh=True), part.segment)
        if name is None:
            return None
        start, stop = place_of(part.lo), place_of(part.hi)
        reader = self._clients.client.read_places(
            name,
            EntryPlace(start.ledger, start.entry),
            EntryPlace(stop.ledger, stop.entry + (stop.batch > 0)),
        )
        return PlacedSlice(reader, self._tails, name, part)


class PlacedSlice:
    """Reads one slice, and checks at each new ledger whether entries before it were removed unread."""

    def __init__(self, reader: PlaceReader, tails: PlaceTails, topic: str, part: Slice) -> None:
        self._reader = reader
        self._tails = tails
        self._topic = topic
        self._part = part
        start = place_of(part.lo)
        self._expected = EntryPlace(start.ledger, start.entry)
        self._ended = False

    async def read(self, timeout: float) -> list[StoredEntry]:
        """Return the next entries; after the last ones an entry that marks the end, and then nothing."""
        if self._ended:
            return []
        entries = await self._reader.read(timeout)
        if entries:
            return [await self._stored(entry) for entry in entries]
        self._ended = True
        if not self._reader.stop_passed:
            return []
        stop = place_of(self._part.hi)
        complete = self._expected >= (stop.ledger, stop.entry) or await self._nothing_removed()
        return [StoredEntry(self._part.hi, 0, b"", complete)]

    async def _stored(self, entry: PlacedEntry) -> StoredEntry:
        complete = entry.place.ledger == self._expected.ledger or await self._nothing_removed()
        self._expected = EntryPlace(entry.place.ledger, entry.place.entry + 1)
        last = position_of(MessagePlace(*entry.place, entry.message_count - 1))
        return StoredEntry(last - entry.message_count + 1, entry.message_count, entry.data, complete)

    async def _nothing_removed(self) -> bool:
        """Whether retention has removed no entry from the expected place on.

        It removes the oldest ledgers first, so as long as one ledger is stored, all later ones are.
        """
        return (await self._tails.tail(self._topic)).first <= self._expected

    async def close(self) -> None:
        await self._reader.close()


async def next_stored(reader: PlaceReader, tails: PlaceTails, topic: str, position: int) -> int:
    """Return the position of the first entry stored at this position or later; `reader` starts there.

    If entries from the position on were removed, return it unchanged: the next lookup reports the loss.
    """
    try:
        stored = (await reader.read())[0].place
    finally:
        await reader.close()
    place = place_of(position)
    if (await tails.tail(topic)).first > (place.ledger, place.entry):
        return position
    return max(position, position_of(MessagePlace(*stored)))


async def _tails_of(clients: ThreadClient) -> PlaceTails:
    return clients.client.place_tails()


def _name_in(layout: TopicLayout, id_: int) -> str | None:
    segment = layout.layout.segments.get(id_)
    return None if segment is None else layout.segment_topic(segment)
