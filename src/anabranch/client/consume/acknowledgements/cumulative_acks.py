"""Cumulative acknowledgement over several segments: the acknowledgement policy of stream consumers.

Messages are numbered in the order they were handed out; an acknowledged number covers all messages up to it.
With three messages of segment A (numbers 1, 2 and 4) and one of segment B (number 3), an acknowledgement of
number 3 covers two messages of A and the one of B, and each segment is told its own last position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from anabranch.client.consume.alarm import Alarm
from anabranch.client.consume.handlers.runs import ReadingParts
from anabranch.client.consume.segments.attachment import SubscriptionOptions
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.consuming.acknowledgements import leading
from anabranch.client.decide.consuming.ordering import bits_after
from anabranch.client.message import Message, number_of, place_of
from anabranch.client.options import Seconds
from anabranch.client.received import Received
from anabranch.errors import ConsumerBusyError
from anabranch.model.acks import bits_at
from anabranch.model.ids import MessageId

CAUGHT_UP_ACK_S = 0.005
"""Longest wait of an acknowledgement when no message is left: the segment's next reader may wait for it."""


class CumulativeAcks:
    """The acknowledgements of one stream consumer; it is the `EntryPolicy` of its inbox."""

    def __init__(self, reading: ReadingParts[Any], options: SubscriptionOptions) -> None:
        context = reading.context
        self.acked = 0
        """The application has acknowledged all messages up to this number."""
        self.alarm = Alarm(context.loop, self.send)
        """Rings when the group of acknowledgements that waits is due."""
        self.receipts = options.ack_receipts
        self.notes_only = context.interceptors is None and not options.ack_receipts
        """Whether an acknowledgement can neither wait nor fail, so that it is only noted at first."""
        self._context, self._segments, self._inbox, self._runs = reading
        self._sources = reading.segments.sources
        self._group_s = options.ack_group_s
        self._last_acked: dict[int, MessageId] = {}
        self._unconfirmed: list[tuple[int, ConsumerBusyError]] = []
        """For segments that went to another consumer: the first number without a confirmation, and why."""

    # For the application and the handlers of a run.

    def note(self, messages: Sequence[Message[Any]]) -> None:
        """Acknowledge everything handed out up to the last of these messages of this consumer."""
        if messages and not self._context.closed:
            self.acked = max(self.acked, max(map(number_of, messages)))
            self.schedule()

    def finished(self, message: Message[Any]) -> None:
        """Acknowledge a message, as soon as the messages before it in its segment are finished."""
        entry, index = place_of(message)
        entry.finished |= 1 << index
        if self._context.interceptors is not None:
            self._context.interceptors.acknowledged(message)
        if self._context.closed:
            return
        running = self._runs.current
        if self.alarm.at == math.inf or running is None or not running.held:
            self.schedule()

    def schedule(self) -> None:
        """Send the acknowledgements that were noted when their group is due."""
        delay_s, inbox = self._group_s, self._inbox
        if not inbox.run and not inbox.line and not self._runs.held:
            delay_s = min(delay_s, CAUGHT_UP_ACK_S)
        self.alarm.set(self._context.loop.time() + delay_s)

    def send(self) -> None:
        """Send the acknowledgements that were noted."""
        self.alarm.cancel()
        for source in self._sources.values():
            self.acknowledge(source, self.acked)
            if self._runs.current is not None:
                self.acknowledge_finished(source)
            source.flush_acks()
        self._segments.share.progressed()

    async def flush(self, timeout: Seconds | None = None) -> None:
        """Send the acknowledgements and return when the broker has confirmed them."""
        self.send()
        await self._segments.confirm(self.confirmed, timeout)
        self._raise_unconfirmed(self.acked)

    async def confirmed(self) -> None:
        """Return when the broker has confirmed all acknowledgements that were sent."""
        await self._segments.acks_confirmed()
        if self._context.closed:
            self._raise_unconfirmed(self.acked)

    # For the inbox.

    def wants(self, entry: Received) -> bool:
        return True

    def accept(self, entry: Received) -> bool:
        """Keep an entry until all its messages are acknowledged."""
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        # Entries whose acknowledgement waits for its group would keep their decoded messages.
        self.acknowledge(source, self.acked, whole=True)
        source.outstanding.append(entry)
        return True

    def pass_over(self, entry: Received) -> None:
        """Acknowledge an entry that cannot be decoded with the messages before it."""
        self.accept(entry)
        self.schedule()

    # For the membership.

    def has_messages_of(self, source: SegmentConsumer) -> bool:
        """Return whether the application has messages of a segment that it has not acknowledged."""
        return bool(source.outstanding)

    def left(self, source: SegmentConsumer, why: str | None = None) -> None:
        """Forget the positions of a segment; `why` says why its open acknowledgements are not confirmed."""
        if why is not None and (not source.acks.confirmed or source.outstanding):
            first = source.outstanding[0].first_number if source.acks.confirmed else 0
            error = ConsumerBusyError(f"acknowledgements of {source.topic} are not confirmed: {why}")
            self._unconfirmed.append((first, error))
        self._last_acked.pop(source.segment_id, None)

    # Segment by segment.

    def acknowledge(self, source: SegmentConsumer, number: int, *, whole: bool = False) -> None:
        """Note acknowledgements for all messages of one segment up to a number; with `whole` entry by entry.

        A skipped entry waits for no message of other segments: the broker may have taken that one back, and
        the application may wait for what follows the entry.
        """
        outstanding = source.outstanding
        while outstanding and (outstanding[0].first_number <= number or outstanding[0].skipped):
            entry = outstanding[0]
            done = number - entry.first_number + 1
            if done < entry.wanted.bit_count() and not entry.passed_over:
                if whole:
                    return
                bits = bits_at(entry.wanted_indexes()[:done])
            else:
                bits = entry.wanted
                outstanding.popleft()
            self._acknowledge_bits(source, entry, bits)

    def acknowledge_finished(self, source: SegmentConsumer) -> None:
        """Note acknowledgements for the messages of one segment that the handlers of a run have finished.

        They end before the first unfinished message, unless consumers share the segment by buckets.
        """
        shared = bool(source.attachment.bucket_ranges)
        raised: list[Received] = []
        """Entries that a receive has raised; they are acknowledged with the first message behind them."""
        emptied = False
        for entry in source.outstanding:
            if entry.passed_over and not entry.finished:
                raised.append(entry)
                continue
            finished = entry.finished & entry.wanted
            bits = finished if shared else leading(entry.wanted, finished)
            if bits:
                for bad in raised:
                    self._acknowledge_bits(source, bad, bad.wanted)
                raised.clear()
                self._acknowledge_bits(source, entry, bits)
            emptied |= not entry.wanted
            if entry.wanted and not shared:
                break
        if emptied:
            drop_acknowledged(source)

    def acknowledge_id(self, id_: MessageId) -> None:
        """Note acknowledgements up to an id that the application kept; its vector covers every segment."""
        for segment, position in id_.vector or ((id_.segment, id_),):
            source = self._sources.get(segment)
            if source is None:
                continue
            for entry in source.outstanding:
                bits = entry.wanted & ~bits_after(position, *entry.position)
                if bits:
                    self._acknowledge_bits(source, entry, bits)
            drop_acknowledged(source)

    def _acknowledge_bits(self, source: SegmentConsumer, entry: Received, bits: int) -> None:
        """Note an acknowledgement; the rest of the entry begins with its first pending message."""
        source.unhold(entry.position, bits)
        ledger, position = entry.position
        if source.attachment.bucket_ranges or source.chunks.begun_before(entry.position):
            # A message in chunks, which began before and is not complete, must not be acknowledged with it.
            source.acknowledge(entry.position, entry.whole & ~bits)
        else:
            source.chunks.places.pop(entry.position, None)
            last = bits.bit_length()
            source.acks.add_up_to(ledger, position, entry.whole >> last << last)
        index = bits.bit_length() - 1 if entry.batch_size else -1
        id_ = source.segment_id
        self._last_acked[id_] = MessageId(id_, ledger, position, index, entry.batch_size)
        entry.first_number += bits.bit_count()
        entry.wanted &= ~bits

    def vector(self, number: int) -> tuple[tuple[int, MessageId], ...]:
        """Return the last message of each segment that was handed out up to a number."""
        found: list[tuple[int, MessageId]] = []
        for id_, source in sorted(self._sources.items()):
            last = self._last_acked.get(id_)
            for entry in source.outstanding:
                if entry.first_number > number:
                    break
                ahead = min(number - entry.first_number + 1, entry.wanted.bit_count())
                last_index = -1 if entry.passed_over else ahead - 1
                index = entry.wanted_indexes()[last_index] if entry.batch_size else -1
                ledger, position = entry.position
                last = MessageId(id_, ledger, position, index, entry.batch_size)
            if last is not None:
                found.append((id_, last))
        return tuple(found)

    def _raise_unconfirmed(self, number: int) -> None:
        """Raise ConsumerBusyError, once, if messages up to a number can never be confirmed."""
        if not self._unconfirmed:
            return
        lost = [error for first, error in self._unconfirmed if first <= number]
        self._unconfirmed = [entry for entry in self._unconfirmed if entry[0] > number]
        if lost:
            raise lost[0]


def drop_acknowledged(source: SegmentConsumer) -> None:
    """Forget outstanding entries of which no message is left."""
    if not source.outstanding:
        return
    left = [entry for entry in source.outstanding if entry.wanted]
    source.outstanding.clear()
    source.outstanding.extend(left)
