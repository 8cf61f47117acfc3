"""The stream consumer: its share of a topic in key order, acknowledged cumulatively.

The leader of the topic says which segments to read and pushes changes. A segment that is taken away is given
up only when everything handed out of it is acknowledged, so that its next reader cannot overtake. An
acknowledgement covers what was handed out up to its message, in every segment: messages carry numbers in the
order they left, and the numbers are turned into positions when acknowledgements are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from anabranch.aio import is_bare_timeout
from anabranch.client.consume.inbox import Inbox, owner
from anabranch.client.consume.segment_consumer import Attachment, SegmentConsumer
from anabranch.client.decide.ordering import covers
from anabranch.client.decide.permits import Permits
from anabranch.client.message import Message, Received
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.registration import Registration
from anabranch.client.options import InitialPosition, log, text_pairs
from anabranch.client.schema import Codec
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConsumerAssignError,
    ConsumerBusyError,
    OperationTimeoutError,
    TopicNotFoundError,
)
from anabranch.model.assignment import UNCOUNTED, AssignedSegment, Assignment
from anabranch.model.ids import MessageId
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb

T = TypeVar("T")

CAUGHT_UP_ACK_S = 0.005
"""Longest wait of an acknowledgement when nothing is left to hand out: a successor may be waiting for it."""

HAND_OVER_WARNING_S = 10.0

OnAssignment = Callable[[tuple[str, ...], tuple[str, ...]], None]
"""Called with the segments added and removed."""


class AsyncStreamConsumer(Inbox[T]):
    """Reads a share of a topic in key order; made by `AsyncClient.subscribe_stream`."""

    def __init__(
        self,
        pool: ConnectionPool,
        topic: TopicName,
        subscription: str,
        schema: Codec[T],
        initial_position: InitialPosition,
        name: str | None,
        receiver_queue_size: int | None,
        ack_group_time: float,
        ack_receipts: bool,
        subscription_properties: Mapping[str, str] | None,
        properties: Mapping[str, str] | None,
        on_assignment: OnAssignment | None,
    ) -> None:
        super().__init__(pool, schema, receiver_queue_size)
        self.subscription = subscription
        self.name = name or f"anabranch-stream-{pool.rng.getrandbits(40):010x}"
        """The consumer's identity: coming back under it within the grace time brings the same share."""
        start = pb.CommandSubscribe.Earliest if initial_position == "earliest" else pb.CommandSubscribe.Latest
        self._attachment = Attachment(
            subscription,
            pb.CommandSubscribe.Exclusive,
            self.name,
            start,
            properties=text_pairs("properties", properties),
            subscription_properties=text_pairs("subscription_properties", subscription_properties),
        )
        self._ack_group_s = ack_group_time
        self._ack_receipts = ack_receipts
        self._acked = 0
        """Everything handed out up to this number is acknowledged by the application."""
        self._ack_timer: asyncio.TimerHandle | None = None
        self._sources: dict[int, SegmentConsumer] = {}
        self._wanted: dict[int, AssignedSegment] = {}
        self._generation: int | None = None
        self._releases: dict[int, asyncio.Task[Any]] = {}
        self._ack_listeners: list[asyncio.Future[None]] = []
        self._last_acked: dict[int, MessageId] = {}
        self._taken_over: list[tuple[int, ConsumerBusyError]] = []
        """Segments another reads by now: the first number that was not confirmed there, and what to say."""
        self._on_assignment = on_assignment
        self._registration = Registration(
            pool,
            self.tasks,
            topic,
            subscription,
            self.name,
            start,
            pb.STREAM,
            self._assigned,
            self._refused,
        )

    async def open(self) -> None:
        """Register, and attach to the first share."""
        try:
            await self._registration.open()
            async with asyncio.timeout(self.pool.operation_timeout_s):
                for source in list(self._sources.values()):
                    await self._attached(source)
        except BaseException as error:
            await self.close()
            if is_bare_timeout(error):
                raise OperationTimeoutError(
                    f"the segments of {self.topic} are not free: who reads them has messages to acknowledge"
                ) from error
            raise

    @staticmethod
    async def _attached(source: SegmentConsumer) -> None:
        try:
            await asyncio.shield(source.attached)
        except AnabranchError as error:
            # While this waited the segment may have gone to another consumer, be shared from now on, or be
            # pruned.
            if not source.released and not isinstance(error, TopicNotFoundError):
                raise

    # What callers see.

    @property
    def topic(self) -> str:
        """The name the broker resolved."""
        return str(self._registration.resolved)

    @property
    def assignment(self) -> tuple[str, ...]:
        """Names of the segments this consumer reads now."""
        return tuple(source.topic for source in self._sources.values() if not source.released)

    async def acknowledge_cumulative(self, message: Message[T] | MessageId) -> None:
        """Acknowledge everything handed out up to a message, in every segment.

        Returns when it is noted; with `ack_receipts` when the broker has made it durable.
        """
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        if isinstance(message, Message) and owner(message) is self:
            if message._number > self._acked:
                self._acked = message._number
        else:
            self._acknowledge_id(message.id if isinstance(message, Message) else message)
        self._schedule_acks()
        if self._ack_receipts:
            await self.flush_acks()

    async def flush_acks(self) -> None:
        """Send grouped acknowledgements and return when the broker has confirmed them.

        ConsumerBusyError when some cannot be confirmed any more, because another consumer was given their
        segment while this one was away; their messages come again there. When this consumer has no place any
        more, what receiving raises.
        """
        self._send_acks()
        for source in list(self._sources.values()):
            await source.acks_done()
        if self._failure is not None:
            raise self._failure
        lost = [error for number, error in self._taken_over if number <= self._acked]
        self._taken_over = [entry for entry in self._taken_over if entry[0] > self._acked]
        if lost:
            raise lost[0]

    async def close(self) -> None:
        """Leave the subscription; nothing is acknowledged that the application did not acknowledge."""
        if self._closed:
            return
        self._end_waiting()
        for release in self._releases.values():
            release.cancel()
        sources = list(self._sources.values())
        for source in sources:
            source.release()
        try:
            async with asyncio.timeout(self.pool.operation_timeout_s):
                await self.flush_acks()
        except (TimeoutError, AnabranchError) as error:
            log.warning("%s: acknowledgements were not confirmed: %s", self.topic, error)
        await asyncio.gather(*(source.close() for source in sources))
        await self._registration.leave()
        await self.tasks.stop()

    # Assignments.

    def _assigned(self, assignment: Assignment) -> None:
        if self._closed:
            return
        before = set(self._wanted)
        self._wanted = {segment.segment_id: segment for segment in assignment.segments}
        self._generation = assignment.generation if assignment.generation != UNCOUNTED else None
        self.opened_in = self._registration.opened_in
        names = {segment.segment_id: segment.topic for segment in assignment.segments}
        removed = tuple(
            self._sources[id_].topic for id_ in sorted(before) if id_ not in names and id_ in self._sources
        )
        self._reconcile()
        added = tuple(topic for id_, topic in names.items() if id_ not in before)
        if self._on_assignment is not None and (added or removed):
            try:
                self._on_assignment(added, removed)
            except Exception:
                # The caller's mistake must not cost it the connection.
                log.exception("on_assignment failed")

    def _refused(self, error: AnabranchError) -> None:
        """This consumer has no place any more: what it held is for others, at once."""
        self._fail(error)
        self._wanted = {}
        for release in self._releases.values():
            release.cancel()
        for source in self._sources.values():
            source.release()
            self.tasks.start(source.close(), f"leave {source.topic}")

    def _reconcile(self) -> None:
        """Attach to what is assigned, give up what is not; both at their own pace."""
        for id_, source in list(self._sources.items()):
            wanted = self._wanted.get(id_)
            kept = wanted is not None and wanted.bucket_ranges == source.attachment.bucket_ranges
            if kept and not source.released:
                source.renew(self._generation)
            elif id_ not in self._releases:
                source.release()
                self._releases[id_] = self.tasks.start(self._hand_over(source), f"hand over {source.topic}")
        for id_, segment in self._wanted.items():
            if id_ not in self._sources:
                self._sources[id_] = self._attach(segment)

    def _attach(self, segment: AssignedSegment) -> SegmentConsumer:
        shared = bool(segment.bucket_ranges)
        attachment = replace(
            self._attachment,
            kind=pb.CommandSubscribe.Key_Shared if shared else pb.CommandSubscribe.Exclusive,
            bucket_ranges=segment.bucket_ranges,
            generation=self._generation,
        )
        legacy = segment.topic.startswith("persistent://")
        return SegmentConsumer(
            self,
            segment.segment_id,
            segment.topic,
            attachment,
            Permits(self._queue_size, grows=self._grows),
            legacy=legacy,
        )

    async def _hand_over(self, source: SegmentConsumer) -> None:
        """Wait until the application has acknowledged what it was given, then let the segment go."""
        self._send_acks()
        while source.outstanding:
            if not await self._acks_sent(HAND_OVER_WARNING_S):
                log.warning("%s: messages must be acknowledged before it can be handed over", source.topic)
        await source.acks_done()
        await source.close()
        self._forget(source)
        self._reconcile()

    async def _acks_sent(self, timeout_s: float) -> bool:
        """Wait until acknowledgements were sent; False when none were for so long."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._ack_listeners.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        return True

    def _forget(self, source: SegmentConsumer) -> None:
        self._releases.pop(source.segment_id, None)
        if self._sources.get(source.segment_id) is source:
            del self._sources[source.segment_id]
        self._last_acked.pop(source.segment_id, None)

    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        if isinstance(error, (ConsumerBusyError, ConsumerAssignError)):
            # A segment that was given up and is already another's cannot take acknowledgements any more.
            return source.released
        if isinstance(error, TopicNotFoundError):
            return True
        return not error.retryable

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        log.debug("%s: %s", source.topic, error)
        release = self._releases.get(source.segment_id)
        if release is not None:
            release.cancel()
        self._note_unconfirmed(source, str(error))
        self._forget(source)
        if source.released:
            # It may be wanted again by now, in another way than it was held.
            self._reconcile()

    def voided(self, source: SegmentConsumer) -> None:
        self._note_unconfirmed(source, "the broker has moved the subscription, or another reads there")
        self._last_acked.pop(source.segment_id, None)
        self.loop.call_soon(self._wake_ack_listeners)

    def _note_unconfirmed(self, source: SegmentConsumer, why: str) -> None:
        if not source.acks.confirmed or source.outstanding:
            first = source.outstanding[0].first_number if source.acks.confirmed else 0
            error = ConsumerBusyError(f"acknowledgements of {source.topic} are not confirmed: {why}")
            self._taken_over.append((first, error))

    # Acknowledgements.

    def _accept(self, entry: Received) -> bool:
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        source.outstanding.append(entry)
        return True

    def dropped(self, source: SegmentConsumer) -> None:
        super().dropped(source)
        if source.outstanding and not source.outstanding[-1].wanted:
            source.outstanding.pop()

    def _schedule_acks(self) -> None:
        caught_up = not self._run and not self._line
        delay_s = min(self._ack_group_s, CAUGHT_UP_ACK_S) if caught_up else self._ack_group_s
        due_at = self.loop.time() + delay_s
        if self._ack_timer is not None:
            if self._ack_timer.when() <= due_at:
                return
            self._ack_timer.cancel()
        self._ack_timer = self.loop.call_at(due_at, self._send_acks)

    def _send_acks(self) -> None:
        """Turn what the application acknowledged into acknowledgements of each segment, and send them."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        for source in self._sources.values():
            self._acknowledge_source(source)
            source.flush_acks()
        self._wake_ack_listeners()

    def _wake_ack_listeners(self) -> None:
        listeners, self._ack_listeners = self._ack_listeners, []
        for listener in listeners:
            if not listener.done():
                listener.set_result(None)

    def _acknowledge_source(self, source: SegmentConsumer) -> None:
        outstanding = source.outstanding
        acked = self._acked
        while outstanding and outstanding[0].first_number <= acked:
            entry = outstanding[0]
            count = entry.wanted.bit_count()
            done = min(acked - entry.first_number + 1, count)
            if done == count:
                outstanding.popleft()
                bits = entry.wanted
            else:
                bits = 0
                for index in list(entry.wanted_indexes())[:done]:
                    bits |= 1 << index
            self._acknowledge_bits(source, entry, bits)
            if done < count:
                # The rest of the entry stays; it is as if it began with its first pending message.
                entry.wanted &= ~bits
                entry.first_number += done
                return

    def _acknowledge_bits(self, source: SegmentConsumer, entry: Received, bits: int) -> None:
        source.let_go(entry.position, bits)
        ledger, position = entry.position
        if source.attachment.bucket_ranges:
            source.acks.add(entry.position, entry.whole & ~bits)
        else:
            last = bits.bit_length()
            source.acks.add_up_to(ledger, position, entry.whole >> last << last)
        index = bits.bit_length() - 1 if entry.batch_size else -1
        self._last_acked[source.segment_id] = MessageId(
            source.segment_id, ledger, position, index, entry.batch_size
        )

    def _acknowledge_id(self, id_: MessageId) -> None:
        """Acknowledge by an id that was kept; its vector says how far each segment is."""
        for segment, position in id_.vector or ((id_.segment, id_),):
            source = self._sources.get(segment)
            if source is None:
                continue
            kept: list[Received] = []
            for entry in source.outstanding:
                bits = 0
                for index in entry.wanted_indexes():
                    if covers(position, *entry.position, index):
                        bits |= 1 << index
                if bits:
                    self._acknowledge_bits(source, entry, bits)
                    entry.first_number += bits.bit_count()
                    entry.wanted &= ~bits
                if entry.wanted:
                    kept.append(entry)
            source.outstanding.clear()
            source.outstanding.extend(kept)

    def vector(self, number: int) -> tuple[tuple[int, MessageId], ...]:
        """The last message of each segment that had been handed out when message `number` was."""
        found: list[tuple[int, MessageId]] = []
        for id_, source in sorted(self._sources.items()):
            last = self._last_acked.get(id_)
            for entry in source.outstanding:
                if entry.first_number > number:
                    break
                ahead = min(number - entry.first_number + 1, entry.wanted.bit_count())
                index = list(entry.wanted_indexes())[ahead - 1] if entry.batch_size else -1
                ledger, position = entry.position
                last = MessageId(id_, ledger, position, index, entry.batch_size)
            if last is not None:
                found.append((id_, last))
        return tuple(found)
