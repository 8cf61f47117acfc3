"""The queue consumer: all segments of a topic in any order, acknowledged message by message.

It follows the layout and subscribes to every segment, including sealed ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from anabranch.client.consume.attachment import Attachment, QueueOptions
from anabranch.client.consume.group_membership import GroupMembership
from anabranch.client.consume.layout_following import LayoutFollowing
from anabranch.client.consume.moving import MovableConsumer
from anabranch.client.consume.redelivery import DeadLetters, OpenDeadLetters, Redelivery
from anabranch.client.consume.segment_consumer import SegmentConsumer
from anabranch.client.decide.acknowledgements import LedgerEntry
from anabranch.client.decide.seeking import SeekMove
from anabranch.client.message import Message, Received
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import Seconds, log, seconds
from anabranch.client.schema import Codec
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    SubscriptionNotFoundError,
    in_words,
)
from anabranch.model.ids import MessageId
from anabranch.protocol.pb import pulsar_pb2 as pb

T = TypeVar("T")

Segments = LayoutFollowing | GroupMembership
"""How a consumer finds the segments that it reads."""


class AsyncQueueConsumer(MovableConsumer[T]):
    """Reads all segments in parallel; made by `AsyncClient.subscribe_queue`.

    Example:
        async with AsyncClient("pulsar://127.0.0.1:6650") as client:
            await (await client.create_producer("orders")).send(b"one tea", key="alice")
            consumer = await client.subscribe_queue("orders", "work", initial_position="earliest")
            async with consumer.processing(await consumer.receive(timeout=10)) as message:
                print(message.key)
    """

    def __init__(
        self,
        pool: ConnectionPool,
        schema: Codec[T],
        options: QueueOptions,
        open_dead_letters: OpenDeadLetters,
    ) -> None:
        name = options.name or f"anabranch-queue-{pool.rng.getrandbits(40):010x}"
        super().__init__(pool, schema, name, options.receiver_queue_size, options.bad_entries)
        self.subscription = options.subscription
        self._options = options
        self.retry = options.redelivery
        self.run_order = options.order
        self.use_dead_letters(options.dead_letter, open_dead_letters, options.subscription)
        self._acks_noted = 0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._redelivery = Redelivery(self.loop)
        attachment = replace(options.attachment(pb.CommandSubscribe.Shared, name), priority=options.priority)
        self._segments: Segments = self._choose_segments(attachment)

    def _choose_segments(self, attachment: Attachment) -> Segments:
        return LayoutFollowing(self, self._options.topic, attachment, self._queue_size)

    async def open(self) -> None:
        """Subscribe to the first segments."""
        async with self._close_on_error() as deadline:
            await self._segments.open(deadline)

    # For the application.

    @property
    def topic(self) -> str:
        return self._segments.topic

    async def acknowledge(self, message: Message[T] | MessageId | Iterable[Message[T] | MessageId]) -> None:
        """Acknowledge one message or several; the broker never delivers them again.

        Returns when the acknowledgement is noted; with `ack_receipts` when the broker has made it durable, or
        raises OperationTimeoutError after the operation timeout.
        """
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        for one in (message,) if isinstance(message, (Message, MessageId)) else message:
            source, place, bits, whole = self._locate(one)
            if source is not None:
                self._acknowledge_bits(source, place, bits, whole)
        self._schedule_acks()
        if self._options.ack_receipts:
            await self.flush_acks()

    async def negative_acknowledge(
        self,
        message: Message[T] | MessageId,
        *,
        delay: Seconds | None = None,
        reason: str = "negatively acknowledged",
    ) -> None:
        """Give a message back; it is delivered again after `delay`, by default as `redelivery` says.

        A consumer with `order="key"` keeps the message, and hands it out again before all later messages of
        its key, which wait meanwhile. `reason` is for the dead letter that the message may become.
        """
        wait_s = None if delay is None else seconds("delay", delay, zero=True)
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        source = self._locate(message)[0]
        if source is None:
            return
        if wait_s is None:
            redelivered = message.redelivery_count if isinstance(message, Message) else 0
            wait_s = self._options.redelivery.delay(redelivered, self.pool.rng)
        self._refuse(message, source, wait_s, reason)

    def _refuse(
        self, message: Message[T] | MessageId, source: SegmentConsumer, delay_s: float, reason: str
    ) -> None:
        _, place, bits, _ = self._locate(message)
        self._redelivery.give_back(source, place, bits, delay_s)

    @asynccontextmanager
    async def processing(self, message: Message[T]) -> AsyncIterator[Message[T]]:
        """Acknowledge the message after the block; if the block raises, give it back and raise."""
        try:
            yield message
        except BaseException as error:
            await self.negative_acknowledge(message, reason=in_words(error))
            raise
        await self.acknowledge(message)

    async def flush_acks(self, timeout: Seconds | None = None) -> None:
        """Send grouped acknowledgements and return when the broker has confirmed them.

        Raises OperationTimeoutError after `timeout`, by default the operation timeout; the acknowledgements
        stay noted.
        """
        self._send_acks()
        await self._confirm_acks(timeout)

    async def _move(self, move: SeekMove) -> None:
        await self._segments.move(move)

    async def _delete(self) -> None:
        await self._segments.delete()

    async def _close(self, deadline: Deadline) -> None:
        """Leave the topic; other consumers get the messages that were not acknowledged."""
        self._end_waiting()
        self._redelivery.close()
        self._segments.stop()
        self._send_acks()
        try:
            await self._leave_segments(deadline)
        finally:
            try:
                await self._segments.leave(deadline)
                await self._close_dead_letters(deadline)
            finally:
                await self.tasks.stop()

    # Called by the consumers of segments.

    def reached_end(self, source: SegmentConsumer) -> None:
        self._segments.reached_end(source)

    def attached_again(self, source: SegmentConsumer) -> None:
        self._segments.attached_again(source)

    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        ends = self._segments.is_final(source, error)
        return super().is_final(source, error) if ends is None else ends

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        log.debug("%s: %s", source.topic, error)
        self._segments.gave_up(source, error)
        self._withdraw(source)
        if isinstance(error, SubscriptionNotFoundError):
            self._fail(error)
            self._leave_at_once()
        self.role_refused(error)

    # Acknowledgements.

    def _accept(self, entry: Received) -> bool:
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        source.unacked[entry.position] = source.unacked.get(entry.position, 0) | entry.wanted
        letters = self._dead_letters
        if letters is not None and entry.redelivery_count > letters.policy.max_redeliveries:
            self.tasks.start(self._forward(letters, entry), f"dead letters of {source.topic}")
            return False
        if self._options.processing_s is not None:
            self._redelivery.give_back(source, entry.position, entry.wanted, self._options.processing_s)
        return True

    def _pass_over(self, entry: Received) -> None:
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        source.unacked[entry.position] = source.unacked.get(entry.position, 0) | entry.wanted
        if self._bad.policy == "dead_letter" and self._dead_letters is not None:
            self.tasks.start(self._forward(self._dead_letters, entry), f"bad entries of {source.topic}")
        elif self._bad.policy != "fail":
            self._acknowledge_bits(source, entry.position, entry.wanted, entry.whole)
            self._schedule_acks()

    # For the run.

    def finished(self, message: Message[T]) -> None:
        entry: Received = message._entry
        source = self.sources.get(entry.source.segment_id)
        if source is not None and not self._closed:
            self._acknowledge_bits(source, entry.position, 1 << message._index, entry.whole)
            self._schedule_acks()

    def give_back(self, message: Message[T], delay_s: float) -> bool:
        source, place, bits, _ = self._locate(message)
        if source is not None:
            self._redelivery.give_back(source, place, bits, delay_s)
        return True

    async def _forward(self, letters: DeadLetters, entry: Received) -> None:
        """Send an entry to the dead letter topic and acknowledge it; give it back if sending fails."""
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        try:
            await letters.forward(entry, self.topic)
            self._acknowledge_bits(source, entry.position, entry.wanted, entry.whole)
            self._send_acks()
        except AnabranchError as error:
            log.warning("%s: a dead letter was not forwarded and will come again: %s", self.topic, error)
            delay_s = self._options.redelivery.delay(0, self.pool.rng)
            self._redelivery.give_back(source, entry.position, entry.wanted, delay_s)

    def _locate(
        self, message: Message[T] | MessageId
    ) -> tuple[SegmentConsumer | None, LedgerEntry, int, int]:
        """The segment's consumer, the entry, the message's bit and the bits of the whole entry."""
        if isinstance(message, Message):
            entry: Received = message._entry
            source = self.sources.get(entry.source.segment_id)
            return source, entry.position, 1 << message._index, entry.whole
        source = self.sources.get(message.segment)
        place = (message.ledger, message.entry)
        if message.batch_index < 0:
            # The id stands for the whole entry.
            bits = source.unacked.get(place, 1) if source is not None else 1
            return source, place, bits, bits
        return source, place, 1 << message.batch_index, (1 << max(message.batch_size, 1)) - 1

    def _acknowledge_bits(self, source: SegmentConsumer, place: LedgerEntry, bits: int, whole: int) -> None:
        left = source.unacked.get(place, whole) & ~bits
        if left:
            source.unacked[place] = left
        else:
            source.unacked.pop(place, None)
        source.unhold(place, bits)
        source.acknowledge(place, left)
        self._acks_noted += 1

    def _schedule_acks(self) -> None:
        options = self._options
        if self._acks_noted >= options.ack_group_size or not options.ack_group_s:
            self._send_acks()
        elif self._ack_timer is None and self._acks_noted:
            self._ack_timer = self.loop.call_later(options.ack_group_s, self._send_acks)

    def _send_acks(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self._acks_noted = 0
        for source in self.sources.values():
            source.flush_acks()
        self._segments.progressed()
