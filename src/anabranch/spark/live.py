"""Topics through the client: one client per thread, whose event loop runs only while a call waits.

Spark's Python workers do one thing at a time, so no second thread is needed: between calls the kernel buffers
the bytes that the broker sends. Workers and their clients outlive micro-batches and queries. The client
replaces a connection that broke between calls when its loop runs next.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from anabranch.aio import new_event_loop
from anabranch.client.bulk import BulkClient
from anabranch.client.consume.segment_reader import RawEntry, SegmentReader
from anabranch.client.consume.segment_tails import SegmentTails
from anabranch.client.net.layout_watch import TopicLayout
from anabranch.client.net.schemas import TopicSchema
from anabranch.client.produce.futures import BulkFuture
from anabranch.client.produce.producer import AsyncProducer
from anabranch.errors import TopicNotFoundError
from anabranch.model.ranges import HashRange
from anabranch.protocol.outer import head_without
from anabranch.spark.credentials import SparkCredentials
from anabranch.spark.cursor_mirrors import CursorMirrors
from anabranch.spark.decide.offsets import TopicCut
from anabranch.spark.decide.topic_names import TopicPattern, short_name
from anabranch.spark.decide.topology import SegmentSpan, Slice, Topology
from anabranch.spark.option_values import CREDENTIALS, Settings
from anabranch.spark.segment_places import places_at, places_of
from anabranch.spark.slices_ahead import SlicesAhead
from anabranch.spark.topics import OutgoingRows, Sink, StoredEntry, TopicReader
from anabranch.spark.worker_memory import prepare_worker

T = TypeVar("T")

TAILS_AT_ONCE = 64
SEALED_TAIL_TTL_S = 30.0
"""The end of a sealed segment is final; trimming moves its start."""


@dataclass(frozen=True, slots=True)
class LiveService:
    """The way to topics through a broker, as a picklable value."""

    url: str
    settings: Settings = ()

    def reader(self) -> TopicReader:
        return _session(self).reader

    def writer(self, topic: str, flush_bytes: int, compression: str | None) -> LiveWriter:
        return LiveWriter(_session(self), topic, flush_bytes, compression)

    def sink(self, namespace: str, sink_id: str) -> Sink:
        # Imported late: most processes never write exactly once.
        from anabranch.spark.live_sink import LiveSink

        return LiveSink(_session(self), namespace, sink_id)


class Session:
    """A client and its event loop, for one thread of one process."""

    def __init__(self, service: LiveService) -> None:
        self._loop = new_event_loop()
        self._leaving: asyncio.Task[None] | None = None
        self.rng = Random()
        self.client, self.tails = self.run(_open(service))
        # Imported late: it needs this module.
        from anabranch.spark.broker_reader import ReaderOfBroker

        self.reader = ReaderOfBroker(self)

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
        self._loop.close()


async def _open(service: LiveService) -> tuple[BulkClient, SegmentTails]:
    client = new_client(service)
    return client, client.tails()


def new_client(service: LiveService) -> BulkClient:
    """Return a client of the event loop that runs now; the caller closes it."""
    settings = dict(service.settings)
    role: SparkCredentials | None = settings.pop(CREDENTIALS, None)
    authentication = None if role is None else role.make()
    return BulkClient(service.url, authentication=authentication, **settings)


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
        self._mirrors = CursorMirrors(session.client, session.tails)
        self._sealed: dict[str, tuple[SegmentSpan, float]] = {}

    def topology(self, topic: str) -> Topology:
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
        names = self._names(topic, topology)
        self._session.run(self._mirrors.follow(topic, subscription, cut, topology, names))

    def _names(self, topic: str, topology: Topology) -> dict[int, str]:
        """Return the topic name of each segment that is not pruned."""
        layout, pruned = self._layouts[topic], topology.layout.pruned
        segments = topology.layout.segments.items()
        return {id_: layout.segment_topic(segment) for id_, segment in segments if id_ not in pruned}

    def schema(self, topic: str, version: bytes | None = None) -> TopicSchema | None:
        return self._session.run(self._session.client.topic_schema(topic, version=version))

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
                tails = await self._tails(list(names))
            except TopicNotFoundError:
                # If a segment was pruned in between, a newer layout lacks it.
                found = self._layouts[topic] = await self.layout(topic)
                if segments.keys() <= found.layout.segments.keys():
                    raise
                continue
            return Topology.of(found.layout, {names[name]: tail for name, tail in tails.items()})

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

    async def _tails(self, names: list[str]) -> dict[str, SegmentSpan]:
        now = asyncio.get_running_loop().time()
        known = {
            name: tail
            for name, (tail, asked_at) in self._sealed.items()
            if now - asked_at < SEALED_TAIL_TTL_S and name in names
        }
        missing = [name for name in names if name not in known]
        for at in range(0, len(missing), TAILS_AT_ONCE):
            answers = await self._session.tails.tails(missing[at : at + TAILS_AT_ONCE])
            for name, tail in answers.items():
                known[name] = SegmentSpan(tail.first_index, tail.next_index, tail.sealed, log=tail.log_id)
                if tail.sealed:
                    self._sealed[name] = (known[name], now)
                    self._session.tails.forget(name)
        return known

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


def _stored(entry: RawEntry, wanted: HashRange | None) -> StoredEntry:
    elsewhere = wanted is not None and head_without(entry.data, wanted) is not None
    return StoredEntry(entry.first_index, entry.message_count, entry.data, elsewhere=elsewhere)


class LiveWriter:
    """The writing port over a producer of its own."""

    def __init__(self, session: Session, topic: str, entry_bytes: int, compression: Any) -> None:
        self._session = session
        self._entry_bytes = entry_bytes
        self._waiting: deque[BulkFuture] = deque()
        self._turn = session.rng.randrange(2**16)
        creating = session.client.create_producer(
            topic, compression=compression, send_timeout=session.client.operation_timeout_s
        )
        self._producer: AsyncProducer[bytes] = session.run(creating)

    def write(self, rows: OutgoingRows) -> None:
        # Imported late, because readers need no encoder.
        from anabranch.spark.encoding import RowEncoder

        # Rows without a key go to the next bucket, batch by batch.
        self._turn += 1
        encoder = RowEncoder(rows, self._entry_bytes, self._turn)
        self._waiting.append(self._session.run(self._producer.enqueue_encoded(encoder)))
        # Report an error of earlier rows now and not after the last row.
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def finish(self) -> None:
        self._session.run(self._finish())

    async def _finish(self) -> None:
        while self._waiting:
            await self._waiting.popleft()

    def close(self) -> None:
        self._session.run(self._producer.close(timeout=0))
