"""The task's side of an exactly-once write: rows are encoded for their topic and appended to the row log.

An entry of the row log is already an entry of its topic, except for a stamp in its properties and for its
sequence ids, which it gets when it is published. So the driver usually publishes it without opening it.
Nothing is visible in a topic before the driver commits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.client.bulk.bulk_producer import BulkProducer
from anabranch.client.bulk.encoded_rows import EncodedPart
from anabranch.client.bulk.segment_reader import RawEntry
from anabranch.client.decide.producing.sample_keys import sample_key
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.client.produce.futures import BulkFuture
from anabranch.clock import SystemClock
from anabranch.errors import CorruptDataError, NotAllowedError, TopicNotFoundError
from anabranch.model.layout import Layout
from anabranch.model.ranges import HashRange
from anabranch.model.sink_names import SINK_SUBSCRIPTION, sink_log
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.compression import Compression
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.restamping import entry_metadata, restamped
from anabranch.spark.brokers.thread_client import ThreadClient
from anabranch.spark.decide.sink.records import Pin
from anabranch.spark.decide.sink.republishing import Stamp, partitions_of
from anabranch.spark.sink.encoding import RowEncoder
from anabranch.spark.sink.hosts import SinkHost, SinkLogReader
from anabranch.spark.topics import OutgoingRows, StagedRows

LAYOUT_AGE_MAX_S = 2.0
"""A layout is looked up again after this time: rows staged by an old one may have to be cut again later."""

CLOCK = SystemClock()
_STAMP_BYTES_MAX = 1024
_ATTEMPT, _TOPIC, _SEGMENT, _RANGE, _PARTITIONS, _NUMBER = (
    f"anabranch.sink.{name}" for name in ("attempt", "topic", "segment", "range", "partitions", "number")
)


@dataclass(frozen=True, slots=True)
class SinkName:
    """The two logs of a sink, in a namespace such as public/default."""

    namespace: str
    id: str

    @property
    def rows(self) -> str:
        return sink_log(self.namespace, self.id, "rows")

    @property
    def records(self) -> str:
        return sink_log(self.namespace, self.id, "records")


class StagingOptions(NamedTuple):
    """How a task builds entries."""

    flush_bytes: int
    """The approximate size of the largest entry."""
    compression: str | None


async def open_log(client: BulkClient, host: SinkHost, log: str, name: str | None = None) -> BulkProducer:
    """Open a producer of a log. The log is created on first use if the brokers allow it."""
    try:
        if host.on_pulsar:
            # A producer would wait for a missing topic to appear, but a lookup makes a control process create
            # it.
            await client.layout(log, create=True)
            await host.extent(log)
        return await client.append_to_log(log, name, SINK_SUBSCRIPTION)
    except (TopicNotFoundError, NotAllowedError) as error:
        if not host.on_pulsar:
            raise
        raise TopicNotFoundError(
            f"{log} does not exist on the Pulsar cluster, or lacks the subscription {SINK_SUBSCRIPTION}, and "
            "the control process may not create it: allow auto-creation of topics in the namespace there, or "
            f"run `pulsar-admin topics create {log}` and `pulsar-admin topics create-subscription -s "
            f"{SINK_SUBSCRIPTION} -m earliest {log}` ({error})"
        ) from error


class Destination(NamedTuple):
    """The topic and layout of the rows of an entry, and the number of the entry in its attempt."""

    attempt: str
    topic: str
    layout: Layout
    number: int


def stamp(metadata: pb.MessageMetadata, part: EncodedPart, to: Destination) -> None:
    """Add the destination of an entry's rows to its metadata."""
    segment = to.layout.segments[part.segment]
    for name, text in (
        (_ATTEMPT, to.attempt),
        (_TOPIC, to.topic),
        (_SEGMENT, str(part.segment)),
        (_RANGE, f"{segment.range.start}-{segment.range.end}"),
        (_PARTITIONS, str(partitions_of(to.layout))),
        (_NUMBER, str(to.number)),
    ):
        metadata.properties.add(key=name, value=text)


def read_stamp(metadata: pb.MessageMetadata) -> Stamp:
    """Return the stamp of a staged entry; raises CorruptDataError if it has none."""
    found = {pair.key: pair.value for pair in metadata.properties}
    try:
        start, _, end = found[_RANGE].partition("-")
        return Stamp(
            attempt=found[_ATTEMPT],
            topic=found[_TOPIC],
            segment=int(found[_SEGMENT]),
            range=HashRange(int(start), int(end)),
            partitions=int(found[_PARTITIONS]),
            hashes=HashRange(metadata.entry_hash_min, metadata.entry_hash_max),
            number=int(found[_NUMBER]) if _NUMBER in found else None,
        )
    except (KeyError, ValueError) as error:
        raise CorruptDataError(f"an entry in the row log of a sink has no stamp: {error}") from error


class StagedEntry(NamedTuple):
    """An entry of the row log, with its stamp."""

    raw: RawEntry
    stamp: Stamp
    metadata: pb.MessageMetadata


class StagedEntries:
    """Reads the entries of the attempts of a pin, each once.

    A task whose connection was lost sends its last entries again. A topic that does not recognise them stores
    them twice. So the entries of an attempt have ascending numbers, and a number that is not new is skipped.
    """

    def __init__(self, reader: SinkLogReader, pin: Pin) -> None:
        self._reader = reader
        self._attempts = pin.attempts
        self._last: dict[str, int] = {}
        self.last: RawEntry | None = None
        """The last entry that was read, no matter of which attempt."""

    async def read(self) -> list[StagedEntry] | None:
        """Return the next entries that count, which may be none, or None at the end."""
        found = await self._reader.read()
        if not found:
            return None
        self.last = found[-1]
        return [entry for entry in map(_opened, found) if self._counts(entry.stamp)]

    def _counts(self, stamp: Stamp) -> bool:
        if stamp.attempt not in self._attempts:
            return False
        if stamp.number is not None:
            if stamp.number <= self._last.get(stamp.attempt, -1):
                return False
            self._last[stamp.attempt] = stamp.number
        return True

    async def close(self) -> None:
        await self._reader.close()


def _opened(raw: RawEntry) -> StagedEntry:
    metadata = entry_metadata(raw.data)
    return StagedEntry(raw, read_stamp(metadata), metadata)


class RowStager:
    """Stages the rows of one task attempt."""

    def __init__(
        self, clients: ThreadClient, host: SinkHost, sink: SinkName, attempt: str, options: StagingOptions
    ) -> None:
        self._clients = clients
        self._host = host
        self._log = sink.rows
        self._attempt = attempt
        self._options = options
        self._topics: dict[str, None] = {}
        self._entries = 0
        self._rotation = clients.rng.randrange(2**16)
        self._layouts: dict[str, tuple[TopicLayout, float]] = {}
        self._waiting: deque[BulkFuture] = deque()
        self._rows = 0
        self._producer, self._start = clients.run(self._open())

    async def _open(self) -> tuple[BulkProducer, int]:
        name = f"stage-{self._attempt}"
        producer = await open_log(self._clients.bulk(), self._host, self._log, name)
        # The producer is registered by now, so the log exists.
        return producer, (await self._host.extent(self._log)).next

    @property
    def message_bytes_max(self) -> int:
        return self._producer.message_bytes_max - _STAMP_BYTES_MAX

    def write(self, topic: str, rows: OutgoingRows) -> None:
        self._rows += len(rows.values)
        self._topics[topic] = None
        self._clients.run(self._write(topic, rows))

    async def _write(self, topic: str, rows: OutgoingRows) -> None:
        layout = await self._layout(topic)
        self._rotation += 1
        encoder = RowEncoder(rows, self._options.flush_bytes, self._rotation, numbered=False)
        parts = encoder.encode(layout, 0, self.message_bytes_max)
        entries = [(self._entry(part, topic, layout), part.message_count) for part in parts]
        self._waiting.append(await self._producer.enqueue_entries(entries))
        # Report an error of earlier rows now rather than after the last row.
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    async def _layout(self, topic: str) -> Layout:
        now = asyncio.get_running_loop().time()
        found, asked_at = self._layouts.get(topic, (None, 0.0))
        if found is None or now - asked_at > LAYOUT_AGE_MAX_S:
            found = await self._clients.client.layout(topic, create=True)
            self._host.check(found)
            self._layouts[topic] = found, now
        return found.layout

    def _entry(self, part: EncodedPart, topic: str, layout: Layout) -> bytes:
        messages = MessageBatch()
        messages.add_encoded(part.messages, part.message_count, part.message_count - 1, part.first_key)
        messages.sample_key = sample_key(part.sample_key, part.first_key)
        compression = Compression[(self._options.compression or "none").upper()]
        built = messages.build(self._attempt, CLOCK.wall_ms(), compression, part.hash_range)
        to = Destination(self._attempt, topic, layout, self._entries)
        self._entries += 1
        return restamped(built, lambda metadata: stamp(metadata, part, to))

    def finish(self) -> StagedRows:
        return self._clients.run(self._finish())

    async def _finish(self) -> StagedRows:
        while self._waiting:
            await self._waiting.popleft()
        stop = (await self._host.extent(self._log)).next
        return StagedRows(self._attempt, self._rows, self._start, stop, tuple(self._topics))

    def close(self) -> None:
        self._clients.run(self._producer.close(timeout=0))
