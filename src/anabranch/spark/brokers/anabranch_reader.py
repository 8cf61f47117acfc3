"""Reads topics of Anabranch brokers by message index. It must not know Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from anabranch.client.bulk.segment_reader import RawEntry, SegmentReader
from anabranch.client.bulk.segment_tails import SegmentTail
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.errors import TopicNotFoundError
from anabranch.model.ranges import HashRange
from anabranch.protocol.outer import head_without
from anabranch.spark.brokers.segment_questions import KeptTails, cursor_positions, positions_at
from anabranch.spark.brokers.slices_ahead import SlicesAhead
from anabranch.spark.brokers.thread_client import ThreadClient
from anabranch.spark.decide.source.offsets import TopicCut
from anabranch.spark.decide.source.topic_names import TopicPattern, short_name
from anabranch.spark.decide.source.topology import SegmentSpan, Slice, Topology
from anabranch.spark.topics import StoredEntry

if TYPE_CHECKING:
    # Imported late: few queries mirror their cuts, and few ask for schemas.
    from anabranch.client.net.topics.schemas import TopicSchema
    from anabranch.spark.brokers.cursor_mirrors import CursorMirrors


class AnabranchReader:
    """The reading port for Anabranch brokers, which number the messages of a segment from 0 without gaps."""

    def __init__(self, clients: ThreadClient) -> None:
        self._clients = clients
        self._layouts: dict[str, TopicLayout] = {}
        self._mirrors: CursorMirrors | None = None
        self._tails = KeptTails(clients.tails)

    def topology(self, topic: str, *, fresh: bool = False) -> Topology:
        if fresh:
            self._tails.clear()
        return self._clients.run(self._topology(topic))

    def topics(self, pattern: TopicPattern) -> Sequence[str]:
        listing = self._clients.client.topics(pattern.namespace, classic=pattern.is_classic)
        return [name for name in map(short_name, self._clients.run(listing)) if pattern.matches(name)]

    def positions_at(self, topic: str, topology: Topology, time_ms: int) -> Mapping[int, int]:
        return self._clients.run(positions_at(self._clients.tails, self._names(topic, topology), time_ms))

    def cursor_positions(self, topic: str, topology: Topology, subscription: str) -> Mapping[int, int] | None:
        names = self._names(topic, topology)
        return self._clients.run(cursor_positions(self._clients.tails, names, subscription, topology))

    def mirror(self, topic: str, subscription: str, cut: TopicCut, topology: Topology) -> None:
        if self._mirrors is None:
            from anabranch.spark.brokers.cursor_mirrors import CursorMirrors

            self._mirrors = CursorMirrors(self._clients.bulk(), self._clients.tails)
        names = self._names(topic, topology)
        self._clients.run(self._mirrors.follow(topic, subscription, cut, topology, names))

    def _names(self, topic: str, topology: Topology) -> dict[int, str]:
        """Return the topic name of each segment that is not pruned."""
        layout, pruned = self._layouts[topic], topology.layout.pruned
        segments = topology.layout.segments.items()
        return {id_: layout.segment_topic(segment) for id_, segment in segments if id_ not in pruned}

    def schema(self, topic: str, version: bytes | None = None) -> TopicSchema | None:
        return self._clients.run(self._clients.client.topic_schema(topic, version=version))

    def schema_topic(self, topic: str, segment: int) -> str:
        return topic

    def read(self, slices: Sequence[Slice], timeout_s: float) -> Iterator[tuple[int, Sequence[StoredEntry]]]:
        ahead = SlicesAhead(self._open_slice, slices, timeout_s, self._clients.client.service_url)
        try:
            while True:
                found = self._clients.run(ahead.next())
                if found is None:
                    return
                number, entries = found
                yield number, [_stored(entry, slices[number].bucket_hashes) for entry in entries]
        finally:
            self._clients.leave(ahead.close())

    def settle(self, topic: str, positions: Mapping[int, int]) -> Mapping[int, int]:
        """Return the positions unchanged, because they have no gaps."""
        return positions

    async def _topology(self, topic: str) -> Topology:
        found = self._layouts[topic] = await self.layout(topic)
        while True:
            segments = found.layout.segments
            names = {found.segment_topic(segment): id_ for id_, segment in segments.items()}
            # Asked after the layout, so the ends of its sealed segments are final.
            try:
                tails = await self._tails.of(names, lambda _, tail: tail.sealed)
            except TopicNotFoundError:
                # If a segment was pruned in the meantime, a newer layout lacks it.
                found = self._layouts[topic] = await self.layout(topic)
                if segments.keys() <= found.layout.segments.keys():
                    raise
                continue
            return Topology.of(found.layout, {names[name]: _span(tail) for name, tail in tails.items()})

    def stored_at(self, topic: str, positions: Mapping[int, int]) -> dict[int, int]:
        return self._clients.run(self._of_each(topic, positions, self._clients.tails.stored_at))

    def stored_after(self, topic: str, segments: Sequence[int], time_ms: int) -> dict[int, int]:
        asked = dict.fromkeys(segments, time_ms)
        return self._clients.run(self._of_each(topic, asked, self._clients.tails.stored_after))

    async def _of_each(
        self, topic: str, asked: Mapping[int, int], ask: Callable[[str, int], Awaitable[int | None]]
    ) -> dict[int, int]:
        """Return the answers about segments; those that are gone or give no answer are absent."""
        layout = self._layouts[topic]
        segments = layout.layout.segments

        async def answer(id_: int, number: int) -> int | None:
            try:
                return await ask(layout.segment_topic(segments[id_]), number)
            except TopicNotFoundError:
                return None

        known = [id_ for id_ in asked if id_ in segments]
        found = await asyncio.gather(*(answer(id_, asked[id_]) for id_ in known))
        return {id_: number for id_, number in zip(known, found, strict=True) if number is not None}

    async def layout(self, topic: str) -> TopicLayout:
        """Return the current layout; a restarting broker is awaited for up to the operation timeout."""
        return await self._clients.client.layout(topic, with_pruned=True)

    async def _open_slice(self, part: Slice) -> SegmentReader | None:
        """Return a reader of the slice, or None if its segment is gone."""
        layout = self._layouts.get(part.topic)
        if layout is None or part.segment not in layout.layout.segments:
            layout = self._layouts[part.topic] = await self.layout(part.topic)
        segment = layout.layout.segments.get(part.segment)
        if segment is None:
            return None
        name = layout.segment_topic(segment)
        return self._clients.client.read_segment(name, part.lo, part.hi, part.log, part.bucket_hashes)


def _span(tail: SegmentTail) -> SegmentSpan:
    return SegmentSpan(tail.first_index, tail.next_index, tail.sealed, log=tail.log_id)


def _stored(entry: RawEntry, wanted: HashRange | None) -> StoredEntry:
    elsewhere = wanted is not None and head_without(entry.data, wanted) is not None
    return StoredEntry(entry.first_index, entry.message_count, entry.data, elsewhere=elsewhere)
