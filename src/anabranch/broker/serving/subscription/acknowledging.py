"""Acknowledgements of one subscription: from the ids of an ACK to its cursor, and the answers to ACKs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from anabranch.broker.serving.context import ClientLink, Spawn
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.counters import Counters
from anabranch.broker.serving.delivery.retries import Retry
from anabranch.broker.serving.lanes.lane_totals import LaneTotals
from anabranch.broker.serving.reading.reading import Reading
from anabranch.errors import AnabranchError, DamagedEntriesError, NotAllowedError
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import Entry, ReadableLog, SegmentLog
from anabranch.model.acks import bits_from_words
from anabranch.model.ids import EARLIEST, Position
from anabranch.protocol.gaps import gap_mark
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for

_log = logging.getLogger(__name__)

ANSWER_BYTES = 256
"""Size that a waiting answer adds to `publish_bytes` of its connection, which bounds the answers."""

Ids = Sequence[pb.MessageIdData]

FEW_IDS = 8
"""Ids that are always taken at once, because slices would cost more than they are worth."""

SLICE_IDS = 1000
"""Ids that are taken in one slice of a few milliseconds."""

PARTS_COUNTED_MAX = 1000
"""Partly acknowledged entries that a backlog counts one by one; the others count with their average."""

_WORDS_PER_ID = 32
"""Words of an ack set that take as long as one id."""


class LogAcknowledgements:
    """Applies ACKs to the cursor of one log."""

    def __init__(self, log: ReadableLog, cursor: Cursor) -> None:
        self._name = log.name
        self._extent = log.extent
        self._cursor = cursor

    def take(
        self, command: pb.CommandAck, reading: Reading, taken: Callable[[bool], None]
    ) -> Iterator[None] | None:
        """Take an ACK, one with many ids in the slices returned; calls `taken` as `take_each` says."""
        ids = command.message_id
        more = False
        if command.ack_type == pb.CommandAck.Cumulative:
            # Shared types have no order to be cumulative in; Pulsar ignores it there, and so do we.
            if reading.outstanding is None and len(ids) == 1:
                self.take_up_to(ids[0], reading)
        elif len(ids) > FEW_IDS:
            return self._take_many(ids, reading, taken)
        else:
            more = self.take_each(ids, reading)
        self._note_mark(reading)
        taken(more)
        return None

    def _note_mark(self, reading: Reading) -> None:
        """Take note of the time at which the mark moved, and of the messages of an ordered consumer."""
        counters, mark = reading.path.counters, self._cursor.acks.mark
        if mark == counters.mark:
            return
        counters.marked_ms = reading.path.clock.wall_ms()
        consumer = reading.sharing.active
        if consumer is None:
            counters.mark_set(mark)
            return
        before = counters.index if counters.index >= 0 else self._extent.index_of(counters.mark)
        counters.mark, counters.index = mark, self._extent.index_of(mark)
        consumer.messages_acked += max(counters.index - before, 0)

    def _take_many(self, ids: Ids, reading: Reading, taken: Callable[[bool], None]) -> Iterator[None]:
        for number, piece in enumerate(_pieces(ids)):
            if number:
                yield
            more = self.take_each(piece, reading)
            self._note_mark(reading)
            taken(more)

    def redeliver(
        self,
        consumer: ServedConsumer,
        ids: Ids,
        retry: Retry,
        reading: Reading,
        changed: Callable[[], None],
    ) -> Iterator[None]:
        """Deliver these entries of a consumer again, or all of them without ids, in slices."""
        if reading.outstanding is not None:
            wanted = set() if ids else set(consumer.outstanding)
            for number, piece in enumerate(_pieces(ids)):
                if number:
                    yield
                wanted.update(ordinal for id_ in piece if (ordinal := self.ordinal(id_)) is not None)
            # All at once, because an entry that came back later could be overtaken by its successors.
            reading.redeliver(consumer, wanted, retry)
        else:
            # Without slices, because the client takes every entry that is sent in its new epoch.
            reading.redeliver(consumer, ())
        changed()

    def take_each(self, ids: Ids, reading: Reading) -> bool:
        """Acknowledge single entries; whether more may be delivered because of it."""
        whole: list[int] = []
        more = False
        for message_id in ids:
            ordinal = self.ordinal(message_id)
            if ordinal is None:
                continue
            if message_id.ack_set:
                more |= self._take_part(ordinal, message_id.ack_set, reading)
            else:
                whole.append(ordinal)
        if whole:
            self._cursor.acknowledge(whole)
            more |= reading.acknowledged(whole)
        return more

    def _take_part(self, ordinal: int, words: Sequence[int], reading: Reading) -> bool:
        acks = self._cursor.acks
        if ordinal in acks:
            return False
        before = acks.remaining(ordinal)
        count = self._extent.count_of(ordinal)
        if not count:
            # The log has dropped the entry, which is spilled.
            known = 0 if reading.outstanding is None else reading.outstanding.messages_of(ordinal)
            count = known if before is None else 64 * len(words) + before.bit_length()
        if not count:
            return False
        return reading.acknowledge_part(ordinal, ack_bits(words, count), count)

    def take_up_to(self, message_id: pb.MessageIdData, reading: Reading) -> None:
        """Acknowledge all entries up to this id; an id beyond the last stored entry changes nothing."""
        position, extent = position_from(message_id), self._extent
        end = extent.next_ordinal
        if end == extent.first_ordinal or position > extent.position_of(end - 1):
            return
        if message_id.ack_set:
            ordinal = extent.ordinal_of(position)
            self._cursor.acknowledge_up_to(ordinal)
            if self.ordinal(message_id) is not None:
                self._take_part(ordinal, message_id.ack_set, reading)
        else:
            self._cursor.acknowledge_up_to(extent.ordinal_of(Position(position.ledger, position.entry + 1)))

    def mark_of(self, error: DamagedEntriesError) -> Entry:
        """Return the mark for damaged entries, at the place of the last one."""
        extent, last = self._extent, error.end - 1
        first_index = extent.index_of(error.first)
        count = extent.index_of(error.end) - first_index
        return Entry(extent.position_of(last), last, first_index, count, 0, gap_mark(count))

    def pass_damaged(
        self, error: DamagedEntriesError, counters: Counters, *, keep_last: bool = False
    ) -> list[int]:
        """Acknowledge damaged entries, so that later entries and drains go on; returns their ordinals.

        With `keep_last` the last one stays, because a mark takes its place.
        """
        acks = self._cursor.acks
        lost = [ordinal for ordinal in range(max(error.first, acks.mark), error.end) if ordinal not in acks]
        whole = len(lost) == error.end - error.first
        messages = error.messages if whole else 0
        counters.damaged_entries += len(lost)
        counters.damaged_messages += messages
        _log.warning(
            "%s: subscription %s passes damaged entries (%d, with %s messages) at %s: %s",
            self._name,
            self._cursor.name,
            len(lost),
            messages or "an unknown number of",
            self._extent.position_of(error.first),
            error,
        )
        if keep_last and lost:
            lost.pop()
        self._cursor.acknowledge(lost)
        return lost

    def ordinal(self, message_id: pb.MessageIdData) -> int | None:
        """Return the ordinal of the stored entry that an id names; None if no such entry is stored."""
        position = Position(message_id.ledgerId, message_id.entryId)
        ordinal = self._extent.ordinal_of(position)
        if ordinal >= self._extent.next_ordinal or self._extent.position_of(ordinal) != position:
            return None
        return ordinal


def _pieces(ids: Ids) -> Iterator[Ids]:
    """Return the ids of a command in pieces that each take a few milliseconds."""
    piece: list[pb.MessageIdData] = []
    weight = 0
    for message_id in ids:
        weight += 1 + len(message_id.ack_set) // _WORDS_PER_ID
        piece.append(message_id)
        if weight >= SLICE_IDS:
            yield piece
            piece, weight = [], 0
    if piece:
        yield piece


class DurableAnswers:
    """Sends the responses to ACKs once the acknowledgements are on disk."""

    def __init__(self, cursor: Cursor, spawn: Spawn) -> None:
        self._cursor = cursor
        self._spawn = spawn
        self._waiting: list[tuple[ClientLink, pb.CommandAckResponse]] = []
        self._sending = False

    def add(self, link: ClientLink, response: pb.CommandAckResponse) -> None:
        """Send the response once all acknowledgements so far are durable."""
        self._waiting.append((link, response))
        link.publish_bytes += ANSWER_BYTES
        if not self._sending:
            self._sending = True
            self._spawn(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                failure: AnabranchError | None = None
                try:
                    await self._cursor.flush(patient=True)
                except AnabranchError as error:
                    failure = error
                for link, response in batch:
                    if failure is not None:
                        response.error = code_for(failure)
                        response.message = str(failure)
                    link.send(response)
                    link.publish_bytes -= ANSWER_BYTES
                    if link.throttled:
                        link.resume_if_room()
        finally:
            self._sending = False


def ack_bits(words: Sequence[int], count: int) -> int:
    """Return the pending messages of an entry with `count` messages; NotAllowedError for needless words."""
    if 64 * (len(words) - 1) >= count:
        raise NotAllowedError(
            f"an ack set of {len(words)} words is longer than the {count} messages of its entry need"
        )
    return bits_from_words(words)


def position_from(message_id: pb.MessageIdData) -> Position:
    """Return the position of an id on the wire, where -1 looks like 2^64 - 1."""
    ledger, entry = message_id.ledgerId, message_id.entryId
    if ledger >= 2**63:
        return EARLIEST
    return Position(ledger, entry - 2**64 if entry >= 2**63 else entry)


def mark_delete(log: SegmentLog, cursor: Cursor) -> Position:
    """Return the last entry before the first that is not acknowledged; entry -1 if there is none."""
    mark, extent = cursor.acks.mark, log.extent
    if mark > extent.first_ordinal:
        return extent.position_of(mark - 1)
    return Position(extent.position_of(extent.first_ordinal).ledger, -1)


def backlog_messages(log: SegmentLog, cursor: Cursor) -> int:
    """Return how many messages are not acknowledged; entries out of order count with the average size.

    Messages that are acknowledged in entries that are not count as far as PARTS_COUNTED_MAX entries tell.
    """
    extent, acks = log.extent, cursor.acks
    first = max(acks.mark, extent.first_ordinal)
    entries = extent.next_ordinal - first
    pending = acks.pending_count(extent.next_ordinal)
    behind = extent.next_index - extent.index_of(first) if entries > 0 else 0
    if not behind:
        return 0
    whole, parts = round(behind * pending / entries), acks.partly(PARTS_COUNTED_MAX)
    if not parts:
        return whole
    done = sum(max(extent.count_of(ordinal) - left.bit_count(), 0) for ordinal, left in parts)
    # Each pending entry has a pending message at least.
    return max(whole - round(done * acks.parts / len(parts)), min(whole, pending))


class Backlog(NamedTuple):
    """The messages of a subscription that are not acknowledged, by the place where they are."""

    messages: int
    in_lanes: int
    """Messages in lanes, about: their entries times the average number of messages of a pending entry."""

    @property
    def consumable(self) -> int:
        """Messages that wait for no stuck key."""
        return self.messages - self.in_lanes


def backlog_of(log: SegmentLog, cursor: Cursor, totals: LaneTotals) -> Backlog:
    """Return the backlog in messages, apart by lanes."""
    messages, pending = backlog_messages(log, cursor), cursor.acks.pending_count(log.extent.next_ordinal)
    in_lanes = round(messages * totals.entries / pending) if pending else 0
    return Backlog(messages, min(in_lanes, messages))
