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
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from anabranch.aio import new_event_loop
from anabranch.client.api import AsyncClient
from anabranch.client.consume.segment_reader import RawEntry, SegmentReader, SegmentTails
from anabranch.client.net.layout_watch import TopicLayout
from anabranch.client.produce.futures import BulkFuture
from anabranch.client.produce.producer import AsyncProducer
from anabranch.errors import OperationTimeoutError, TopicNotFoundError
from anabranch.spark.credentials import SparkCredentials
from anabranch.spark.decide.topology import SegmentSpan, Slice, Topology
from anabranch.spark.option_values import CREDENTIALS, Settings
from anabranch.spark.topics import OutgoingRows, StoredEntry
from anabranch.spark.worker_memory import exempt_modules

T = TypeVar("T")

TAILS_AT_ONCE = 64
SEALED_TAIL_TTL_S = 30.0
"""The end of a sealed segment is final; trimming moves its start."""

READERS_AHEAD = 8
"""Slices opened in advance, so that many small slices do not each wait for a round trip."""

ROWS_AHEAD = 50_000
"""Rows in opened slices from which on no further slice is opened."""


@dataclass(frozen=True, slots=True)
class LiveService:
    """The way to topics through a broker, as a picklable value."""

    url: str
    settings: Settings = ()

    def reader(self) -> LiveReader:
        return _session(self).reader

    def writer(self, topic: str, flush_bytes: int, compression: str | None) -> LiveWriter:
        return LiveWriter(_session(self), topic, flush_bytes, compression)


class Session:
    """A client and its event loop, for one thread of one process."""

    def __init__(self, service: LiveService) -> None:
        self._loop = new_event_loop()
        self._leaving: asyncio.Task[None] | None = None
        self.rng = Random()
        self.client, self.tails = self.run(_open(service))
        self.reader = LiveReader(self)

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


async def _open(service: LiveService) -> tuple[AsyncClient, SegmentTails]:
    settings = dict(service.settings)
    role: SparkCredentials | None = settings.pop(CREDENTIALS, None)
    authentication = None if role is None else role.make()
    client = AsyncClient(service.url, authentication=authentication, **settings)
    return client, client.tails()


_sessions: dict[tuple[int, int, LiveService], Session] = {}


def _session(service: LiveService) -> Session:
    """Return the session of this thread; a forked process makes a new one."""
    key = (os.getpid(), threading.get_ident(), service)
    if key not in _sessions:
        _sessions[key] = Session(service)
        exempt_modules()
    return _sessions[key]


def close_sessions() -> None:
    """Close the sessions of this thread; for tests, and for programs that continue after Spark."""
    for key in [key for key in _sessions if key[:2] == (os.getpid(), threading.get_ident())]:
        _sessions.pop(key).close()


class SlicesAhead:
    """Reads slices one after the other and requests the next ones in advance."""

    def __init__(
        self,
        open_slice: Callable[[Slice], Awaitable[SegmentReader | None]],
        slices: Sequence[Slice],
        timeout_s: float,
        service_url: str,
    ) -> None:
        """`timeout_s` is the longest wait for the next entries of a slice."""
        self._open_slice = open_slice
        self._slices = slices
        self._timeout_s = timeout_s
        self._service_url = service_url
        self._opened = 0
        self._readers: dict[int, SegmentReader | None] = {}
        self._reads: deque[tuple[int, asyncio.Task[list[RawEntry]]]] = deque()
        self._rows_ahead = 0

    async def next(self) -> tuple[int, list[RawEntry]] | None:
        """Return the next entries with the number of their slice; None at the end."""
        while True:
            self._open_more()
            if not self._reads:
                return None
            number, reading = self._reads[0]
            try:
                async with asyncio.timeout(self._timeout_s):
                    entries = await reading
            except TimeoutError as error:
                part, why = self._slices[number], str(error) or "no answer"
                raise OperationTimeoutError(
                    f"segment {part.segment} of topic {part.topic} gave no message within "
                    f"{self._timeout_s:g} s: {why}; check {self._service_url} or raise pollTimeoutMs"
                ) from None
            if entries:
                # Read on while the caller works on these entries.
                self._reads[0] = (number, asyncio.ensure_future(self._more(number)))
                return number, entries
            self._reads.popleft()
            self._readers.pop(number, None)
            self._rows_ahead -= self._slices[number].rows

    def _open_more(self) -> None:
        while (
            self._opened < len(self._slices)
            and len(self._reads) < READERS_AHEAD
            and (len(self._reads) < 2 or self._rows_ahead < ROWS_AHEAD)
        ):
            number = self._opened
            self._opened += 1
            self._rows_ahead += self._slices[number].rows
            self._reads.append((number, asyncio.ensure_future(self._first(number))))

    async def _first(self, number: int) -> list[RawEntry]:
        self._readers[number] = await self._open_slice(self._slices[number])
        return await self._more(number)

    async def _more(self, number: int) -> list[RawEntry]:
        reader = self._readers[number]
        try:
            return [] if reader is None else await reader.read(self._timeout_s)
        except TopicNotFoundError:
            # The segment was pruned after the lookup; the caller finds the slice too short.
            return []

    async def close(self) -> None:
        reads = [reading for _, reading in self._reads]
        self._reads.clear()
        for reading in reads:
            reading.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        for reader in self._readers.values():
            if reader is not None:
                await reader.close()


class LiveReader:
    """The reading port over a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layouts: dict[str, TopicLayout] = {}
        self._sealed: dict[str, tuple[SegmentSpan, float]] = {}

    def topology(self, topic: str) -> Topology:
        return self._session.run(self._topology(topic))

    def read(self, slices: Sequence[Slice], timeout_s: float) -> Iterator[tuple[int, Sequence[StoredEntry]]]:
        ahead = SlicesAhead(self._open_slice, slices, timeout_s, self._session.client.service_url)
        try:
            while True:
                found = self._session.run(ahead.next())
                if found is None:
                    return
                number, entries = found
                yield number, [StoredEntry(e.first_index, e.message_count, e.data) for e in entries]
        finally:
            self._session.leave(ahead.close())

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
            return Topology(found.layout, {names[name]: tail for name, tail in tails.items()})

    async def layout(self, topic: str) -> TopicLayout:
        """Return the current layout; waits for a broker that is restarting, for the operation timeout."""
        return await self._session.client.layout(topic)

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
            for name, (first, next_, sealed) in answers.items():
                known[name] = SegmentSpan(first, next_, sealed)
                if sealed:
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
        return self._session.client.read_segment(layout.segment_topic(segment), part.lo, part.hi)


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
