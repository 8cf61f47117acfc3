"""One segment as a producer sees it: open batches, entries on their way, and the connection they travel on.

Entries leave in order and are answered in order. After a lost connection the broker says which sequence id it
has stored last: entries up to that id are done, the others are sent again, byte for byte, in the same order.
When the segment is sealed, the producer asks the same question once more and keeps the other entries until
they are taken back. The states of this life and their transitions are in `decide/producer_life.py`; this
module dials, waits and carries out the effects. The routes of a sealed segment's messages are decided in
`routes`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from anabranch.aio import TaskRegistry
from anabranch.client.decide.batcher import BucketFill, OpenBucket, Outgoing, SegmentBatcher
from anabranch.client.decide.producer_life import (
    ProducerEffect,
    ProducerEvent,
    ProducerLife,
    ProducerState,
    registration_failed,
)
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.segment_owner import ATTACH, SegmentOwner
from anabranch.client.options import Batching, ProducerOptions, log
from anabranch.client.produce.memory import Memory
from anabranch.client.produce.pending import CLOCK_MARGIN_S, PendingEntries
from anabranch.client.produce.registering import ask_what_is_stored, registration, stored_here
from anabranch.clock import Clock
from anabranch.errors import AlreadyClosedError, AnabranchError, MessageTooBigError, TopicTerminatedError
from anabranch.model.layout import Segment
from anabranch.protocol.commands import NO_ID, SendReceipt
from anabranch.protocol.compression import Compression
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import exception_for

LAST_RECEIPTS_S = 1.0
"""How long a sealed segment may still answer the entries it was sent before the producer asks outright."""

LAYOUT_DUE_S = 1.0
"""How long the layout may take to confirm that a segment is sealed."""


class SegmentHome(Protocol):
    """The producer of the topic, as far as the producers of its segments need it."""

    loop: asyncio.AbstractEventLoop
    pool: ConnectionPool
    tasks: TaskRegistry
    clock: Clock
    memory: Memory
    name: str
    options: ProducerOptions
    limits: Batching
    batched: bool
    compression: Compression

    def check_loop(self) -> None: ...
    def batch_opened(self, now: float) -> None: ...
    def batches_closed(self, segment: SegmentProducer) -> None: ...
    def segment_attached(self, connection: BrokerConnection) -> None: ...
    def segment_settled(self, segment: SegmentProducer) -> None: ...
    def segment_failed(self, segment: SegmentProducer) -> None: ...
    def entry_failed(self, batch: Outgoing) -> None: ...


class SegmentProducer:
    """Sends to one segment; `home` is the producer of the whole topic."""

    def __init__(self, home: SegmentHome, segment: Segment, topic: str, url: str | None) -> None:
        self.home = home
        self.segment = segment
        self.topic = topic
        self.batcher = SegmentBatcher(segment.bucket_splits, home.limits, self)
        self.pending = PendingEntries(segment.id, home.memory, home.loop, home.entry_failed)
        self.fills = tuple(BucketFill(home.limits) for _ in self.batcher.buckets)
        """By bucket."""
        self.attached: asyncio.Future[int | None] = home.loop.create_future()
        """The last sequence id stored before the first registration, or the error that ended the producer.

        None when the layout removed the segment first."""
        self.in_doubt = False
        """Whether the segment could not say which entries it has stored; its successors may know."""
        self._life = ProducerLife()
        self._owner = SegmentOwner(home.pool, topic, url)
        self._connection: BrokerConnection | None = None
        self._producer_id = 0
        self._registrations = 0
        self._topic_epoch: int | None = None
        self._timer: asyncio.Handle | None = None
        self._work: asyncio.Task[None] | None = None
        self._carry_out(ProducerEffect.ATTACH)

    @property
    def state(self) -> ProducerState:
        return self._life.state

    @property
    def settled(self) -> bool:
        """Whether the segment is sealed and its remaining entries may be routed elsewhere."""
        return self._life.settled

    @property
    def is_attached(self) -> bool:
        """Whether entries can be sent now."""
        return self._connection is not None

    # Messages in.

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
        if not self.batcher.opened or self._connection is None:
            # Without a connection batches may as well grow; the attachment sends them.
            return
        if self._connection.writable:
            self.close_batches()
        else:
            self._connection.on_writable[self._writable] = None

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
        connection = self._connection
        if connection is None:
            return
        unsent, sent, producer_id = self.pending.unsent, self.pending.sent, self._producer_id
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

    # Reports of the connection and the layout.

    def receipt(self, receipt: SendReceipt) -> None:
        """Complete the oldest sent entry: the broker has stored it now or had stored it before."""
        pending = self.pending
        sent = pending.sent
        if not sent or receipt.sequence_id < sent[0].sequence:
            return
        batch = sent[0]
        if receipt.sequence_id > batch.sequence:
            log.warning(
                "%s: receipt for %d while %d was due", self.topic, receipt.sequence_id, batch.sequence
            )
            self._apply(ProducerEvent.DETACHED)
            return
        sent.popleft()
        stored = receipt.ledger != NO_ID
        pending.store(batch, receipt.ledger if stored else -1, receipt.entry if stored else -1)
        if not sent and not pending.unsent:
            if self._life.state is ProducerState.LAST_RECEIPTS:
                self._apply(ProducerEvent.ALL_ANSWERED)
            elif self.batcher.opened:
                self.close_batches()

    def send_error(self, error: pb.CommandSendError) -> None:
        """Fail the entry that the broker does not allow; register again after any other refusal."""
        cause = exception_for(error.error, error.message)
        sent = self.pending.sent
        if isinstance(cause, TopicTerminatedError):
            self._apply(ProducerEvent.SEALED_BY_BROKER)
        elif error.error == pb.NotAllowedError and sent and sent[0].sequence == error.sequence_id:
            self.pending.fail(sent.popleft(), cause)
        else:
            self._apply(ProducerEvent.DETACHED)

    def closed_by_broker(self) -> None:
        """The broker ended the registration: the segment was sealed, or has another owner."""
        # An attempt to register that is still under way notices by itself.
        if self._connection is not None:
            self._apply(ProducerEvent.DETACHED)

    def connection_lost(self) -> None:
        if self._connection is not None:
            self._owner.look_up_again()
            self._apply(ProducerEvent.DETACHED)

    def owned_by(self, url: str | None) -> None:
        """Follow the segment to the broker that a layout names."""
        if self._owner.layout_named(url, self._connection):
            self._apply(ProducerEvent.DETACHED)

    def depart(self) -> None:
        """The layout does not list the segment as active any more."""
        self._apply(ProducerEvent.SEALED_BY_LAYOUT)

    # Carrying out the effects of the producer's life.

    def _apply(self, event: ProducerEvent) -> None:
        for effect in self._life.handle(event):
            self._carry_out(effect)

    def _carry_out(self, effect: ProducerEffect) -> None:
        match effect:
            case ProducerEffect.ATTACH:
                self._start(self._attach)
            case ProducerEffect.ASK_STORED:
                self._start(self._settle)
            case ProducerEffect.AWAIT_LAYOUT:
                self._start(self._await_layout)
            case ProducerEffect.STOP:
                self._stop()
            case ProducerEffect.SEND:
                self.close_batches()
            case ProducerEffect.RELEASE:
                self._release()
            case ProducerEffect.AWAIT_RECEIPTS if self.pending.sent:
                # A late receipt also says where the entry is stored, which the last sequence id does not.
                overdue = partial(self._apply, ProducerEvent.RECEIPTS_OVERDUE)
                self.home.loop.call_later(LAST_RECEIPTS_S, overdue)
            case ProducerEffect.AWAIT_RECEIPTS:
                self._apply(ProducerEvent.ALL_ANSWERED)
            case ProducerEffect.REPORT_LEFT:
                if not self.attached.done():
                    self.attached.set_result(None)
            case ProducerEffect.REPORT_SETTLED:
                self.home.segment_settled(self)
            case ProducerEffect.REPORT_FAILED:
                self.home.segment_failed(self)

    def _start(self, work: Callable[[], Awaitable[ProducerEvent]]) -> None:
        self._stop()
        self._work = self.home.tasks.start(self._perform(work), f"{work.__name__.strip('_')} {self.topic}")

    def _stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            self._work = None

    async def _perform(self, work: Callable[[], Awaitable[ProducerEvent]]) -> None:
        if self._life.failures:
            await self._owner.pause(ATTACH.delay(self._life.failures - 1, self.home.pool.rng))
        event = await work()
        self._work = None
        self._apply(event)

    async def _attach(self) -> ProducerEvent:
        try:
            while not await self._owner.attempt(self._register):
                pass  # The layout named another broker; try there.
        except (AnabranchError, TimeoutError) as error:
            event = registration_failed(error, registered_before=self._registrations > 0)
            if event is ProducerEvent.REFUSED:
                self.fail_all(error)
            elif event is ProducerEvent.UNREACHABLE:
                log.debug("%s: %s", self.topic, error)
                self._owner.look_up_again()
            return event
        return ProducerEvent.DETACHED if self._connection is None else ProducerEvent.ACCEPTED

    async def _register(self) -> None:
        home = self.home
        connection = await self._owner.connection()
        managed = self.segment.is_classic
        command = registration(home.pool, self.topic, home.name, home.options, managed=managed)
        command.epoch = self._registrations
        if self._topic_epoch is not None:
            command.topic_epoch = self._topic_epoch
        waits = home.options.access_mode == "wait_for_exclusive"
        timeout_s = math.inf if waits else home.pool.operation_timeout_s
        producer_id = command.producer_id
        connection.producers[producer_id] = self
        try:
            reply = await connection.request(command, pb.CommandProducerSuccess, timeout_s)
        except BaseException:
            connection.producers.pop(producer_id, None)
            connection.send(pb.CommandCloseProducer(producer_id=producer_id, request_id=home.pool.next_id()))
            raise
        if not connection.open or connection.producers.get(producer_id) is not self:
            # Lost, or closed by the broker, between its answer and this line.
            return
        self._registrations += 1
        if reply.HasField("topic_epoch"):
            self._topic_epoch = reply.topic_epoch
        self._producer_id = producer_id
        self._connection = connection
        home.segment_attached(connection)
        self.pending.store_up_to(stored_here(reply))
        if not self.attached.done():
            self.attached.set_result(reply.last_sequence_id)

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.on_writable.pop(self._writable, None)
            if connection.producers.pop(self._producer_id, None) is not None:
                connection.send(self._close_command())
        self.pending.requeue()

    def _close_command(self) -> pb.CommandCloseProducer:
        return pb.CommandCloseProducer(producer_id=self._producer_id, request_id=self.home.pool.next_id())

    async def _settle(self) -> ProducerEvent:
        """Find out which of the entries that were sent are stored; the others are free to go elsewhere."""
        try:
            while self.pending.any_tried() and not await self._owner.attempt(self._ask_stored):
                pass  # The layout named another broker; ask there.
        except (AnabranchError, TimeoutError) as error:
            if not isinstance(error, AnabranchError) or error.retryable:
                self._owner.look_up_again()
                return ProducerEvent.UNREACHABLE
            # The segment may be gone. A message that is stored twice is better than a lost one.
            log.debug("%s cannot say which entries it has stored: %s", self.topic, error)
            self.in_doubt = True
        return ProducerEvent.STORED_KNOWN

    async def _ask_stored(self) -> None:
        home, connection = self.home, await self._owner.connection()
        reply = await ask_what_is_stored(home.pool, connection, self.topic, home.name)
        if reply is not None:
            self.pending.store_up_to(stored_here(reply))

    async def _await_layout(self) -> ProducerEvent:
        await self._owner.pause(LAYOUT_DUE_S)
        return ProducerEvent.LAYOUT_OVERDUE

    # The end of messages.

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

    def fail_all(self, error: Exception) -> None:
        """Fail all messages, and the first registration if it is still awaited."""
        if not self.attached.done():
            self.attached.set_exception(error)
            self.attached.exception()
        self.close_batches()
        self.pending.fail_all(error)

    async def close(self) -> None:
        """Give the registration back; messages without an outcome fail."""
        self._apply(ProducerEvent.CLOSED)
        connection, self._connection = self._connection, None
        self.fail_all(AlreadyClosedError("the producer was closed before the message was stored"))
        if connection is None:
            return
        connection.on_writable.pop(self._writable, None)
        connection.producers.pop(self._producer_id, None)
        try:
            await connection.request(
                self._close_command(), pb.CommandSuccess, self.home.pool.operation_timeout_s
            )
        except AnabranchError as error:
            log.debug("%s: closing the producer: %s", self.topic, error)


def _too_big(batch: Outgoing, limit: int) -> MessageTooBigError:
    return MessageTooBigError(
        f"a batch of {batch.count} messages came to {batch.size} bytes and the broker takes up to {limit}; "
        "choose a smaller max_bytes for batching"
    )
