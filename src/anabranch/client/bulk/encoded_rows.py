"""Messages that come in columns and encode themselves, such as the rows of the Spark sink.

The client decides the layout and the sequence ids; the rows answer with the messages of each bucket, encoded
as a batch holds them. No work is done per message here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from anabranch.client.decide.producing.outgoing import Outgoing
from anabranch.client.decide.producing.sample_keys import sample_key
from anabranch.client.produce.futures import BulkFuture
from anabranch.client.produce.parts import ProducerParts
from anabranch.client.produce.routes import SegmentRoutes
from anabranch.client.produce.sending import SegmentSender
from anabranch.model.layout import Layout
from anabranch.protocol.batches import MessageBatch


class EncodedPart(NamedTuple):
    """Messages of one bucket, ready to be an entry."""

    segment: int
    """An active segment of the layout."""
    messages: bytes
    message_count: int
    sequence_id: int
    """The highest in the part."""
    first_key: str | bytes | None
    hash_range: tuple[int, int]
    """Lowest and highest bucket hash."""
    sample_key: str | bytes | None
    """The key of the message at `sample_index`."""


class EncodedRows(Protocol):
    """Messages in columns."""

    @property
    def row_count(self) -> int: ...

    def encode(self, layout: Layout, first_sequence_id: int, bytes_max: int) -> Sequence[EncodedPart]:
        """Return all messages with consecutive sequence ids, in parts of at most `bytes_max`.

        The parts of one segment ascend in their highest sequence ids, and inside a part messages ascend, so
        the messages of a key stay in order.
        """


class EntryIntake:
    """Queues entries for the segments of one producer, behind every message added before."""

    def __init__(self, parts: ProducerParts, routes: SegmentRoutes) -> None:
        self._parts, self._routes = parts, routes

    def add_encoded(self, rows: EncodedRows, first_sequence_id: int, bulk: BulkFuture) -> None:
        """Queue rows that encode themselves, and join their entries to `bulk`."""
        parts, routes = self._parts, self._routes
        for segment in list(routes.segments.values()):
            segment.sender.close_batches()
        layout, now, now_ms = routes.layout.layout, parts.loop.time(), parts.clock.wall_ms()
        touched: dict[SegmentSender, None] = {}
        for part in rows.encode(layout, first_sequence_id, parts.message_bytes_max):
            target = layout.segments[part.segment]
            # A sealed segment whose messages must go first takes these too; all are routed again together.
            sender = routes.holder(target, target.range.start).sender
            messages = MessageBatch()
            messages.add_encoded(part.messages, part.message_count, part.sequence_id, part.first_key)
            messages.sample_key = sample_key(part.sample_key, part.first_key)
            entry = messages.build(parts.name, now_ms, parts.compression, part.hash_range)
            _queue(sender, entry, part.message_count, part.sequence_id, (now, bulk))
            touched[sender] = None
        routes.batch_opened(now)
        for sender in touched:
            sender.close_batches()

    def add_entries(
        self, entries: Sequence[tuple[bytes, int]], first_sequence_id: int, bulk: BulkFuture
    ) -> None:
        """Queue ready-made entries, each with the number of its messages, for a topic that is one log."""
        target, *_ = self._routes.layout.layout.active
        sender = self._routes.holder(target, target.range.start).sender
        sender.close_batches()
        now, sequence = self._parts.loop.time(), first_sequence_id - 1
        for entry, count in entries:
            sequence += count
            _queue(sender, entry, count, sequence, (now, bulk))
        self._routes.batch_opened(now)
        sender.close_batches()


def _queue(
    sender: SegmentSender, entry: bytes, count: int, sequence: int, joined: tuple[float, BulkFuture]
) -> None:
    now, bulk = joined
    batch = Outgoing(now, count=count, sequence=sequence, entry=entry, size=len(entry))
    sender.add(batch)
    bulk.join(batch)
