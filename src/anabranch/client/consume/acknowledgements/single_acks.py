"""Acknowledgement of single messages, of batches too, sent in groups: the policy of queue consumers.

An acknowledgement is first only noted with its entry. The bits of an entry change once for all of its
messages, when the group is sent, which costs much less than changing them for each message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from anabranch.client.consume.acknowledgements.given_back import check_topic, not_a_message
from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.segments.attachment import QueueOptions
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.consume.segments.segments import ConsumedSegments
from anabranch.client.decide.consuming.acknowledgements import LedgerEntry
from anabranch.client.message import Message, entry_of, index_of, place_of
from anabranch.client.options import Seconds, log
from anabranch.client.received import Received
from anabranch.model.acks import bits_at
from anabranch.model.ids import MessageId


class SingleAcks:
    """The acknowledgements of one queue consumer."""

    def __init__(self, context: ConsumerContext, segments: ConsumedSegments, options: QueueOptions) -> None:
        self.count = 0
        """Acknowledgements that were noted since the last group was sent."""
        self.timer: asyncio.TimerHandle | None = None
        """Sends the group that waits."""
        self.group_size = options.ack_group_size
        self.receipts = options.ack_receipts
        self.notes_only = context.interceptors is None and not options.ack_receipts
        """Whether an acknowledgement can neither wait nor fail, so that it is only noted at first."""
        self.retries: SingleAcks | None = None
        """The acknowledgements of the retry topic, whose messages this consumer hands out too."""
        self._context, self._segments = context, segments
        self._sources = segments.sources
        self._group_s = options.ack_group_s

    # For the application and the handlers of a run.

    def acknowledge_each(self, messages: Iterable[Message[Any] | MessageId]) -> None:
        """Acknowledge messages, and tell the interceptors."""
        try:
            for one in messages:
                if isinstance(one, Message):
                    entry, index = place_of(one)
                    if entry.noted_by is self:
                        entry.noted.append(index)
                        self.count += 1
                    else:
                        self.note_indexes(entry, [index])
                else:
                    source, place, bits, whole = self.locate(one)
                    if source is not None:
                        self.acknowledge_bits(source, place, bits, whole)
                if self._context.interceptors is not None:
                    self._context.interceptors.acknowledged(one)
        finally:
            self.schedule()

    def note(self, messages: Sequence[Message[Any]]) -> None:
        """Acknowledge messages entry by entry, without interceptors and receipts."""
        for entry, group in groupby(messages, entry_of):
            self.note_indexes(entry, list(map(index_of, group)))
        self.schedule()

    def finished(self, message: Message[Any]) -> None:
        """Acknowledge a message whose handler has returned."""
        entry, index = place_of(message)
        if self.retries is not None and self.retries.owns(entry):
            self.retries.finished(message)
        elif not self._context.closed and self.note_indexes(entry, [index]):
            self.schedule()
            if self._context.interceptors is not None:
                self._context.interceptors.acknowledged(message)

    def note_indexes(self, entry: Received, indexes: list[int]) -> bool:
        """Note that messages of an entry are acknowledged; False after the segment was left."""
        if entry.noted_by is not self:
            source = self.source_of(entry)
            if source is None:
                return False
            if source is not entry.source or entry.noted_by is not None:
                # Another consumer has received the entry, and notes what its own subscription acknowledges.
                self.acknowledge_bits(source, entry.position, bits_at(indexes), entry.whole)
                return True
            entry.noted_by = self
            source.noted.append(entry)
        entry.noted += indexes
        self.count += len(indexes)
        return True

    def acknowledge_bits(self, source: SegmentConsumer, place: LedgerEntry, bits: int, whole: int) -> None:
        """Acknowledge messages of an entry at once; `whole` are the bits of all its messages."""
        source.acknowledge_bits(place, bits, whole)
        self.count += 1

    def schedule(self) -> None:
        """Send the acknowledgements that were noted when their group is full or due."""
        if self.count >= self.group_size or not self._group_s:
            self.send()
        elif self.timer is None and self.count:
            self.timer = self._context.loop.call_later(self._group_s, self.send)

    def send(self) -> None:
        """Send the acknowledgements that were noted."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.count = 0
        for source in self._sources.values():
            source.flush_acks()
        self._segments.share.progressed()
        if self.retries is not None:
            self.retries.send()

    async def flush(self, timeout: Seconds | None = None) -> None:
        """Send the acknowledgements and return when the broker has confirmed them."""
        self.send()
        await self._segments.confirm(self.confirmed, timeout)
        if self.retries is not None:
            await self.retries.flush(timeout)

    async def confirmed(self) -> None:
        """Return when the broker has confirmed all acknowledgements that were sent."""
        await self._segments.acks_confirmed()

    # The places of messages.

    def owns(self, entry: Received) -> bool:
        """Return whether this consumer has received an entry."""
        return entry.source.owner is self._context

    def source_of(self, entry: Received) -> SegmentConsumer | None:
        """Return the consumer of an entry's segment, or None after the segment was left.

        Raises InvalidConfigurationError for a message of another topic.
        """
        owner = entry.source.owner
        if owner is not self._context:
            if self.retries is not None and self.retries.owns(entry):
                return self.retries.source_of(entry)
            check_topic(owner.given_topic, self._context.given_topic)
        return self._sources.get(entry.source.segment_id)

    def locate(
        self, message: Message[Any] | MessageId
    ) -> tuple[SegmentConsumer | None, LedgerEntry, int, int]:
        """Return the segment's consumer, the entry, the message's bit and the bits of the whole entry."""
        if isinstance(message, Message):
            entry, index = place_of(message)
            return self.source_of(entry), entry.position, 1 << index, entry.whole
        if not isinstance(message, MessageId):
            raise not_a_message(message)
        source = self._sources.get(message.segment)
        place = (message.ledger, message.entry)
        if message.batch_index < 0:
            # The id stands for the whole entry.
            bits = source.unacked.get(place, 1) if source is not None else 1
            return source, place, bits, bits
        return source, place, 1 << message.batch_index, (1 << max(message.batch_size, 1)) - 1

    # For a membership, which the consumer has if it keeps the order of keys.

    def has_messages_of(self, source: SegmentConsumer) -> bool:
        """Return whether the application has messages of a segment that it has not acknowledged."""
        return bool(source.held)

    def left(self, source: SegmentConsumer, why: str | None) -> None:
        """Note that a segment is not read any more."""
        if why is not None:
            log.debug("%s: acknowledgements may not be confirmed: %s", source.topic, why)
