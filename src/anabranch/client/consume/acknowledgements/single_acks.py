"""The half of a queue consumer that acknowledges single messages, and sends acknowledgements in groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from anabranch.client.consume.acknowledgements.given_back import check_topic, each_of, not_a_message
from anabranch.client.consume.consumers.moving import MovableConsumer
from anabranch.client.consume.segments.attachment import QueueOptions
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.consuming.acknowledgements import LedgerEntry
from anabranch.client.message import Message
from anabranch.client.options import Seconds
from anabranch.client.received import Received
from anabranch.errors import AlreadyClosedError
from anabranch.model.acks import bits_at
from anabranch.model.ids import MessageId

T = TypeVar("T")

_entry_of: Callable[[Message[Any]], Received] = attrgetter("_entry")
_index_of: Callable[[Message[Any]], int] = attrgetter("_index")


class AcknowledgingConsumer(MovableConsumer[T]):
    """Acknowledges single messages, of batches too."""

    _options: QueueOptions
    _segments: Any
    _acks_noted = 0
    _ack_timer: asyncio.TimerHandle | None = None

    async def acknowledge(self, message: Message[T] | MessageId | Iterable[Message[T] | MessageId]) -> None:
        """Acknowledge one message or several; the broker never delivers them again.

        Returns when the acknowledgement is noted; with `ack_receipts` when the broker has made it durable, or
        raises OperationTimeoutError after the operation timeout.
        """
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        if self._notes_acks and isinstance(message, Message):
            entry: Received = message._entry
            if entry.noted_by is self:
                entry.noted.append(message._index)
                self._acks_noted += 1
            else:
                self._note_indexes(entry, [message._index])
            if self._ack_timer is None or self._acks_noted >= self._options.ack_group_size:
                self._schedule_acks()
            return
        self._acknowledge_each(each_of(message))
        if self._options.ack_receipts:
            await self.flush_acks()

    def _acknowledge_each(self, messages: Iterable[Message[T] | MessageId]) -> None:
        try:
            for one in messages:
                if isinstance(one, Message):
                    self._note_indexes(one._entry, [one._index])
                else:
                    source, place, bits, whole = self._locate(one)
                    if source is not None:
                        self._acknowledge_bits(source, place, bits, whole)
                if self._interceptors is not None:
                    self._interceptors.acknowledged(one)
        finally:
            self._schedule_acks()

    def _note(self, messages: Sequence[Message[T]]) -> None:
        """Acknowledge messages entry by entry, without interceptors and receipts."""
        for entry, group in groupby(messages, _entry_of):
            self._note_indexes(entry, list(map(_index_of, group)))
        self._schedule_acks()

    async def flush_acks(self, timeout: Seconds | None = None) -> None:
        """Send grouped acknowledgements and return when the broker has confirmed them.

        Raises OperationTimeoutError after `timeout`, by default the operation timeout; the acknowledgements
        stay noted.
        """
        self._send_acks()
        await self._confirm_acks(timeout)

    # For the run.

    def _finished(self, message: Message[T]) -> None:
        if not self._closed and self._note_indexes(message._entry, [message._index]):
            self._schedule_acks()
            if self._interceptors is not None:
                self._interceptors.acknowledged(message)

    # Inside.

    def _note_indexes(self, entry: Received, indexes: list[int]) -> bool:
        """Note that messages of an entry are acknowledged; False after the segment was left."""
        if entry.noted_by is not self:
            source = self._source_of(entry)
            if source is None:
                return False
            if source is not entry.source or entry.noted_by is not None:
                # Another consumer has received the entry, and notes what its own subscription acknowledges.
                self._acknowledge_bits(source, entry.position, bits_at(indexes), entry.whole)
                return True
            entry.noted_by = self
            source.noted.append(entry)
        entry.noted += indexes
        self._acks_noted += len(indexes)
        return True

    def _source_of(self, entry: Received) -> SegmentConsumer | None:
        """The consumer of the entry's segment; None after the segment was left."""
        home = entry.source.home
        if home is not self:
            check_topic(home._given_topic, self._given_topic)
        return self._sources.get(entry.source.segment_id)

    def _locate(
        self, message: Message[T] | MessageId
    ) -> tuple[SegmentConsumer | None, LedgerEntry, int, int]:
        """The segment's consumer, the entry, the message's bit and the bits of the whole entry."""
        if isinstance(message, Message):
            entry: Received = message._entry
            return self._source_of(entry), entry.position, 1 << message._index, entry.whole
        if not isinstance(message, MessageId):
            raise not_a_message(message)
        source = self._sources.get(message.segment)
        place = (message.ledger, message.entry)
        if message.batch_index < 0:
            # The id stands for the whole entry.
            bits = source.unacked.get(place, 1) if source is not None else 1
            return source, place, bits, bits
        return source, place, 1 << message.batch_index, (1 << max(message.batch_size, 1)) - 1

    def _acknowledge_bits(self, source: SegmentConsumer, place: LedgerEntry, bits: int, whole: int) -> None:
        source.acknowledge_bits(place, bits, whole)
        self._acks_noted += 1

    def _schedule_acks(self) -> None:
        options = self._options
        if self._acks_noted >= options.ack_group_size or not options.ack_group_s:
            self._send_acks()
        elif self._ack_timer is None and self._acks_noted:
            self._ack_timer = self._loop.call_later(options.ack_group_s, self._send_acks)

    def _send_acks(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self._acks_noted = 0
        for source in self._sources.values():
            source.flush_acks()
        self._segments.progressed()
