"""Messages of one segment on their way out: batches become entries, and entries get their outcomes.

Entries wait in the order of their sequence ids. Every entry leaves with an outcome, or is taken back to be
routed again. The sender writes as far as the registration's connection takes entries and the broker's credit
goes. It does not know why a connection comes or goes: `segment_producer` lives that life.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from anabranch.client.decide.producing.batcher import OpenBucket, SegmentBatcher
from anabranch.client.decide.producing.credits import ProducerCredit
from anabranch.client.decide.producing.outgoing import FAILED, STORED, Outgoing
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.stored_tail import TailEntry
from anabranch.client.options import PublishOptions
from anabranch.client.produce.encrypting import EntryEncryption
from anabranch.client.produce.futures import complete
from anabranch.client.produce.parts import ProducerParts
from anabranch.client.produce.registering import ProducerRegistration
from anabranch.errors import MessageTooBigError, SendTimeoutError
from anabranch.model.layout import Segment
from anabranch.protocol.chunks import split_entry
from anabranch.protocol.hot_frames import encode_chunk, encode_send

CLOCK_MARGIN_S = 1e-6
"""A timer may fire this early; without the margin it would be set again for the same instant."""


class BatchReports(Protocol):
    """Reports of a sender about its batches."""

    def batch_opened(self, now: float) -> None:
        """A message without an outcome waits from now on."""

    def batches_closed(self, batcher: SegmentBatcher) -> None:
        """The next messages without a key may go to another segment or bucket."""


class SegmentSender:
    """The batches and entries of one segment; the owner of the segment's batcher."""

    def __init__(
        self,
        parts: ProducerParts,
        reports: BatchReports,
        segment: Segment,
        registration: ProducerRegistration,
    ) -> None:
        self.batcher = SegmentBatcher(segment.bucket_splits, parts.options.limits, self)
        self.credit = ProducerCredit()
        self.sent: deque[Outgoing] = deque()
        self.unsent: deque[Outgoing] = deque()
        """Entries that follow those in `sent`."""
        self._parts = parts
        self._reports = reports
        self._segment = segment
        self._registration = registration
        self._max_delay_s = parts.options.limits.max_delay
        self._timer: asyncio.Handle | None = None
        self._waits_for_credit = False

    # Batches.

    def begin(self, bucket: OpenBucket) -> Outgoing:
        """Open a batch in a bucket that has none, and see to it that the batch leaves in time.

        When no entry is under way, the batch leaves at the end of the loop's turn: waiting would only add to
        its latency. Otherwise later messages get the chance to share the entry.
        """
        # Asking for the running loop costs a system call, so it is done once per batch.
        self._parts.check_loop()
        now = (loop := self._parts.loop).time()
        if self._timer is None and not self.batcher.opened:
            if self.sent or self.unsent:
                self._timer = loop.call_later(self._max_delay_s, self._due)
            else:
                self._timer = loop.call_soon(self._due)
        batch = self.batcher.begin(bucket, now)
        self._reports.batch_opened(now)
        return batch

    def _due(self) -> None:
        self._timer = None
        connection = self._registration.connection
        if not self.batcher.opened or connection is None:
            # Without a connection batches may as well grow; the attachment sends them.
            return
        # If the broker does not keep up, larger batches are better than a longer queue.
        if not connection.pump.writable:
            connection.on_writable[self._writable] = None
        elif self.credit.has_room:
            self.close_batches()
            connection.pump.flush()
        else:
            self._wait_for_credit()

    # All batches of the segment close together, and `take` returns them in the order of their highest
    # sequence ids. The broker tells a repeated entry by that number alone: if bucket A left with ids up to 50
    # while an older batch of bucket B with ids up to 40 stayed open, the broker would later drop B as a
    # repetition. `follows` marks the entries of one such group behind the first. They must not be separated
    # by a lost connection either, so `_write` sends a group as a whole, even without room. The time and the
    # schema version are read once for the group; building is the last moment at which a bad value can be
    # found.
    def close_batches(self) -> None:
        """Turn all open batches into entries and send them as far as the connection takes them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        parts = self._parts
        taken = self.batcher.take()
        if taken:
            now_ms, follows = parts.clock.wall_ms(), False
            for batch in taken:
                slot = batch.rows[0][3]
                batch.schema_version = parts.schema.version
                try:
                    batch.build(parts.name, now_ms, parts.compression, is_batched(parts.options, batch))
                except Exception as error:
                    # Only a value that a caller passed can be at fault; all messages of the batch fail.
                    self.fail(batch, error)
                    continue
                batch.follows, follows = follows, True
                self.add(batch)
                self.batcher.bucket_for(slot).fill.add(batch)
            self._reports.batches_closed(self.batcher)
        self._write()

    # Entries.

    def add(self, batch: Outgoing) -> None:
        """Take an entry that is ready to be sent."""
        self._parts.memory.charge(batch.size)
        self.unsent.append(batch)

    # This runs when batches close, when the connection can take bytes again, and when credit comes back; the
    # loop is per entry, never per message. Two limits stop it. The connection is not writable while the
    # socket is behind: more bytes would only wait in memory. Credit is what the broker is willing to take:
    # without it entries would fill the connection, and acknowledgements and look-ups would wait behind them.
    # A producer that waits joins the line of its connection, so that a busy producer cannot starve the
    # others; a later one finds `has_line` set and waits too, until it is its turn. An entry moves to `sent`
    # before it is written and stays there until its receipt: after a lost connection everything in `sent`
    # goes back to the front of `unsent` and is sent again in the same order. Encryption happens here, each
    # time, because a sealed segment's entries must be readable to be routed again.
    def _write(self, *, in_turn: bool = False) -> None:
        """Send entries as far as the connection and the credit go; other producers may wait in line before.

        `in_turn` says that no other producer of the connection has waited longer for credit.
        """
        connection = self._registration.connection
        if connection is None:
            return
        unsent, sent, producer_id = self.unsent, self.sent, self._registration.producer_id
        pump, limit, credit = connection.pump, connection.machine.max_message_bytes, self.credit
        has_turn = in_turn or not credit.link.has_line
        while unsent:
            batch = unsent[0]
            if not batch.follows and not pump.writable:
                connection.on_writable[self._writable] = None
                return
            if not batch.follows and not (has_turn and credit.has_room):
                self._wait_for_credit()
                return
            unsent.popleft()
            batch.use_schema_version(self._registration.schema_version)
            try:
                entries = entries_of(self._parts.options, batch, limit, self._parts.encryption)
            except MessageTooBigError as error:
                self.fail(batch, error)
                continue
            batch.tried = True
            sent.append(batch)
            credit.take(batch.size, batch.count)
            if len(entries) > 1:
                for chunk in entries:
                    pump.write_many(encode_chunk(producer_id, batch.sequence, chunk))
                continue
            highest = batch.sequence if batch.batched else 0
            pump.write_many(encode_send(producer_id, batch.sequence, batch.count, highest, entries[0]))
        if self._waits_for_credit:
            self._end_wait()

    def _wait_for_credit(self) -> None:
        """Have `_go_on` called in turn, or after a receipt, or when the broker raises the limits."""
        if not self._waits_for_credit:
            self._waits_for_credit = True
            self._parts.credit_waits.begin(self, self._parts.loop.time())
        if self.credit.has_own_room:
            self.credit.link.wait(self._take_turn)

    def _end_wait(self) -> None:
        self._waits_for_credit = False
        self._parts.credit_waits.end(self, self._parts.loop.time())

    def _end_idle_wait(self) -> None:
        if self._waits_for_credit and not self.unsent and not self.batcher.opened:
            self.credit.link.forget(self._take_turn)
            self._end_wait()

    def credited(self) -> None:
        """Go on if the producer waited and has credit of its own again."""
        if self._waits_for_credit and self.credit.has_own_room:
            self._go_on(in_turn=False)

    def _take_turn(self) -> None:
        self._go_on(in_turn=True)

    def _go_on(self, *, in_turn: bool) -> None:
        self._write(in_turn=in_turn)
        if not self.unsent and self._timer is None:
            self._due()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of entries that wait for credit."""
        return sum(batch.size for batch in list(self.unsent)) if self._waits_for_credit else 0

    def _writable(self) -> None:
        self._write()
        if self.batcher.opened and self._timer is None:
            self.close_batches()

    def leave_connection(self) -> BrokerConnection | None:
        """Count sent entries as unsent; return the connection if its broker does not know of the end yet."""
        connection = self._registration.connection
        if connection is not None:
            connection.on_writable.pop(self._writable, None)
        self.credit.link.forget(self._take_turn)
        if self._waits_for_credit:
            self._end_wait()
        self.unsent.extendleft(reversed(self.sent))
        self.sent.clear()
        return self._registration.drop()

    # When a segment is sealed, its entries can no longer be stored there. They are given back in the order in
    # which they were to be sent, and the routes decode them and add their messages to the batches of the
    # successors. Entries that are still `sent` would have an outcome in doubt, so the producer settles first.
    def take_back(self) -> list[Outgoing]:
        """Remove and return all entries without an outcome, in order; none may be sent at the time."""
        self.close_batches()
        taken = list(self.unsent)
        self.unsent.clear()
        for batch in taken:
            self._parts.memory.release(batch.size)
        return taken

    # Outcomes; the caller has removed the entry from its queue.

    def store(self, batch: Outgoing, ledger: int, entry: int) -> None:
        """Complete an entry that the segment has stored."""
        batch.place = (self._segment.id, ledger, entry)
        batch.state = STORED  # Last, because other threads look at it first.
        self._finish(batch)

    def store_up_to(self, sequence_id: int) -> None:
        """Complete the entries that an earlier registration sent and the segment has stored, up to this id.

        The position of such an entry is unknown.
        """
        unsent = self.unsent
        while unsent and unsent[0].tried and unsent[0].sequence <= sequence_id:
            self.store(unsent.popleft(), -1, -1)

    def store_found(self, found: Iterable[TailEntry]) -> None:
        """Complete the entries that were found in the sealed segment; the others stay as they are."""
        places = {entry.sequence_id: entry.place for entry in found}
        waiting, self.unsent = self.unsent, deque()
        for batch in waiting:
            if batch.tried and batch.sequence in places:
                self.store(batch, *places[batch.sequence])
            else:
                self.unsent.append(batch)

    def fail(self, batch: Outgoing, error: Exception) -> None:
        batch.error = error
        batch.state = FAILED
        self._parts.failures.add(batch)
        self._finish(batch)

    def fail_tried(self, error: Exception) -> None:
        """Fail the entries that were sent, all of which wait in `unsent`; the others stay."""
        while self.unsent and self.unsent[0].tried:
            self.fail(self.unsent.popleft(), error)

    def fail_all(self, error: Exception) -> None:
        """Fail all messages."""
        self.close_batches()
        waiting = self.waiting
        for batch in self.sent:
            self.credit.keep(batch.size, batch.count)
        self.sent.clear()
        self.unsent.clear()
        for batch in waiting:
            self.fail(batch, error)
        self._end_idle_wait()

    def expire(self, now: float, timeout_s: float) -> None:
        """Fail the messages that were added more than `timeout_s` ago."""
        begun_before = now + CLOCK_MARGIN_S - timeout_s
        oldest = self.batcher.oldest_at
        if oldest is not None and oldest <= begun_before:
            self.close_batches()
        for waiting in (self.sent, self.unsent):
            while waiting and waiting[0].begun_at <= begun_before:
                batch = waiting.popleft()
                if waiting is self.sent:
                    self.credit.keep(batch.size, batch.count)
                self.fail(batch, self._expired(timeout_s))
        self._end_idle_wait()

    def _expired(self, timeout_s: float) -> SendTimeoutError:
        registration = self._registration
        problem = None if registration.is_attached else registration.problem
        why = "" if problem is None else f" ({problem})"
        where = f"{registration.topic} at {registration.owner}"
        return SendTimeoutError(f"not stored within {timeout_s:g} s in {where}{why}; it may still be stored")

    @property
    def waiting(self) -> list[Outgoing]:
        """All entries without an outcome, in order."""
        return [*self.sent, *self.unsent]

    def oldest_at(self) -> float | None:
        """Return when the oldest message without an outcome was added; None when there is none."""
        return waiting[0].begun_at if (waiting := self.sent or self.unsent) else self.batcher.oldest_at

    def _finish(self, batch: Outgoing) -> None:
        self._parts.memory.release(batch.size)
        # The bytes are not needed any more, and a caller may keep the futures for long.
        batch.entry = b""
        complete(batch)


def is_batched(options: PublishOptions, batch: Outgoing) -> bool:
    """Return whether the entry of these messages is a batch; a single message that may be split is not."""
    return options.batching is not False and not (options.chunking and len(batch.rows) == 1)


def entries_of(
    options: PublishOptions, batch: Outgoing, limit: int, encryption: EntryEncryption | None = None
) -> list[bytes]:
    """Return the entry as it is sent: encrypted if the producer encrypts, in chunks if it is too large.

    Raises MessageTooBigError if the entry is too large and cannot be split.
    """
    if encryption is None:
        return _cut(options, batch, limit)
    # Each chunk is encrypted by itself, as consumers of Pulsar expect it.
    return [encryption.encrypt(entry) for entry in _cut(options, batch, limit - encryption.overhead)]


def _cut(options: PublishOptions, batch: Outgoing, limit: int) -> list[bytes]:
    if batch.size <= limit:
        return [batch.entry]
    if batch.batched or not options.chunking:
        raise MessageTooBigError(
            f"a batch of {batch.count} messages came to {batch.size} bytes and the broker takes up "
            f"to {limit}; choose a smaller max_bytes for batching"
        )
    chunks = split_entry(batch.entry, limit)
    batch.unanswered_chunks = len(chunks)
    return chunks
