"""The stream consumer: its share of a topic in key order, acknowledged cumulatively.

The leader of the topic assigns segments and pushes changes. The consumer gives up a segment only after the
application has acknowledged all messages handed out of it, so that the next reader cannot overtake.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, TypeVar

from anabranch.client.consume.attachment import SegmentAddress, StreamOptions
from anabranch.client.consume.cumulative_acks import CumulativeAcks
from anabranch.client.consume.inbox import Inbox
from anabranch.client.consume.segment_consumer import SegmentConsumer
from anabranch.client.decide.permits import Permits
from anabranch.client.decide.refused_roles import is_refused_role
from anabranch.client.message import Message, Received
from anabranch.client.net.closing import Deadline, farewell
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.registration import Registration, RegistrationOptions
from anabranch.client.options import Seconds, log
from anabranch.client.schema import Codec
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConsumerAssignError,
    ConsumerBusyError,
    TopicNotFoundError,
)
from anabranch.model.assignment import UNCOUNTED, AssignedSegment, Assignment
from anabranch.model.ids import MessageId
from anabranch.protocol.pb import pulsar_pb2 as pb

T = TypeVar("T")

CAUGHT_UP_ACK_S = 0.005
"""Longest wait of an acknowledgement when no message is left: the segment's next reader may wait for it."""

HAND_OVER_WARNING_S = 10.0


class AsyncStreamConsumer(Inbox[T]):
    """Reads a share of a topic in key order; made by `AsyncClient.subscribe_stream`."""

    def __init__(self, pool: ConnectionPool, schema: Codec[T], options: StreamOptions) -> None:
        name = options.name or f"anabranch-stream-{pool.rng.getrandbits(40):010x}"
        super().__init__(pool, schema, name, options.receiver_queue_size, options.bad_entries)
        self.subscription = options.subscription
        self._options = options
        self._attachment = options.attachment(pb.CommandSubscribe.Exclusive, name)
        self._acked = 0
        """The application has acknowledged all messages up to this number."""
        self._ack_timer: asyncio.TimerHandle | None = None
        self._acks_sent = asyncio.Event()
        self._acks = CumulativeAcks(self.sources)
        self._assignment: dict[int, AssignedSegment] = {}
        self._generation: int | None = None
        self._hand_overs: dict[int, asyncio.Task[Any]] = {}
        start = self._attachment.initial_position
        request = RegistrationOptions(options.topic, options.subscription, name, pb.STREAM, start)
        self._registration = Registration(pool, request, self._assigned, self._refused)

    async def open(self) -> None:
        """Register, and subscribe to the first assigned segments."""
        async with self._close_on_error() as deadline:
            await self._registration.open(self.tasks, deadline.left_s)
            await self._first_answers(deadline, self._answered)

    @staticmethod
    async def _answered(source: SegmentConsumer) -> None:
        try:
            await source.first_answer.any()
        except AnabranchError as error:
            # Meanwhile the leader may have given the segment to another consumer, or retention removed it.
            if not source.released and not isinstance(error, TopicNotFoundError):
                raise

    # For the application.

    @property
    def topic(self) -> str:
        return str(self._registration.resolved)

    @property
    def assignment(self) -> tuple[str, ...]:
        """Names of the segments this consumer reads now."""
        return tuple(
            source.topic
            for source in self.sources.values()
            if source.first_answer.accepted and not source.released
        )

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of assigned segments that this consumer cannot read yet: other consumers hold them."""
        return tuple(
            source.topic
            for source in self.sources.values()
            if not (source.first_answer.accepted or source.released)
        )

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
            self._acks.acknowledge_id(message.id if isinstance(message, Message) else message)
        self._schedule_acks()
        if self._options.ack_receipts:
            await self.flush_acks()

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

    async def _close(self, deadline: Deadline) -> None:
        """Leave the subscription; messages that the application did not acknowledge stay unacknowledged."""
        self._end_waiting()
        for hand_over in self._hand_overs.values():
            hand_over.cancel()
        self._send_acks()
        try:
            await self._leave_segments(deadline)
        finally:
            try:
                await farewell([self._registration.hang_up()], deadline)
            finally:
                await self.tasks.stop()

    # Assignments.

    def _assigned(self, assignment: Assignment) -> None:
        if self._closed:
            return
        before = set(self._assignment)
        self._assignment = {segment.segment_id: segment for segment in assignment.segments}
        self._generation = assignment.generation if assignment.generation != UNCOUNTED else None
        self.opened_in = self._registration.opened_in
        gone = before - self._assignment.keys()
        removed = tuple(self.sources[id_].topic for id_ in sorted(gone) if id_ in self.sources)
        self._reconcile()
        added = tuple(segment.topic for id_, segment in self._assignment.items() if id_ not in before)
        if self._options.on_assignment is not None and (added or removed):
            try:
                self._options.on_assignment(added, removed)
            except Exception:
                # An error in the application's callback must not end the connection.
                log.exception("on_assignment failed")

    def _refused(self, error: AnabranchError) -> None:
        """The leader refused this consumer for good: other consumers get its segments at once."""
        super()._refused(error)
        self._assignment = {}
        for hand_over in self._hand_overs.values():
            hand_over.cancel()
        for source in self.sources.values():
            source.release()
        self._leave_at_once()

    def _reconcile(self) -> None:
        """Subscribe to assigned segments, and begin to hand over the others."""
        for id_, source in list(self.sources.items()):
            assigned = self._assignment.get(id_)
            kept = assigned is not None and assigned.bucket_ranges == source.attachment.bucket_ranges
            if kept and not source.released:
                source.renew(self._generation)
            elif id_ not in self._hand_overs:
                source.release()
                self._hand_overs[id_] = self.tasks.start(self._hand_over(source), f"hand over {source.topic}")
        for id_, segment in self._assignment.items():
            if id_ not in self.sources:
                self.sources[id_] = self._attach(segment)

    def _attach(self, segment: AssignedSegment) -> SegmentConsumer:
        shared = bool(segment.bucket_ranges)
        attachment = replace(
            self._attachment,
            kind=pb.CommandSubscribe.Key_Shared if shared else pb.CommandSubscribe.Exclusive,
            bucket_ranges=segment.bucket_ranges,
            generation=self._generation,
        )
        is_classic = segment.topic.startswith("persistent://")
        address = SegmentAddress(segment.segment_id, segment.topic, is_classic)
        return SegmentConsumer(self, address, attachment, Permits(self._queue_size, grows=self._grows))

    async def _hand_over(self, source: SegmentConsumer) -> None:
        """Wait until the application has acknowledged the segment's messages, then leave the segment."""
        self._send_acks()
        warning = self.loop.call_later(
            HAND_OVER_WARNING_S,
            log.warning,
            "%s: acknowledge its messages so that another consumer can read it",
            source.topic,
        )
        try:
            while source.outstanding:
                self._acks_sent.clear()
                await self._acks_sent.wait()
        finally:
            warning.cancel()
        await source.acks_confirmed()
        await source.close()
        self._forget(source)
        self._reconcile()

    def _forget(self, source: SegmentConsumer, why: str | None = None) -> None:
        self._hand_overs.pop(source.segment_id, None)
        if self.sources.get(source.segment_id) is source:
            del self.sources[source.segment_id]
        self._acks.forget(source, why)

    # Called by the consumers of segments.

    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        if isinstance(error, (ConsumerBusyError, ConsumerAssignError)):
            # A released segment that another consumer reads cannot take acknowledgements any more.
            return source.released
        return super().is_final(source, error)

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        log.debug("%s: %s", source.topic, error)
        hand_over = self._hand_overs.get(source.segment_id)
        if hand_over is not None:
            hand_over.cancel()
        self._forget(source, str(error))
        if is_refused_role(error):
            self._refused(error)
            return
        if source.released:
            # The leader may have assigned the segment again, with other buckets.
            self._reconcile()

    def voided(self, source: SegmentConsumer) -> None:
        self._acks.forget(source, "the broker has moved the subscription, or another consumer reads there")
        # A hand-over under way has nothing to wait for after the segment's consumer has cleared its entries.
        self.loop.call_soon(self._acks_sent.set)

    def dropped(self, source: SegmentConsumer) -> None:
        super().dropped(source)
        if source.outstanding and not source.outstanding[-1].wanted:
            source.outstanding.pop()

    def vector(self, number: int) -> tuple[tuple[int, MessageId], ...]:
        return self._acks.vector(number)

    # Acknowledgements.

    def _accept(self, entry: Received) -> bool:
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        source.outstanding.append(entry)
        return True

    def _pass_over(self, entry: Received) -> None:
        self._accept(entry)
        self._schedule_acks()

    def _schedule_acks(self) -> None:
        delay_s = self._options.ack_group_s
        if not self._run and not self._line:
            delay_s = min(delay_s, CAUGHT_UP_ACK_S)
        due_at = self.loop.time() + delay_s
        if self._ack_timer is not None:
            if self._ack_timer.when() <= due_at:
                return
            self._ack_timer.cancel()
        self._ack_timer = self.loop.call_at(due_at, self._send_acks)

    def _send_acks(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        for source in self.sources.values():
            self._acks.acknowledge(source, self._acked)
            source.flush_acks()
        self._acks_sent.set()
