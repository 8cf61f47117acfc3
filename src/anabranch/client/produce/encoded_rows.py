"""Messages that come in columns and encode themselves, such as the rows of the Spark sink.

The client decides the layout and the sequence ids; the rows answer with the messages of each bucket, encoded
as a batch holds them. No work is done per message here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from anabranch.client.decide.outgoing import Outgoing
from anabranch.client.decide.sample_keys import sample_key
from anabranch.client.produce.futures import BulkFuture
from anabranch.client.produce.routes import SegmentRoutes
from anabranch.client.produce.segment_producer import SegmentProducer
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
        """All messages with consecutive sequence ids, in parts of at most `bytes_max`.

        The parts of one segment ascend in their highest sequence ids, and inside a part messages ascend, so
        the messages of a key stay in order.
        """


def add_encoded(
    rows: EncodedRows, routes: SegmentRoutes, first_sequence_id: int, bytes_max: int, bulk: BulkFuture
) -> None:
    """Queue the rows behind every message added before, and join their entries to `bulk`."""
    for segment in list(routes.segments.values()):
        segment.close_batches()
    home, layout = routes.home, routes.layout.layout
    now, now_ms = home._loop.time(), home._clock.wall_ms()
    touched: dict[SegmentProducer, None] = {}
    for part in rows.encode(layout, first_sequence_id, bytes_max):
        target = layout.segments[part.segment]
        # A sealed segment whose messages must go first takes these too; they are routed again with its own.
        owner = routes.holder(target, target.range.start)
        messages = MessageBatch()
        messages.add_encoded(part.messages, part.message_count, part.sequence_id, part.first_key)
        messages.sample_key = sample_key(part.sample_key, part.first_key)
        entry = messages.build(home.name, now_ms, home._compression, part.hash_range)
        count, sequence = part.message_count, part.sequence_id
        batch = Outgoing(now, count=count, sequence=sequence, entry=entry, size=len(entry))
        owner.add(batch)
        bulk.join(batch)
        touched[owner] = None
    home._batch_opened(now)
    for owner in touched:
        owner.close_batches()


def add_entries(
    entries: Sequence[tuple[bytes, int]], routes: SegmentRoutes, first_sequence_id: int, bulk: BulkFuture
) -> None:
    """Queue ready-made entries, each with the number of its messages, for a topic that is one log."""
    home, (target, *_) = routes.home, routes.layout.layout.active
    owner = routes.holder(target, target.range.start)
    owner.close_batches()
    now, sequence = home._loop.time(), first_sequence_id - 1
    for entry, count in entries:
        sequence += count
        batch = Outgoing(now, count=count, sequence=sequence, entry=entry, size=len(entry))
        owner.add(batch)
        bulk.join(batch)
    home._batch_opened(now)
    owner.close_batches()
