"""Publishes staged rows to their topics under the name of the sink, each row with its number as sequence id.

A publisher does not remember what earlier publishers did. It finds out for each segment what is stored under
the sink's name, and skips rows that are stored; a broker of ours also judges each row that may be stored. Any
disturbance ends an attempt; the next one looks at the layout and asks again. So crashes, other drivers and
layout changes at any moment neither repeat nor lose a row.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from anabranch.aio import is_transient
from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.client.bulk.entry_sender import EntrySender, ReadyEntry
from anabranch.client.bulk.segment_reader import RawEntry
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.errors import AnabranchError, ProducerBusyError, TopicNotFoundError, TopicTerminatedError
from anabranch.failpoints import Failpoints
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.restamping import restamped
from anabranch.spark.decide.sink.records import Pending, check_complete
from anabranch.spark.decide.sink.republishing import RowJudge, Stamp, home_of, parts_of
from anabranch.spark.sink.hosts import OpenSegments, SinkHost
from anabranch.spark.sink.recutting import CLOCK, OpenedEntry
from anabranch.spark.sink.staging import StagedEntries

UNANSWERED_BYTES_MAX = 8 * 2**20
"""Bytes that are under way to one segment."""

CLOSE_S = 5.0


def may_succeed_later(error: AnabranchError) -> bool:
    """Whether another attempt may publish: a broker restarts, a layout changes, another driver publishes."""
    later = (TopicTerminatedError, ProducerBusyError, TopicNotFoundError)
    return is_transient(error) or isinstance(error, later)


class Publication:
    """One attempt to publish: the layouts that it saw and the segments with which it registered."""

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
        """Whether a broker has answered that an entry is stored."""
        return any(sender.answered for sender in self._senders.values())

    async def publish(self, pending: Pending, row_log: str) -> None:
        """Send all rows of a batch that are not stored; return when all are."""
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
        layout = await self._layout(stamp.topic)
        home = home_of(stamp, layout.layout)
        last = number + metadata.num_messages_in_batch - 1
        if home is not None:
            sender, judge = await self._sender(stamp.topic, home)
            if judge.has_all(last):
                return
            if judge.has_none(number):
                sender.send(ReadyEntry(self._stamped(entry, number, last), last - number + 1, last, number))
                await sender.wait_until(UNANSWERED_BYTES_MAX)
                return
        opened = OpenedEntry(entry, stamp, self._name, number)
        for part in parts_of(opened.hashes, home, layout.layout):
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
        """Give all registrations back."""
        closing = [future for sender in self._senders.values() if (future := sender.close()) is not None]
        if closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.wait(closing)
