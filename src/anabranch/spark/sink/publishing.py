"""Publishes staged rows to their topics under the name of the sink, each row with its number as sequence id.

A publisher knows nothing about earlier publishers. It finds out for each segment what is stored under the
sink's name, and skips those rows; an Anabranch broker also decides about each row that may be stored. Any
disturbance ends an attempt, and the next attempt reads the layout and asks again. So crashes, other drivers
and layout changes at any moment neither repeat nor lose a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

from anabranch.aio import is_transient
from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.client.bulk.entry_sender import EntrySender, ReadyEntry
from anabranch.client.bulk.segment_reader import RawEntry
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.clock import SystemClock
from anabranch.errors import AnabranchError, ProducerBusyError, TopicNotFoundError, TopicTerminatedError
from anabranch.failpoints import Failpoints
from anabranch.model.hashing import key_hash, segment_hash
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.compression import UNCOMPRESSED_BYTES_MAX, Compression
from anabranch.protocol.entries import decode_columns
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.restamping import entry_metadata, restamped
from anabranch.protocol.varints import encode_varint
from anabranch.spark.decide.sink.records import Pending, check_complete
from anabranch.spark.decide.sink.republishing import (
    SLOT_MASK,
    RoutedRows,
    RowJudge,
    Stamp,
    parts_of,
    whole_target,
)
from anabranch.spark.sink.hosts import OpenSegments, SinkHost
from anabranch.spark.sink.staging import StagedEntries

UNANSWERED_BYTES_MAX = 8 * 2**20
"""Most bytes that are sent to one segment and not acknowledged."""

CLOSE_S = 5.0

CLOCK = SystemClock()
_SEQUENCE_TAG = b"\x40"


def may_succeed_later(error: AnabranchError) -> bool:
    """Whether another attempt may succeed, for instance after a broker's restart or a layout change."""
    later = (TopicTerminatedError, ProducerBusyError, TopicNotFoundError)
    return is_transient(error) or isinstance(error, later)


class Publication:
    """One attempt to publish: the layouts that it saw, and the segments where it registered its producer."""

    def __init__(
        self, client: BulkClient, host: SinkHost, segments: OpenSegments, name: str, failpoints: Failpoints
    ) -> None:
        self._client = client
        self._host = host
        self._segments = segments
        self._name = name
        self._failpoints = failpoints
        self._layouts: dict[str, TopicLayout] = {}
        self._senders: dict[tuple[str, int], EntrySender] = {}
        self._judges: dict[tuple[str, int], RowJudge] = {}
        self.last: RawEntry | None = None
        """The last entry that was read."""

    @property
    def stored(self) -> bool:
        """Whether a broker has confirmed that an entry is stored."""
        return any(sender.answered for sender in self._senders.values())

    async def publish(self, pending: Pending, row_log: str) -> None:
        """Send all rows of a batch that are not stored yet, and return once they are."""
        pin, number = pending.pin, pending.first_number
        staged = StagedEntries(self._host.read(row_log, pin.start, pin.stop), pin)
        try:
            while (entries := await staged.read()) is not None:
                self.last = staged.last
                for entry, stamp, metadata in entries:
                    await self._send(entry.data, stamp, metadata, number)
                    number += entry.message_count
                    await self._failpoints.reach("sink.publishing")
        finally:
            await staged.close()
        check_complete(pending, number - pending.first_number)
        for sender in self._senders.values():
            await sender.wait_until(0)

    async def _send(self, entry: bytes, stamp: Stamp, metadata: pb.MessageMetadata, number: int) -> None:
        # Usually the layout is the one that the task saw: the entry gets new outer metadata and is sent
        # without being opened. Otherwise, or if a part of its rows may be stored, it is decompressed and cut
        # into entries of one bucket each, because an entry must not mix buckets, and because a broker can
        # accept or reject only whole entries.
        layout = await self._layout(stamp.topic)
        target = whole_target(stamp, layout.layout)
        last = number + metadata.num_messages_in_batch - 1
        if target is not None:
            sender, judge = await self._sender(stamp.topic, target)
            if judge.has_all(last):
                return
            if judge.has_none(number):
                sender.send(ReadyEntry(self._stamped(entry, number, last), last - number + 1, last, number))
                await sender.wait_until(UNANSWERED_BYTES_MAX)
                return
        opened = OpenedEntry(entry, stamp, self._name, number)
        for part in parts_of(opened.hashes, target, layout.layout):
            sender, judge = await self._sender(stamp.topic, part.segment)
            for ready in opened.cut(part, judge):
                sender.send(ready)
                await sender.wait_until(UNANSWERED_BYTES_MAX)

    def _stamped(self, entry: bytes, first: int, last: int) -> bytes:
        def change(metadata: pb.MessageMetadata) -> None:
            metadata.ClearField("properties")
            metadata.producer_name = self._name
            metadata.sequence_id, metadata.highest_sequence_id = first, last
            metadata.publish_time = CLOCK.wall_ms()

        return restamped(entry, change)

    async def _layout(self, topic: str) -> TopicLayout:
        if topic not in self._layouts:
            found = await self._client.layout(topic, create=True)
            self._host.check(found)
            self._layouts[topic] = found
        return self._layouts[topic]

    async def _sender(self, topic: str, id_: int) -> tuple[EntrySender, RowJudge]:
        key = topic, id_
        if key not in self._judges:
            layout = self._layouts[topic]
            segment = layout.layout.segments[id_]
            sender = self._client.entry_sender(
                layout.segment_topic(segment),
                self._name,
                managed=segment.is_classic,
                on_pulsar=self._host.on_pulsar,
            )
            self._senders[key] = sender
            self._judges[key] = await self._segments.open(topic, layout, id_, sender)
        return self._senders[key], self._judges[key]

    async def close(self) -> None:
        """Close the producers at all segments."""
        closing = [future for sender in self._senders.values() if (future := sender.close()) is not None]
        if closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.wait(closing)


class OpenedEntry:
    """The rows of a staged entry, opened to be cut; `first` is the number of its first row."""

    def __init__(self, entry: bytes, stamp: Stamp, name: str, first: int) -> None:
        self._name = name
        self._first = first
        self._columns = decode_columns(entry, UNCOMPRESSED_BYTES_MAX)
        self._compression = Compression(entry_metadata(entry).compression)
        self.hashes = [stamp.keyless_hash if key is None else key_hash(key) for key in self._columns.keys]

    def cut(self, part: RoutedRows, judge: RowJudge) -> Iterator[ReadyEntry]:
        """Yield entries with the rows of a part that a segment may lack."""
        numbers = [self._first + number for number in part.numbers]
        slots = [segment_hash(self.hashes[row]) for row in part.rows]
        for chosen in judge.entries(numbers, slots):
            yield self._entry([part.rows[at] for at in chosen], [numbers[at] for at in chosen])

    def _entry(self, rows: Sequence[int], numbers: Sequence[int]) -> ReadyEntry:
        keys, batch = self._columns.keys, MessageBatch()
        messages = b"".join(map(self._message, rows, numbers))
        batch.add_encoded(messages, len(rows), numbers[-1], keys[rows[0]])
        slots = [self.hashes[row] & SLOT_MASK for row in rows]
        # A broker checks a single message by its key; without a key, by the slot that the entry names.
        slot = self.hashes[rows[0]] >> 16 if len(rows) == 1 and keys[rows[0]] is None else None
        hash_range = min(slots), max(slots)
        data = batch.build(self._name, CLOCK.wall_ms(), self._compression, hash_range, slot)
        return ReadyEntry(data, len(rows), numbers[-1], numbers[0])

    def _message(self, row: int, number: int) -> bytes:
        """Return a staged message with its number appended; the fields of a header may come in any order."""
        data, start = self._columns.data, self._columns.starts[row]
        header_end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        header = data[start + 4 : header_end] + _SEQUENCE_TAG + encode_varint(number)
        end = self._columns.starts[row + 1] if row + 1 < len(self._columns.starts) else len(data)
        return len(header).to_bytes(4, "big") + header + data[header_end:end]
