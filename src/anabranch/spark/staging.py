"""The task's side of an exactly-once write: rows are encoded for their topic and appended to the row log.

An entry of the row log is an entry of its topic, except for the stamp in its properties and for its sequence
ids, which it gets when it is published. Nothing is visible in a topic before the driver commits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from anabranch.client.decide.batcher import sample_key
from anabranch.client.net.layout_watch import TopicLayout
from anabranch.client.produce.encoded_rows import EncodedPart
from anabranch.client.produce.futures import BulkFuture
from anabranch.client.produce.producer import AsyncProducer
from anabranch.clock import SystemClock
from anabranch.errors import CorruptDataError
from anabranch.model.layout import Layout
from anabranch.model.ranges import HashRange
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.compression import Compression
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.restamping import restamped
from anabranch.spark.decide.republishing import Stamp, partitions_of
from anabranch.spark.encoding import RowEncoder
from anabranch.spark.live import Session
from anabranch.spark.topics import OutgoingRows, StagedRows

SUBSCRIPTION = "sink"
"""Keeps the records and rows of a sink until they are published."""

LAYOUT_AGE_MAX_S = 2.0
"""Rows that are staged by an older layout may have to be cut again when they are published."""

CLOCK = SystemClock()
_STAMP_BYTES_MAX = 1024
_ATTEMPT, _TOPIC, _SEGMENT, _RANGE, _PARTITIONS = (
    f"anabranch.sink.{name}" for name in ("attempt", "topic", "segment", "range", "partitions")
)


@dataclass(frozen=True, slots=True)
class SinkName:
    """The two logs of a sink, in a namespace such as public/default."""

    namespace: str
    id: str

    @property
    def rows(self) -> str:
        return f"persistent://{self.namespace}/__sink-{self.id}-rows"

    @property
    def records(self) -> str:
        return f"persistent://{self.namespace}/__sink-{self.id}-records"


def stamp(metadata: pb.MessageMetadata, part: EncodedPart, attempt: str, topic: str, layout: Layout) -> None:
    """Write into the metadata of an entry where its rows go."""
    segment = layout.segments[part.segment]
    for name, text in (
        (_ATTEMPT, attempt),
        (_TOPIC, topic),
        (_SEGMENT, str(part.segment)),
        (_RANGE, f"{segment.range.start}-{segment.range.end}"),
        (_PARTITIONS, str(partitions_of(layout))),
    ):
        metadata.properties.add(key=name, value=text)


def read_stamp(metadata: pb.MessageMetadata) -> Stamp:
    """The stamp of a staged entry; raises CorruptDataError."""
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
        )
    except (KeyError, ValueError) as error:
        raise CorruptDataError(f"an entry in the row log of a sink has no stamp: {error}") from error


class LiveStager:
    """Stages the rows of one task attempt."""

    def __init__(
        self, session: Session, sink: SinkName, attempt: str, flush_bytes: int, compression: str | None
    ) -> None:
        self._session = session
        self._log = sink.rows
        self._attempt = attempt
        self._flush_bytes = flush_bytes
        self._compression = Compression[(compression or "none").upper()]
        self._turn = session.rng.randrange(2**16)
        self._layouts: dict[str, tuple[TopicLayout, float]] = {}
        self._waiting: deque[BulkFuture] = deque()
        self._rows = 0
        self._producer, self._start = session.run(self._open())

    async def _open(self) -> tuple[AsyncProducer[bytes], int]:
        name = f"stage-{self._attempt}"
        producer = await self._session.client.append_to_log(self._log, name, SUBSCRIPTION)
        # Opening has registered the producer, so the log exists.
        return producer, (await self._session.tails.tail(self._log)).next_index

    def write(self, topic: str, rows: OutgoingRows) -> None:
        self._rows += len(rows.values)
        self._session.run(self._write(topic, rows))

    async def _write(self, topic: str, rows: OutgoingRows) -> None:
        layout = await self._layout(topic)
        self._turn += 1
        encoder = RowEncoder(rows, self._flush_bytes, self._turn, numbered=False)
        parts = encoder.encode(layout, 0, self._producer.message_bytes_max - _STAMP_BYTES_MAX)
        entries = [(self._entry(part, topic, layout), part.message_count) for part in parts]
        self._waiting.append(await self._producer.enqueue_entries(entries))
        # Report an error of earlier rows now and not after the last row.
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    async def _layout(self, topic: str) -> Layout:
        now = asyncio.get_running_loop().time()
        found, asked_at = self._layouts.get(topic, (None, 0.0))
        if found is None or now - asked_at > LAYOUT_AGE_MAX_S:
            found = await self._session.client.layout(topic, create=True)
            self._layouts[topic] = found, now
        return found.layout

    def _entry(self, part: EncodedPart, topic: str, layout: Layout) -> bytes:
        messages = MessageBatch()
        messages.add_encoded(part.messages, part.message_count, part.message_count - 1, part.first_key)
        messages.sample_key = sample_key(part.sample_key, part.first_key)
        built = messages.build(self._attempt, CLOCK.wall_ms(), self._compression, part.hash_range)
        return restamped(built, lambda metadata: stamp(metadata, part, self._attempt, topic, layout))

    def finish(self) -> StagedRows:
        return self._session.run(self._finish())

    async def _finish(self) -> StagedRows:
        while self._waiting:
            await self._waiting.popleft()
        stop = (await self._session.tails.tail(self._log)).next_index
        return StagedRows(self._attempt, self._rows, self._start, stop)

    def close(self) -> None:
        self._session.run(self._producer.close(timeout=0))
