"""The queue consumer: all segments of a topic in any order, acknowledged message by message.

It follows the layout and subscribes to every segment, sealed ones too. Messages may be given back, at once or
after a delay; those given back too often go to a dead letter topic where the caller asked for one.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from anabranch.aio import Backoff, is_bare_timeout
from anabranch.client.consume.inbox import Inbox
from anabranch.client.consume.segment_consumer import Attachment, SegmentConsumer
from anabranch.client.decide.acknowledgements import LedgerEntry
from anabranch.client.decide.permits import Permits
from anabranch.client.message import Message, Received
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.layout_watch import LayoutWatch, TopicLayout
from anabranch.client.options import DeadLetter, InitialPosition, Seconds, log, seconds, text_pairs
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.schema import Codec
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConsumerBusyError,
    OperationTimeoutError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from anabranch.model.ids import MessageId
from anabranch.model.layout import Segment
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb

T = TypeVar("T")

PERMITS_MIN = 16
"""Least messages a segment may send ahead, however many segments share the buffer."""

OpenDeadLetters = Callable[[str, str | None], Awaitable[AsyncProducer[bytes]]]
"""Topic and first subscription there -> a producer."""


class AsyncQueueConsumer(Inbox[T]):
    """Reads all segments in parallel; made by `AsyncClient.subscribe_queue`."""

    def __init__(
        self,
        pool: ConnectionPool,
        topic: TopicName,
        subscription: str,
        schema: Codec[T],
        initial_position: InitialPosition,
        name: str | None,
        receiver_queue_size: int,
        ack_group_time: float,
        ack_group_size: int,
        ack_receipts: bool,
        subscription_properties: Mapping[str, str] | None,
        properties: Mapping[str, str] | None,
        priority: int,
        processing_timeout: float | None,
        redelivery: Backoff,
        dead_letter: DeadLetter | None,
        open_dead_letters: OpenDeadLetters,
    ) -> None:
        super().__init__(pool, schema, receiver_queue_size)
        self.subscription = subscription
        self.name = name or f"anabranch-queue-{pool.rng.getrandbits(40):010x}"
        self._given_topic = topic
        start = pb.CommandSubscribe.Earliest if initial_position == "earliest" else pb.CommandSubscribe.Latest
        self._attachment = Attachment(
            subscription,
            pb.CommandSubscribe.Shared,
            self.name,
            start,
            priority=priority,
            properties=text_pairs("properties", properties),
            subscription_properties=text_pairs("subscription_properties", subscription_properties),
        )
        self._ack_group_s = ack_group_time
        self._ack_group_size = ack_group_size
        self._ack_receipts = ack_receipts
        self._acks_noted = 0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._processing_s = processing_timeout
        self._processing: deque[tuple[float, Received, int]] = deque()
        self._processing_timer: asyncio.TimerHandle | None = None
        self._redelivery = redelivery
        self._given_back: list[tuple[float, int, SegmentConsumer, LedgerEntry, int]] = []
        self._redeliver_timer: asyncio.TimerHandle | None = None
        self._given_back_count = 0
        self._dead_letter = dead_letter
        self._open_dead_letters = open_dead_letters
        self._dead_letters: asyncio.Task[AsyncProducer[bytes]] | None = None
        self._sources: dict[int, SegmentConsumer] = {}
        self._finished: dict[int, None] = {}
        self._watch = LayoutWatch(pool, self.tasks, topic, self._layout_changed)
        self._layout: TopicLayout | None = None

    async def open(self) -> None:
        """Look the topic up and subscribe to all its segments."""
        try:
            self._layout = await self._watch.open()
            self._follow(self._layout, self._attachment.initial_position)
            async with asyncio.timeout(self.pool.operation_timeout_s):
                for source in list(self._sources.values()):
                    await asyncio.shield(source.attached)
        except BaseException as error:
            await self.close()
            if is_bare_timeout(error):
                raise OperationTimeoutError(f"subscribing to {self.topic} took too long") from error
            raise

    # What callers see.

    @property
    def topic(self) -> str:
        """The name the broker resolved."""
        return str(self._layout.name if self._layout is not None else self._given_topic)

    async def acknowledge(self, message: Message[T] | MessageId | Iterable[Message[T] | MessageId]) -> None:
        """Acknowledge one message or several; they never come again.

        Returns when it is noted; with `ack_receipts` when the broker has made it durable.
        """
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        if isinstance(message, (Message, MessageId)):
            self._acknowledge(message)
        else:
            for one in message:
                self._acknowledge(one)
        if self._acks_noted >= self._ack_group_size or not self._ack_group_s:
            self._send_acks()
        elif self._ack_timer is None and self._acks_noted:
            self._ack_timer = self.loop.call_later(self._ack_group_s, self._send_acks)
        if self._ack_receipts:
            await self.flush_acks()

    async def negative_acknowledge(
        self, message: Message[T] | MessageId, *, delay: Seconds | None = None
    ) -> None:
        """Give a message back; it comes again after `delay`, by default as `redelivery` says."""
        wait_s = None if delay is None else seconds("delay", delay, zero=True)
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        source, place, bits, _ = self._locate(message)
        if source is None:
            return
        if wait_s is None:
            again = message.redelivery_count if isinstance(message, Message) else 0
            wait_s = self._redelivery.delay(again, self.pool.rng)
        self._give_back(source, place, bits, wait_s)

    @asynccontextmanager
    async def processing(self, message: Message[T]) -> AsyncIterator[Message[T]]:
        """Acknowledge on leaving the block, negatively when it raises; the exception goes on."""
        try:
            yield message
        except BaseException:
            await self.negative_acknowledge(message)
            raise
        await self.acknowledge(message)

    async def flush_acks(self) -> None:
        """Send grouped acknowledgements and return when the broker has confirmed them."""
        self._send_acks()
        for source in list(self._sources.values()):
            await source.acks_done()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Leave the topic; what was received and not acknowledged goes to other consumers."""
        if self._closed:
            return
        self._end_waiting()
        for timer in (self._redeliver_timer, self._processing_timer):
            if timer is not None:
                timer.cancel()
        self._watch.close()
        sources = list(self._sources.values())
        for source in sources:
            source.release()
        try:
            async with asyncio.timeout(self.pool.operation_timeout_s):
                await self.flush_acks()
        except (TimeoutError, AnabranchError) as error:
            log.warning("%s: acknowledgements were not confirmed: %s", self.topic, error)
        await asyncio.gather(*(source.close() for source in sources))
        letters = self._dead_letters
        if letters is not None and letters.done() and not letters.exception():
            await letters.result().close()
        await self.tasks.stop()

    # Segments.

    def _layout_changed(self, layout: TopicLayout) -> None:
        self._layout = layout
        # The subscription exists on segments that are newer than this consumer, with all their messages.
        self._follow(layout, pb.CommandSubscribe.Earliest)

    def _follow(self, layout: TopicLayout, start: pb.CommandSubscribe.InitialPosition.ValueType) -> None:
        if self._failure is not None:
            return
        segments = layout.layout.segments
        share = max(self._queue_size // max(len(segments), 1), min(PERMITS_MIN, self._queue_size))
        for id_ in list(self._sources):
            if id_ not in segments:
                self.tasks.start(self._leave(self._sources.pop(id_)), f"leave segment {id_}")
        self._finished = {id_: None for id_ in self._finished if id_ in segments}
        for id_ in sorted(segments):
            if id_ in self._sources:
                self._sources[id_].resize(share)
                self._sources[id_].owned_by(layout.owners.get(id_))
            elif id_ not in self._finished:
                self._sources[id_] = self._attach(layout, segments[id_], start, share)

    def _attach(
        self,
        layout: TopicLayout,
        segment: Segment,
        start: pb.CommandSubscribe.InitialPosition.ValueType,
        permits: int,
    ) -> SegmentConsumer:
        how = self._attachment
        attachment = Attachment(
            how.subscription,
            how.kind,
            how.consumer_name,
            start,
            priority=how.priority,
            properties=how.properties,
            subscription_properties=how.subscription_properties,
        )
        return SegmentConsumer(
            self,
            segment.id,
            layout.segment_topic(segment),
            attachment,
            Permits(permits),
            url=layout.owners.get(segment.id),
            legacy=segment.is_classic,
        )

    async def _leave(self, source: SegmentConsumer) -> None:
        source.release()
        try:
            async with asyncio.timeout(self.pool.operation_timeout_s):
                await source.acks_done()
        except TimeoutError:
            pass
        await source.close()

    def reached_end(self, source: SegmentConsumer) -> None:
        """A sealed segment is acknowledged to its end on this subscription: nothing will ever come."""
        listed = self._layout.layout.segments.get(source.segment_id) if self._layout is not None else None
        if listed is None or listed.active or source.entries or source.unacked or self._closed:
            return
        if self._sources.pop(source.segment_id, None) is not None:
            self._finished[source.segment_id] = None
            self.tasks.start(self._leave(source), f"leave {source.topic}")

    def attached_again(self, source: SegmentConsumer) -> None:
        """After a seek the segments that were read to their end may have something again."""
        if self._finished and self._layout is not None and not self._closed:
            self._finished.clear()
            self._follow(self._layout, pb.CommandSubscribe.Earliest)

    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        if isinstance(error, (ConsumerBusyError, TopicNotFoundError)):
            # On first use the caller must know; later a segment may be pruned or held for a moment.
            return not source.attached.done() or isinstance(error, TopicNotFoundError)
        return not error.retryable

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        log.debug("%s: %s", source.topic, error)
        if self._sources.get(source.segment_id) is source:
            del self._sources[source.segment_id]
        if isinstance(error, SubscriptionNotFoundError):
            self._fail(error)
            for other in self._sources.values():
                self.tasks.start(other.close(), f"leave {other.topic}")

    # Acknowledgements.

    def _accept(self, entry: Received) -> bool:
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        source.unacked[entry.position] = source.unacked.get(entry.position, 0) | entry.wanted
        if self._dead_letter is not None and entry.redelivery_count > self._dead_letter.max_redeliveries:
            self.tasks.start(self._bury(entry), f"dead letters of {source.topic}")
            return False
        if self._processing_s is not None:
            self._processing.append((self.loop.time() + self._processing_s, entry, entry.wanted))
            if self._processing_timer is None:
                self._processing_timer = self.loop.call_later(self._processing_s, self._overdue)
        return True

    def _locate(
        self, message: Message[T] | MessageId
    ) -> tuple[SegmentConsumer | None, LedgerEntry, int, int]:
        """Segment, entry, bit of the message and bits of the whole entry."""
        if isinstance(message, Message):
            entry: Received = message._entry
            source = self._sources.get(entry.source.segment_id)
            return source, entry.position, 1 << message._index, entry.whole
        source = self._sources.get(message.segment)
        bit = 1 << max(message.batch_index, 0)
        return source, (message.ledger, message.entry), bit, (1 << max(message.batch_size, 1)) - 1

    def _acknowledge(self, message: Message[T] | MessageId) -> None:
        source, place, bits, whole = self._locate(message)
        if source is not None:
            self._acknowledge_bits(source, place, bits, whole)

    def _acknowledge_bits(self, source: SegmentConsumer, place: LedgerEntry, bits: int, whole: int) -> None:
        left = source.unacked.get(place, whole) & ~bits
        if left:
            source.unacked[place] = left
        else:
            source.unacked.pop(place, None)
        source.let_go(place, bits)
        source.acks.add(place, left)
        self._acks_noted += 1

    def _send_acks(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self._acks_noted = 0
        for source in self._sources.values():
            source.flush_acks()

    # Giving back.

    def _give_back(self, source: SegmentConsumer, place: LedgerEntry, bits: int, delay_s: float) -> None:
        self._given_back_count += 1
        due_at = self.loop.time() + delay_s
        heapq.heappush(self._given_back, (due_at, self._given_back_count, source, place, bits))
        self._schedule_redelivery()

    def _schedule_redelivery(self) -> None:
        if not self._given_back or self._closed:
            return
        due_at = self._given_back[0][0]
        if self._redeliver_timer is not None:
            if self._redeliver_timer.when() <= due_at:
                return
            self._redeliver_timer.cancel()
        self._redeliver_timer = self.loop.call_at(due_at, self._redeliver)

    def _redeliver(self) -> None:
        self._redeliver_timer = None
        now = self.loop.time()
        asked: dict[SegmentConsumer, dict[LedgerEntry, None]] = {}
        while self._given_back and self._given_back[0][0] <= now:
            _, _, source, place, bits = heapq.heappop(self._given_back)
            if source.held.get(place, 0) & bits:
                source.let_go(place, bits)
                asked.setdefault(source, {})[place] = None
        for source, places in asked.items():
            # Acknowledged neighbours in the same entries must not come again.
            source.flush_acks()
            source.redeliver(list(places))
        self._schedule_redelivery()

    def _overdue(self) -> None:
        """Give back what was not acknowledged within the processing time."""
        self._processing_timer = None
        now = self.loop.time()
        while self._processing and self._processing[0][0] <= now:
            _, entry, bits = self._processing.popleft()
            source: SegmentConsumer = entry.source  # type: ignore[assignment]
            left = source.held.get(entry.position, 0) & bits
            if left:
                self._give_back(source, entry.position, left, 0.0)
        if self._processing and not self._closed:
            self._processing_timer = self.loop.call_at(self._processing[0][0], self._overdue)

    # Dead letters.

    async def _bury(self, entry: Received) -> None:
        """Send an entry's messages to the dead letter topic, then acknowledge them; else they come again."""
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        try:
            producer = await asyncio.shield(self._dead_letter_producer())
            for index in entry.wanted_indexes():
                message: Message[Any] = Message(entry, index, 0)
                properties = {
                    **message.properties,
                    "REAL_TOPIC": self.topic,
                    "REAL_SUBSCRIPTION": self.subscription,
                    "ORIGIN_MESSAGE_ID": str(message.id),
                }
                await producer.send(
                    message.data,
                    key=message.key_bytes,
                    properties=properties,
                    event_time=message.event_time,
                )
            self._acknowledge_bits(source, entry.position, entry.wanted, entry.whole)
            self._send_acks()
        except AnabranchError as error:
            log.warning("%s: a dead letter was not forwarded and will come again: %s", self.topic, error)
            delay_s = self._redelivery.delay(0, self.pool.rng)
            self._give_back(source, entry.position, entry.wanted, delay_s)

    def _dead_letter_producer(self) -> asyncio.Task[AsyncProducer[bytes]]:
        assert self._dead_letter is not None
        opening = self._dead_letters
        if opening is None or (opening.done() and opening.exception() is not None):
            topic = self._dead_letter.topic or f"{self.topic}-DLQ"
            opening = self.tasks.start(self._open_producer(topic), f"dead letters to {topic}", awaited=True)
            self._dead_letters = opening
        return opening

    async def _open_producer(self, topic: str) -> AsyncProducer[bytes]:
        assert self._dead_letter is not None
        return await self._open_dead_letters(topic, self._dead_letter.initial_subscription)
