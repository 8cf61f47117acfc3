"""Cumulative acknowledgement over several segments.

Messages are numbered in the order they were handed out; an acknowledged number covers all messages up to it.
"""

from __future__ import annotations

from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.consuming.acknowledgements import leading
from anabranch.client.decide.consuming.ordering import bits_after
from anabranch.client.received import Received
from anabranch.errors import ConsumerBusyError
from anabranch.model.acks import bits_at
from anabranch.model.ids import MessageId


class CumulativeAcks:
    """The acknowledgements of one stream consumer; `sources` are its segments' consumers by segment id."""

    def __init__(self, sources: dict[int, SegmentConsumer]) -> None:
        self._sources = sources
        self._last_acked: dict[int, MessageId] = {}
        self._unconfirmed: list[tuple[int, ConsumerBusyError]] = []
        """For segments that went to another consumer: the first number without a confirmation, and why."""

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
            source.chunked.pop(entry.position, None)
            last = bits.bit_length()
            source.acks.add_up_to(ledger, position, entry.whole >> last << last)
        index = bits.bit_length() - 1 if entry.batch_size else -1
        id_ = source.segment_id
        self._last_acked[id_] = MessageId(id_, ledger, position, index, entry.batch_size)
        entry.first_number += bits.bit_count()
        entry.wanted &= ~bits

    def vector(self, number: int) -> tuple[tuple[int, MessageId], ...]:
        """The last message of each segment that was handed out up to a number."""
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

    def forget(self, source: SegmentConsumer, why: str | None = None) -> None:
        """Forget the positions of a segment; `why` says why its open acknowledgements are not confirmed."""
        if why is not None and (not source.acks.confirmed or source.outstanding):
            first = source.outstanding[0].first_number if source.acks.confirmed else 0
            error = ConsumerBusyError(f"acknowledgements of {source.topic} are not confirmed: {why}")
            self._unconfirmed.append((first, error))
        self._last_acked.pop(source.segment_id, None)

    def raise_unconfirmed(self, number: int) -> None:
        """Raise ConsumerBusyError, once, if messages up to a number can never be confirmed."""
        lost = [error for first, error in self._unconfirmed if first <= number]
        self._unconfirmed = [entry for entry in self._unconfirmed if entry[0] > number]
        if lost:
            raise lost[0]


def drop_acknowledged(source: SegmentConsumer) -> None:
    """Forget outstanding entries of which no message is left."""
    left = [entry for entry in source.outstanding if entry.wanted]
    source.outstanding.clear()
    source.outstanding.extend(left)
