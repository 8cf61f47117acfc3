"""Topics through the client: one client per thread, whose event loop runs only while a call waits.

Spark's Python workers do one thing at a time, so no second thread is needed: between calls the kernel buffers
the bytes that the broker sends. Workers and their clients outlive micro-batches and queries. The client
replaces a connection that broke between calls when its loop runs next.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from anabranch.aio import new_event_loop
from anabranch.client.consume.segment_reader import RawEntry, SegmentReader
from anabranch.client.consume.segment_tails import SegmentTail, SegmentTails
from anabranch.client.net.layout_watch import TopicLayout
from anabranch.client.reading import ReadingClient
from anabranch.errors import TopicNotFoundError
from anabranch.model.ranges import HashRange
from anabranch.protocol.outer import head_without
from anabranch.spark.credentials import SparkCredentials
from anabranch.spark.decide.offsets import TopicCut
from anabranch.spark.decide.topic_names import TopicPattern, short_name
from anabranch.spark.decide.topology import SegmentSpan, Slice, Topology
from anabranch.spark.kept_tails import KeptTails
from anabranch.spark.option_values import CREDENTIALS, Settings
from anabranch.spark.segment_places import places_at, places_of
from anabranch.spark.slices_ahead import SlicesAhead
from anabranch.spark.topics import Sink, StoredEntry, TopicReader
from anabranch.spark.worker_memory import prepare_worker

if TYPE_CHECKING:
    # Imported late: Spark starts a process for each query that plans and never writes.
    from anabranch.client.bulk import BulkClient
    from anabranch.client.net.schemas import TopicSchema
    from anabranch.spark.cursor_mirrors import CursorMirrors
    from anabranch.spark.live_writer import LiveWriter
    from anabranch.spark.sink_hosts import SinkHost

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LiveService:
    """The way to topics through a broker, as a picklable value."""

    url: str
    settings: Settings = ()

    def reader(self) -> TopicReader:
        return _session(self).reader

    def writer(self, topic: str, flush_bytes: int, compression: str | None) -> LiveWriter:
        # Imported late: readers load no producer.
        from anabranch.spark.live_writer import LiveWriter

        return LiveWriter(_session(self), topic, flush_bytes, compression)

    def sink(self, namespace: str, sink_id: str) -> Sink:
        # Imported late: most processes never write exactly once.
        from anabranch.spark.live_sink import LiveSink

        return LiveSink(_session(self), namespace, sink_id)


class Session:
    """A client and its event loop, for one thread of one process."""

    def __init__(self, service: LiveService) -> None:
        self._service = service
        self._loop = new_event_loop()
        self._bulk: BulkClient | None = None
        self._sink_host: SinkHost | None = None
        self._leaving: asyncio.Task[None] | None = None
        self.rng = Random()
        self.client, self.tails = self.run(_open(service))
        # Imported late: it needs this module.
        from anabranch.spark.broker_reader import ReaderOfBroker

        self.reader = ReaderOfBroker(self)

    def bulk(self) -> BulkClient:
        """Return the client of writers and mirrors, which has connections of its own; made on first use."""
        if self._bulk is None:
            self._bulk = new_client(self._service)
        return self._bulk

    def sink_host(self) -> SinkHost:
        """Return what a sink needs of these brokers; connects on first use."""
        if self._sink_host is None:
            from anabranch.spark.sink_hosts import host_of

            self._sink_host = self.run(host_of(self))
        return self._sink_host

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def leave(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work, or schedule it if the loop runs: Python may close an iterator at any moment."""
        if self._loop.is_running():
            self._leaving = self._loop.create_task(work)
        else:
            self.run(work)

    def close(self) -> None:
        self.run(self.client.close())
        if self._bulk is not None:
            self.run(self._bulk.close())
        self._loop.close()


async def _open(service: LiveService) -> tuple[ReadingClient, SegmentTails]:
    client = ReadingClient(service.url, **_arguments(service))
    return client, client.tails()


def new_client(service: LiveService) -> BulkClient:
    """Return a client that writes, of the event loop that calls it first; the caller closes it."""
    from anabranch.client.bulk import BulkClient

    return BulkClient(service.url, **_arguments(service))


def _arguments(service: LiveService) -> dict[str, Any]:
    settings = dict(service.settings)
    role: SparkCredentials | None = settings.pop(CREDENTIALS, None)
    return {**settings, "authentication": None if role is None else role.make()}


_sessions: dict[tuple[int, int, LiveService], Session] = {}


def _session(service: LiveService) -> Session:
    """Return the session of this thread; a forked process makes a new one."""
    key = (os.getpid(), threading.get_ident(), service)
    if key not in _sessions:
        _sessions[key] = Session(service)
    prepare_worker()
    return _sessions[key]


def close_sessions() -> None:
    """Close the sessions of this thread; for tests, and for programs that continue after Spark."""
    for key in [key for key in _sessions if key[:2] == (os.getpid(), threading.get_ident())]:
        _sessions.pop(key).close()


class LiveReader:
    """The reading port over a session with our brokers."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layouts: dict[str, TopicLayout] = {}
        self._mirrors: CursorMirrors | None = None
        self._tails = KeptTails(session.tails)

    def topology(self, topic: str, *, fresh: bool = False) -> Topology:
        if fresh:
            self._tails.clear()
        return self._session.run(self._topology(topic))

    def topics(self, pattern: TopicPattern) -> Sequence[str]:
        listing = self._session.client.topics(pattern.namespace, classic=pattern.is_classic)
        return [name for name in map(short_name, self._session.run(listing)) if pattern.matches(name)]

    def places_at(self, topic: str, topology: Topology, time_ms: int) -> Mapping[int, int]:
        return self._session.run(places_at(self._session.tails, self._names(topic, topology), time_ms))

    def places_of(self, topic: str, topology: Topology, subscription: str) -> Mapping[int, int] | None:
        names = self._names(topic, topology)
        return self._session.run(places_of(self._session.tails, names, subscription, topology))

    def mirror(self, topic: str, subscription: str, cut: TopicCut, topology: Topology) -> None:
        if self._mirrors is None:
            from anabranch.spark.cursor_mirrors import CursorMirrors

            self._mirrors = CursorMirrors(self._session.bulk(), self._session.tails)
        names = self._names(topic, topology)
        self._session.run(self._mirrors.follow(topic, subscription, cut, topology, names))

    def _names(self, topic: str, topology: Topology) -> dict[int, str]:
        """Return the topic name of each segment that is not pruned."""
        layout, pruned = self._layouts[topic], topology.layout.pruned
        segments = topology.layout.segments.items()
        return {id_: layout.segment_topic(segment) for id_, segment in segments if id_ not in pruned}

    def schema(self, topic: str, version: bytes | None = None) -> TopicSchema | None:
        return self._session.run(self._session.client.topic_schema(topic, version=version))

    def schema_topic(self, topic: str, segment: int) -> str:
        return topic

    def read(self, slices: Sequence[Slice], timeout_s: float) -> Iterator[tuple[int, Sequence[StoredEntry]]]:
        ahead = SlicesAhead(self._open_slice, slices, timeout_s, self._session.client.service_url)
        try:
            while True:
                found = self._session.run(ahead.next())
                if found is None:
                    return
                number, entries = found
                yield number, [_stored(entry, slices[number].bucket_hashes) for entry in entries]
        finally:
            self._session.leave(ahead.close())

    def settle(self, topic: str, positions: Mapping[int, int]) -> Mapping[int, int]:
        """Return the positions as they are: our brokers number messages without gaps."""
        return positions

    async def _topology(self, topic: str) -> Topology:
        found = self._layouts[topic] = await self.layout(topic)
        while True:
            segments = found.layout.segments
            names = {found.segment_topic(segment): id_ for id_, segment in segments.items()}
            # Asked after the layout, so the extents of its sealed segments are final.
            try:
                tails = await self._tails.of(names, lambda _, tail: tail.sealed)
            except TopicNotFoundError:
                # If a segment was pruned in between, a newer layout lacks it.
                found = self._layouts[topic] = await self.layout(topic)
                if segments.keys() <= found.layout.segments.keys():
                    raise
                continue
            return Topology.of(found.layout, {names[name]: _span(tail) for name, tail in tails.items()})

    def stored_at(self, topic: str, positions: Mapping[int, int]) -> dict[int, int]:
        return self._session.run(self._of_each(topic, positions, self._session.tails.stored_at))

    def stored_after(self, topic: str, segments: Sequence[int], time_ms: int) -> dict[int, int]:
        asked = dict.fromkeys(segments, time_ms)
        return self._session.run(self._of_each(topic, asked, self._session.tails.stored_after))

    async def _of_each(
        self, topic: str, asked: Mapping[int, int], ask: Callable[[str, int], Awaitable[int | None]]
    ) -> dict[int, int]:
        """Return the answers about segments; those that are gone, or cannot be asked, are missing."""
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
        """Return the current layout; waits for a broker that is restarting, for the operation timeout."""
        return await self._session.client.layout(topic, with_pruned=True)

    async def _open_slice(self, part: Slice) -> SegmentReader | None:
        """Return a reader of the slice; None when its segment is gone."""
        layout = self._layouts.get(part.topic)
        if layout is None or part.segment not in layout.layout.segments:
            layout = self._layouts[part.topic] = await self.layout(part.topic)
        segment = layout.layout.segments.get(part.segment)
        if segment is None:
            return None
        name = layout.segment_topic(segment)
        return self._session.client.read_segment(name, part.lo, part.hi, part.log, part.bucket_hashes)


def _span(tail: SegmentTail) -> SegmentSpan:
    return SegmentSpan(tail.first_index, tail.next_index, tail.sealed, log=tail.log_id)


def _stored(entry: RawEntry, wanted: HashRange | None) -> StoredEntry:
    elsewhere = wanted is not None and head_without(entry.data, wanted) is not None
    return StoredEntry(entry.first_index, entry.message_count, entry.data, elsewhere=elsewhere)
