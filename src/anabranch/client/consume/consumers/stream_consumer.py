"""The stream consumer: its share of a topic in key order, acknowledged cumulatively.

It is a member of its subscription's group, whose leader assigns segments to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from anabranch.client.consume.acknowledgements.cumulative_acks import CumulativeAcks, drop_acknowledged
from anabranch.client.consume.acknowledgements.given_back import id_of
from anabranch.client.consume.alarm import Alarm
from anabranch.client.consume.consumers.moving import MovableConsumer
from anabranch.client.consume.failures.letters import OpenLetters
from anabranch.client.consume.segments.attachment import Attachment, SegmentAddress, StreamOptions
from anabranch.client.consume.segments.classic_share import ClassicShare, open_share
from anabranch.client.consume.segments.group_membership import GroupMembership
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.connecting.refused_roles import is_refused_role
from anabranch.client.decide.consuming.permits import Permits
from anabranch.client.decide.consuming.seeking import SeekMove
from anabranch.client.message import Message
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import Seconds, log
from anabranch.client.received import Received
from anabranch.client.schema import Codec
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
)
from anabranch.model.ids import MessageId
from anabranch.protocol.pb import pulsar_pb2 as pb

T = TypeVar("T")

_number_of: Callable[[Message[Any]], int] = attrgetter("_number")

CAUGHT_UP_ACK_S = 0.005
"""Longest wait of an acknowledgement when no message is left: the segment's next reader may wait for it."""


class AsyncStreamConsumer(MovableConsumer[T]):
    """Reads a share of a topic in key order; made by `AsyncClient.subscribe_stream`.

    Example:
        async with AsyncClient("pulsar://127.0.0.1:6650") as client:
            await (await client.create_producer("orders")).send(b"one tea", key="alice")
            consumer = await client.subscribe_stream("orders", "billing", initial_position="earliest")
            async for message in consumer:
                await consumer.acknowledge_cumulative(message)
                break
    """

    def __init__(
        self,
        pool: ConnectionPool,
        schema: Codec[T],
        options: StreamOptions,
        open_letters: OpenLetters,
    ) -> None:
        name = options.name or f"anabranch-stream-{pool.rng.getrandbits(40):010x}"
        super().__init__(pool, schema, name, options)
        self.subscription = options.subscription
        self._options = options
        self._use_letters(options, open_letters)
        self._acked = 0
        """The application has acknowledged all messages up to this number."""
        self._ack_alarm = Alarm(self._loop, self._send_acks)
        self._acks = CumulativeAcks(self._sources)
        attachment = options.attachment(pb.CommandSubscribe.Exclusive, name)
        self._notes_acks = self._interceptors is None and not options.ack_receipts
        membership = GroupMembership(self, options, attachment, options.on_assignment)
        self._membership: GroupMembership | ClassicShare = membership

    async def _open(self) -> None:
        """Register, and subscribe to the first assigned segments."""
        async with self._close_on_error() as deadline:
            await open_share(self._membership, deadline, self._use_classic)

    def _use_classic(self) -> ClassicShare:
        self._membership = share = ClassicShare(self, self._membership, self._options, self._queue_size)
        return share

    def _use_share(self, share: GroupMembership) -> None:
        self._membership = share

    # For the application.

    @property
    def topic(self) -> str:
        return self._membership.topic

    @property
    def assignment(self) -> tuple[str, ...]:
        """Names of the segments this consumer reads now."""
        return self._membership.assignment

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of assigned segments that this consumer cannot read yet: other consumers hold them."""
        return self._membership.awaited

    async def acknowledge_cumulative(self, message: Message[T] | MessageId) -> None:
        """Acknowledge everything handed out up to a message, in every segment.

        Returns when the acknowledgement is noted; with `ack_receipts` when the broker has made it durable, or
        raises OperationTimeoutError after the operation timeout.
        """
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        if isinstance(message, Message) and message._entry.source.home is self:
            if message._number > self._acked:
                self._acked = message._number
        else:
            self._acks.acknowledge_id(id_of(message, self._given_topic))
        if self._interceptors is not None:
            self._interceptors.acknowledged(message)
        if not self._run or self._ack_alarm.at == math.inf:
            # While messages are left, a group that waits already is due before a new one would be.
            self._schedule_acks()
        if self._options.ack_receipts:
            await self.flush_acks()

    def _note(self, messages: Sequence[Message[T]]) -> None:
        """Acknowledge everything handed out up to the last of these messages of this consumer."""
        if messages and not self._closed:
            self._acked = max(self._acked, max(map(_number_of, messages)))
            self._schedule_acks()

    async def flush_acks(self, timeout: Seconds | None = None) -> None:
        """Send grouped acknowledgements and return when the broker has confirmed them.

        Raises OperationTimeoutError after `timeout`, by default the operation timeout; the acknowledgements
        stay noted. Raises ConsumerBusyError when the leader gave a segment to another consumer, which gets
        its messages again, and the same error as `receive` when this consumer has lost its registration.
        """
        self._send_acks()
        await self._confirm_acks(timeout)
        self._acks.raise_unconfirmed(self._acked)

    async def _acks_confirmed(self) -> None:
        await super()._acks_confirmed()
        if self._closed:
            self._acks.raise_unconfirmed(self._acked)

    async def _move(self, move: SeekMove) -> None:
        await self._membership.move(move)

    async def _delete(self) -> None:
        await self._membership.delete()

    async def _close(self, deadline: Deadline) -> None:
        """Leave the subscription; messages that the application did not acknowledge stay unacknowledged."""
        self._end_waiting()
        self._membership.stop()
        self._send_acks()
        try:
            await self._leave_segments(deadline)
        finally:
            try:
                await self._membership.leave(deadline)
                await self._close_letters(deadline)
            finally:
                await self._tasks.stop()

    # For the membership.

    def _consume(self, address: SegmentAddress, attachment: Attachment) -> SegmentConsumer:
        return SegmentConsumer(self, address, attachment, Permits(self._queue_size, grows=self._grows))

    def _has_messages_of(self, source: SegmentConsumer) -> bool:
        return bool(source.outstanding)

    def _left(self, source: SegmentConsumer, why: str | None) -> None:
        self._acks.forget(source, why)

    def _refused(self, error: AnabranchError) -> None:
        super()._refused(error)
        self._membership.lose_all()
        self._leave_at_once()

    # Called by the consumers of segments.

    def _attached_again(self, source: SegmentConsumer) -> None:
        self._membership.attached_again(source)

    def _is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        ends = self._membership.is_final(source, error)
        return super()._is_final(source, error) if ends is None else ends

    def _gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        log.debug("%s: %s", source.topic, error)
        self._membership.gave_up(source, error)
        self._withdraw(source)
        if is_refused_role(error):
            self._refused(error)
        elif source.released:
            # The leader may have assigned the segment again, with other buckets.
            self._membership.reconcile()

    def _voided(self, source: SegmentConsumer) -> None:
        super()._voided(source)
        self._acks.forget(source, "the broker has moved the subscription, or another consumer reads there")
        # A hand-over under way has nothing to wait for after the segment's consumer has cleared its entries.
        self._loop.call_soon(self._membership.progressed)

    def _dropped(self, source: SegmentConsumer) -> None:
        super()._dropped(source)
        drop_acknowledged(source)

    def _active_changed(self, source: SegmentConsumer) -> None:
        super()._active_changed(source)
        drop_acknowledged(source)
        self._membership.active_changed(source)

    def _vector(self, number: int) -> tuple[tuple[int, MessageId], ...]:
        return self._acks.vector(number)

    # Acknowledgements.

    def _accept(self, entry: Received) -> bool:
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        # Entries whose acknowledgement waits for its group would keep their decoded messages.
        self._acks.acknowledge(source, self._acked, whole=True)
        source.outstanding.append(entry)
        return True

    def _pass_over(self, entry: Received) -> None:
        self._accept(entry)
        self._schedule_acks()

    def _park(self, message: Message[T], reason: str) -> bool:
        parked = super()._park(message, reason)
        if parked:
            drop_acknowledged(self._sources[message._entry.source.segment_id])
            self._membership.progressed()
        return parked

    def _finished(self, message: Message[T]) -> None:
        entry: Received = message._entry
        entry.finished |= 1 << message._index
        if self._interceptors is not None:
            self._interceptors.acknowledged(message)
        if self._closed:
            return
        if self._ack_alarm.at == math.inf or self._running is None or not self._running.held:
            self._schedule_acks()

    def _schedule_acks(self) -> None:
        delay_s = self._options.ack_group_s
        if not self._run and not self._line and (self._running is None or not self._running.held):
            delay_s = min(delay_s, CAUGHT_UP_ACK_S)
        self._ack_alarm.set(self._loop.time() + delay_s)

    def _send_acks(self) -> None:
        self._ack_alarm.cancel()
        for source in self._sources.values():
            self._acks.acknowledge(source, self._acked)
            if self._running is not None:
                self._acks.acknowledge_finished(source)
            source.flush_acks()
        self._membership.progressed()
