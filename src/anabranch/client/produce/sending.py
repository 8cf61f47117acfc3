"""Messages of one segment on their way out: open batches become entries, entries go to the connection.

The sender writes as far as the registration's connection takes entries and keeps the others. It does not know
why a connection comes or goes; that is the life of `segment_producer`.
"""

from __future__ import annotations

import asyncio

from anabranch.client.decide.batcher import BucketFill, OpenBucket, Outgoing, SegmentBatcher
from anabranch.client.produce.home import SegmentHome
from anabranch.client.produce.pending import CLOCK_MARGIN_S, PendingEntries
from anabranch.client.produce.registering import ProducerRegistration
from anabranch.errors import MessageTooBigError
from anabranch.model.layout import Segment
from anabranch.protocol.hot_frames import encode_send


class SegmentSender:
    """The batches and entries of one segment; `home` is the producer of the whole topic."""

    def __init__(self, home: SegmentHome, segment: Segment, registration: ProducerRegistration) -> None:
        self.home = home
        self.segment = segment
        self.batcher = SegmentBatcher(segment.bucket_splits, home.limits, self)
        self.pending = PendingEntries(segment.id, home.memory, home.loop, home.entry_failed)
        self.fills = tuple(BucketFill(home.limits) for _ in self.batcher.buckets)
        """By bucket."""
        self._registration = registration
        self._timer: asyncio.Handle | None = None

    @property
    def is_attached(self) -> bool:
        """Whether entries can be sent now."""
        return self._registration.connection is not None

    def begin(self, bucket: OpenBucket) -> Outgoing:
        """Open a batch in a bucket that has none, and see to it that the batch leaves in time.

        When no entry is under way, the batch leaves at the end of the loop's turn: waiting would only add to
        its latency. Otherwise later messages get the chance to share the entry.
        """
        # Asking for the running loop costs a system call, so it is done once per batch.
        self.home.check_loop()
        loop = self.home.loop
        now = loop.time()
        if self._timer is None and not self.batcher.opened:
            if self.pending:
                self._timer = loop.call_later(self.home.limits.max_delay, self._due)
            else:
                self._timer = loop.call_soon(self._due)
        batch = self.batcher.begin(bucket, now)
        self.home.batch_opened(now)
        return batch

    def _due(self) -> None:
        self._timer = None
        connection = self._registration.connection
        if not self.batcher.opened or connection is None:
            # Without a connection batches may as well grow; the attachment sends them.
            return
        if connection.writable:
            self.close_batches()
        else:
            connection.on_writable[self._writable] = None

    def close_batches(self) -> None:
        """Turn all open batches into entries and send them as far as the connection takes them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        home = self.home
        taken = self.batcher.take()
        if taken:
            now_ms = home.clock.wall_ms()
            for batch in taken:
                slot = batch.rows[0][3]
                try:
                    batch.build(home.name, now_ms, home.compression, home.batched)
                except Exception as error:
                    # Only a value that a caller passed can be at fault; all messages of the batch fail.
                    self.pending.fail(batch, error)
                    continue
                self.pending.add(batch)
                self.fills[self.batcher.bucket_of(slot)].add(batch)
            home.batches_closed(self)
        self._write()

    def _write(self) -> None:
        connection = self._registration.connection
        if connection is None:
            return
        unsent, sent, producer_id = self.pending.unsent, self.pending.sent, self._registration.producer_id
        pump = connection.pump
        while unsent:
            if not pump.writable:
                connection.on_writable[self._writable] = None
                return
            batch = unsent.popleft()
            if batch.size > connection.machine.max_message_bytes:
                self.pending.fail(batch, _too_big(batch, connection.machine.max_message_bytes))
                continue
            batch.tried = True
            sent.append(batch)
            highest = batch.sequence if batch.batched else 0
            pump.write_many(encode_send(producer_id, batch.sequence, batch.count, highest, batch.entry))

    def _writable(self) -> None:
        self._write()
        if self.batcher.opened and self._timer is None:
            self.close_batches()

    def take_back(self) -> list[Outgoing]:
        """Remove and return all entries without an outcome, in order."""
        self.close_batches()
        return self.pending.take_back()

    def oldest_at(self) -> float | None:
        """When the oldest message without an outcome was added; None when there is none."""
        oldest = self.pending.oldest_at()
        return self.batcher.oldest_at if oldest is None else oldest

    def expire(self, now: float, timeout_s: float) -> None:
        """Fail the messages that were added more than `timeout_s` ago."""
        oldest = self.batcher.oldest_at
        if oldest is not None and oldest + timeout_s <= now + CLOCK_MARGIN_S:
            self.close_batches()
        self.pending.expire(now, timeout_s)


def _too_big(batch: Outgoing, limit: int) -> MessageTooBigError:
    return MessageTooBigError(
        f"a batch of {batch.count} messages came to {batch.size} bytes and the broker takes up to {limit}; "
        "choose a smaller max_bytes for batching"
    )
