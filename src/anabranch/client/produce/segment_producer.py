"""One segment as a producer sees it: open batches, entries on their way, and the connection they travel on.

Entries leave in order and are answered in order. After a lost connection the broker says which sequence id it
has stored last; what lies at or below is done, the rest is sent again, byte for byte, in the same order. When
the segment turns out to be sealed, the same question is asked once more and what is left waits to be taken
back. Where messages go then is not decided here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from anabranch.aio import TaskRegistry
from anabranch.client.decide.batcher import FAILED, STORED, BucketFill, Outgoing, SegmentBatcher
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.segment_owner import ATTACH, SegmentOwner
from anabranch.client.options import Batching, log
from anabranch.client.produce.futures import complete
from anabranch.client.produce.memory import Memory
from anabranch.client.produce.stored_ids import ask_what_is_stored, stored_here
from anabranch.clock import Clock
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    MessageTooBigError,
    ProducerBusyError,
    SendTimeoutError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from anabranch.model.layout import Segment
from anabranch.protocol.batches import Compression
from anabranch.protocol.commands import NO_ID, SendReceipt, encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import MANAGED, pairs
from anabranch.protocol.wire_errors import exception_for

LAST_RECEIPTS_S = 1.0
"""How long a sealed segment may still answer what it had accepted before it is asked outright."""

LAYOUT_DUE_S = 1.0
"""How long a layout may lag behind a segment that says it is sealed."""


class SegmentHome(Protocol):
    """What the producer of a segment needs of the producer of the topic."""

    loop: asyncio.AbstractEventLoop
    pool: ConnectionPool
    tasks: TaskRegistry
    clock: Clock
    memory: Memory
    limits: Batching
    batched: bool
    compression: Compression
    name: str
    name_was_given: bool
    access_mode: pb.ProducerAccessMode.ValueType
    properties: Mapping[str, str]
    initial_subscription: str | None
    attach_timeout_s: float

    def attached_to(self, connection: BrokerConnection) -> None: ...
    def batches_closed(self, segment: SegmentProducer) -> None: ...
    def segment_settled(self, segment: SegmentProducer) -> None: ...
    def gave_up(self, segment: SegmentProducer) -> None: ...
    def failed(self, batch: Outgoing) -> None: ...


def _too_big(batch: Outgoing, limit: int) -> MessageTooBigError:
    return MessageTooBigError(
        f"a batch of {batch.count} messages came to {batch.size} bytes and the broker takes up to {limit}; "
        "choose a smaller max_bytes for batching"
    )


class SegmentProducer:
    """Sends to one segment; `home` is the producer of the whole topic."""

    def __init__(self, home: SegmentHome, segment: Segment, topic: str, url: str | None) -> None:
        self.home = home
        self.segment = segment
        self.topic = topic
        self.batcher = SegmentBatcher(segment.bucket_splits, home.limits, self)
        self.sealed = False
        """Takes no more messages; what it holds waits for a layout without it."""
        self.departed = False
        """Sealed according to the layout, which is final."""
        self.settled = False
        """Sealed, and everything still here is known not to be stored, or in doubt for good."""
        self.in_doubt = False
        """Nobody could say what was stored; the successors may know."""
        self.attached: asyncio.Future[int | None] = home.loop.create_future()
        """The last sequence id stored before the first attachment, or why it failed.

        None when the layout took the segment away first."""
        self.fills = tuple(BucketFill(home.limits) for _ in self.batcher.lanes)
        """By bucket."""
        self._owner = SegmentOwner(home.pool, topic, url)
        self._sent: deque[Outgoing] = deque()
        self._unsent: deque[Outgoing] = deque()
        self._connection: BrokerConnection | None = None
        self._producer_id = 0
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._timer: asyncio.Handle | None = None
        self._kicked = asyncio.Event()
        self._closed = False
        self._settling = False
        self._task = home.tasks.start(self._run(), f"produce to {topic}")

    # Messages in.

    @property
    def is_attached(self) -> bool:
        """Whether entries can be sent now."""
        return self._connection is not None

    def opened(self) -> None:
        """The first batch since the last closing was opened; see to it that it leaves in time.

        When nothing is under way it leaves at the end of the loop's turn: waiting would only add to its
        latency. Otherwise later messages get the chance to share the entry.
        """
        if self._timer is None:
            if self._sent or self._unsent:
                self._timer = self.home.loop.call_later(self.home.limits.max_delay, self._due)
            else:
                self._timer = self.home.loop.call_soon(self._due)

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
                    # Only what a caller passed can be at fault; its neighbours in the batch share its fate.
                    self._fail(batch, error)
                    continue
                home.memory.charge(batch.size)
                self._unsent.append(batch)
                self.fills[self.batcher.bucket_of(slot)].add(batch)
            home.batches_closed(self)
        self._write()

    def add_entry(self, batch: Outgoing) -> None:
        """Take an entry that was built elsewhere; it leaves with the next closing of batches."""
        self.home.memory.charge(batch.size)
        self._unsent.append(batch)

    def _write(self) -> None:
        connection = self._connection
        if connection is None:
            return
        unsent, sent, producer_id = self._unsent, self._sent, self._producer_id
        pump = connection.pump
        while unsent:
            if not pump.writable:
                connection.on_writable[self._writable] = None
                return
            batch = unsent.popleft()
            if batch.size > connection.machine.max_message_bytes:
                self._fail(batch, _too_big(batch, connection.machine.max_message_bytes))
                continue
            batch.tried = True
            sent.append(batch)
            highest = batch.sequence if batch.batched else 0
            pump.write_many(encode_send(producer_id, batch.sequence, batch.count, highest, batch.entry))

    def _writable(self) -> None:
        self._write()
        if self.batcher.opened and self._timer is None:
            self.close_batches()

    # Answers.

    def receipt(self, receipt: SendReceipt) -> None:
        """The broker has stored, or already had, the oldest entry it was sent."""
        sent = self._sent
        if not sent or receipt.sequence_id < sent[0].sequence:
            return
        batch = sent[0]
        if receipt.sequence_id > batch.sequence:
            log.warning(
                "%s: receipt for %d while %d was due", self.topic, receipt.sequence_id, batch.sequence
            )
            self._detach()
            return
        sent.popleft()
        stored = receipt.ledger != NO_ID
        self._store(batch, receipt.ledger if stored else -1, receipt.entry if stored else -1)
        if not sent and not self._unsent:
            if self.sealed:
                self._detach()
            elif self.batcher.opened:
                self.close_batches()

    def send_error(self, error: pb.CommandSendError) -> None:
        """The broker refused an entry."""
        cause = exception_for(error.error, error.message)
        if isinstance(cause, TopicTerminatedError):
            self.sealed = True
        elif error.error == pb.NotAllowedError and self._sent and self._sent[0].sequence == error.sequence_id:
            self._fail(self._sent.popleft(), cause)
            return
        self._detach()

    def closed_by_broker(self) -> None:
        """The registration is gone: the segment was sealed, or is to be found elsewhere."""
        self._connection = None
        self._detach()

    def connection_lost(self) -> None:
        self._connection = None
        self._owner.look_up_again()
        self._detach()

    def owned_by(self, url: str | None) -> None:
        """Follow the segment to the broker that a layout names."""
        if self._owner.layout_named(url, self._connection):
            self._detach()

    def _store(self, batch: Outgoing, ledger: int, entry: int) -> None:
        batch.state = STORED
        batch.place = (self.segment.id, ledger, entry)
        self._finish(batch)

    def _fail(self, batch: Outgoing, error: Exception) -> None:
        batch.state = FAILED
        batch.error = error
        self.home.failed(batch)
        self._finish(batch)

    def _finish(self, batch: Outgoing) -> None:
        self.home.memory.release(batch.size)
        # The bytes are not needed any more, and a caller may keep the futures for long.
        batch.entry = b""
        complete(batch, self.home.loop)

    # The connection.

    def _detach(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.producers.pop(self._producer_id, None)
            connection.on_writable.pop(self._writable, None)
            connection.send(
                pb.CommandCloseProducer(producer_id=self._producer_id, request_id=self.home.pool.next_id())
            )
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self._kicked.set()

    async def _run(self) -> None:
        failures = 0
        while not self._closed:
            self._kicked.clear()
            try:
                if not await self._owner.attempt(self._attach):
                    continue
                failures = 0
                while self._connection is not None:
                    await self._kicked.wait()
                    self._kicked.clear()
            except TopicTerminatedError:
                self.sealed = True
            except (AnabranchError, TimeoutError) as error:
                if self._is_final(error):
                    self._give_up(error)
                    return
                log.debug("%s: %s", self.topic, error)
                self._owner.look_up_again()
                await self._owner.pause(ATTACH.delay(failures, self.home.pool.rng), self._kicked)
                failures += 1
            if self.sealed:
                await self._settle()
                if not self.departed:
                    # The layout should tell soon; if it does not, the seal may have failed.
                    await self._owner.pause(LAYOUT_DUE_S, self._kicked)
                if self.departed:
                    self._has_departed()
                    return
                self.sealed = self.settled = False

    def _is_final(self, error: BaseException) -> bool:
        """Whether the error ends this segment's messages rather than delays them."""
        if not isinstance(error, AnabranchError) or error.retryable or self._closed:
            return False
        if isinstance(error, ProducerBusyError):
            # After a lost connection the broker may not have noticed yet that the other one is us.
            return not self._epoch
        return not isinstance(error, TopicNotFoundError) or self.sealed

    def _give_up(self, error: Exception) -> None:
        self.fail_all(error)
        self.home.gave_up(self)

    def fail_all(self, error: Exception) -> None:
        """Nothing here will be stored, nor need anybody wait for the first attachment."""
        if not self.attached.done():
            self.attached.set_exception(error)
            self.attached.exception()
        self.close_batches()
        waiting = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent.clear()
        for batch in waiting:
            self._fail(batch, error)

    async def _attach(self) -> None:
        home = self.home
        connection = await self._owner.connection()
        if self._closed:
            return
        producer_id = home.pool.next_id()
        connection.producers[producer_id] = self
        try:
            reply = await connection.request(
                self._registration(producer_id), pb.CommandProducerSuccess, home.attach_timeout_s
            )
        except BaseException:
            connection.producers.pop(producer_id, None)
            connection.send(pb.CommandCloseProducer(producer_id=producer_id, request_id=home.pool.next_id()))
            raise
        if not connection.open or connection.producers.get(producer_id) is not self:
            # Lost, or closed by the broker, between its answer and this line.
            return
        self._epoch += 1
        if reply.HasField("topic_epoch"):
            self._topic_epoch = reply.topic_epoch
        self._producer_id = producer_id
        self._connection = connection
        home.attached_to(connection)
        self._complete_up_to(stored_here(reply))
        if not self.attached.done():
            self.attached.set_result(reply.last_sequence_id)
        self._write()
        if self.batcher.opened:
            self.close_batches()

    def _registration(self, producer_id: int) -> pb.CommandProducer:
        home = self.home
        properties = dict(home.properties)
        if self.segment.is_classic:
            properties[MANAGED] = "true"
        command = pb.CommandProducer(
            topic=self.topic,
            producer_id=producer_id,
            request_id=home.pool.next_id(),
            producer_name=home.name,
            epoch=self._epoch,
            user_provided_producer_name=home.name_was_given,
            producer_access_mode=home.access_mode,
            metadata=pairs(properties),
        )
        if self._topic_epoch is not None:
            command.topic_epoch = self._topic_epoch
        if home.initial_subscription is not None:
            command.initial_subscription_name = home.initial_subscription
        return command

    def _complete_up_to(self, sequence: int) -> None:
        """The broker has stored everything up to here; where is not known."""
        while self._unsent and self._unsent[0].tried and self._unsent[0].sequence <= sequence:
            self._store(self._unsent.popleft(), -1, -1)

    # The end.

    def depart(self) -> None:
        """The layout does not list the segment as active any more."""
        if self.departed or self._closed:
            return
        self.departed = self.sealed = True
        self._kicked.set()
        if self.settled or self._settling:
            return
        if self._connection is None:
            # Reaching a sealed segment is pointless; knowing what it has stored may not be.
            self._task.cancel()
            self._task = self.home.tasks.start(self._settle(), f"settle {self.topic}")
        elif self._sent:
            # The broker still answers what it had accepted, which also says where it is stored.
            self.home.loop.call_later(LAST_RECEIPTS_S, self._detach)
        else:
            self._detach()

    def _is_settled(self) -> None:
        self._settling = False
        self.settled = True
        if self.departed:
            self._has_departed()
        self.home.segment_settled(self)

    def _has_departed(self) -> None:
        if not self.attached.done():
            self.attached.set_result(None)

    async def _settle(self) -> None:
        """Find out which of the entries that were sent are stored; the others are free to go elsewhere."""
        self._settling = True
        failures = 0
        while any(batch.tried for batch in self._unsent):
            try:
                if await self._owner.attempt(self._ask_what_is_stored):
                    break
                continue
            except (AnabranchError, TimeoutError) as error:
                if isinstance(error, AnabranchError) and not error.retryable:
                    # The segment may be gone: better twice than never.
                    log.debug("%s cannot say what it has stored: %s", self.topic, error)
                    self.in_doubt = True
                    break
            self._owner.look_up_again()
            await self._owner.pause(ATTACH.delay(failures, self.home.pool.rng))
            failures += 1
        self._is_settled()

    async def _ask_what_is_stored(self) -> None:
        home, connection = self.home, await self._owner.connection()
        reply = await ask_what_is_stored(home.pool, connection, self.topic, home.name, home.attach_timeout_s)
        if reply is not None:
            self._complete_up_to(stored_here(reply))

    def take_back(self) -> list[Outgoing]:
        """All entries without an answer, in order; nothing is left here."""
        self.close_batches()
        taken = list(self._unsent)
        self._unsent.clear()
        for batch in taken:
            self.home.memory.release(batch.size)
        return taken

    def pending(self) -> list[Outgoing]:
        """All entries without an answer, in order."""
        return [*self._sent, *self._unsent]

    def oldest_at(self) -> float | None:
        """When the oldest message here was added; None when there is none."""
        for waiting in (self._sent, self._unsent):
            if waiting:
                return waiting[0].begun_at
        batch = self.batcher.opened[0].batch if self.batcher.opened else None
        return None if batch is None else batch.begun_at

    def expire(self, now: float, timeout_s: float) -> None:
        """Fail what has waited for so long."""
        # Timers may fire a little early; without a margin they would be set again for the same instant.
        now += 1e-6
        batch = self.batcher.opened[0].batch if self.batcher.opened else None
        if batch is not None and batch.begun_at + timeout_s <= now:
            self.close_batches()
        for waiting in (self._sent, self._unsent):
            while waiting and waiting[0].begun_at + timeout_s <= now:
                error = SendTimeoutError(f"not stored within {timeout_s:g} s; it may still be stored")
                self._fail(waiting.popleft(), error)

    async def close(self) -> None:
        """Give the registration back; what is still under way fails."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection, self._connection = self._connection, None
        self.fail_all(AlreadyClosedError("the producer was closed before the message was stored"))
        self._kicked.set()
        if not self.attached.done():
            self.attached.cancel()
        if connection is None:
            return
        connection.on_writable.pop(self._writable, None)
        connection.producers.pop(self._producer_id, None)
        try:
            await connection.request(
                pb.CommandCloseProducer(producer_id=self._producer_id, request_id=self.home.pool.next_id()),
                pb.CommandSuccess,
                self.home.pool.operation_timeout_s,
            )
        except AnabranchError as error:
            log.debug("%s: closing the producer: %s", self.topic, error)
