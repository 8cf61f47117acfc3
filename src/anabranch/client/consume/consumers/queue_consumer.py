"""The queue consumer: all segments of a topic in any order, acknowledged message by message.

It follows the layout and subscribes to every segment, including sealed ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from anabranch.arguments import check_text
from anabranch.client.consume.acknowledgements.single_acks import AcknowledgingConsumer
from anabranch.client.consume.failures.letters import DeadLetters, OpenLetters
from anabranch.client.consume.failures.redelivery import Redelivery
from anabranch.client.consume.segments.attachment import Attachment, QueueOptions
from anabranch.client.consume.segments.group_membership import GroupMembership
from anabranch.client.consume.segments.layout_following import LayoutFollowing
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.consuming.seeking import SeekMove
from anabranch.client.message import Message
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import Seconds, log, seconds
from anabranch.client.received import Received
from anabranch.client.schema import Codec
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    InvalidConfigurationError,
    SubscriptionNotFoundError,
    in_words,
)
from anabranch.model.ids import MessageId
from anabranch.protocol.pb import pulsar_pb2 as pb

T = TypeVar("T")

Segments = LayoutFollowing | GroupMembership
"""How a consumer finds the segments that it reads."""


class AsyncQueueConsumer(AcknowledgingConsumer[T]):
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
        open_letters: OpenLetters,
    ) -> None:
        name = options.name or f"anabranch-queue-{pool.rng.getrandbits(40):010x}"
        super().__init__(pool, schema, name, options)
        self.subscription = options.subscription
        self._options = options
        self._run_retry = options.redelivery
        self._run_order = options.order
        self._use_letters(options, open_letters)
        self._redelivery = Redelivery(self._loop)
        self._notes_acks = self._interceptors is None and not options.ack_receipts
        attachment = replace(options.attachment(pb.CommandSubscribe.Shared, name), priority=options.priority)
        self._segments: Segments = self._choose_segments(attachment)

    def _choose_segments(self, attachment: Attachment) -> Segments:
        return LayoutFollowing(self, self._options.topic, attachment, self._queue_size)

    async def _open(self) -> None:
        """Subscribe to the first segments."""
        async with self._close_on_error() as deadline:
            await self._segments.open(deadline)

    # For the application.

    @property
    def topic(self) -> str:
        return self._segments.topic

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
        check_text("reason", reason)
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        source = self._locate(message)[0]
        if source is None:
            return
        if wait_s is None:
            redelivered = message.redelivery_count if isinstance(message, Message) else 0
            wait_s = self._options.redelivery.delay(redelivered, self._pool.rng)
        self._refuse(message, source, wait_s, reason)
        if self._interceptors is not None:
            self._interceptors.refused(message, reason)

    async def reconsume_later(
        self,
        message: Message[T],
        *,
        delay: Seconds | None = None,
        properties: Mapping[str, str] | None = None,
        reason: str = "reconsumed later",
    ) -> None:
        """Send a message to the retry topic, which delivers it after `delay`, and acknowledge it here.

        By default the delay is that of `redelivery`. After as many retries as `dead_letter` allows the
        message goes to the dead letter topic instead, with the `reason`. Returns when the message is stored
        there; if that fails the call raises, and the message stays unacknowledged. Needs `retry_topic`.
        """
        raise InvalidConfigurationError("reconsume_later needs a consumer with a retry_topic")

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
                await self._close_letters(deadline)
            finally:
                await self._tasks.stop()

    # Called by the consumers of segments.

    def _reached_end(self, source: SegmentConsumer) -> None:
        self._segments.reached_end(source)

    def _attached_again(self, source: SegmentConsumer) -> None:
        self._segments.attached_again(source)

    def _is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        ends = self._segments.is_final(source, error)
        return super()._is_final(source, error) if ends is None else ends

    def _gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        log.debug("%s: %s", source.topic, error)
        self._segments.gave_up(source, error)
        self._withdraw(source)
        if isinstance(error, SubscriptionNotFoundError):
            self._fail(error)
            self._leave_at_once()
        self._role_refused(error)

    # Acknowledgements.

    def _accept(self, entry: Received) -> bool:
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        source.unacked[entry.position] = source.unacked.get(entry.position, 0) | entry.wanted
        letters = self._dead_letters
        if letters is not None and entry.redelivery_count > letters.policy.max_redeliveries:
            self._tasks.start(self._forward(letters, entry), f"dead letters of {source.topic}")
            return False
        if self._options.processing_s is not None:
            self._redelivery.give_back(source, entry.position, entry.wanted, self._options.processing_s)
        return True

    def _pass_over(self, entry: Received) -> None:
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        source.unacked[entry.position] = source.unacked.get(entry.position, 0) | entry.wanted
        policy = self._bad.policy_for(entry.problem())
        if policy == "dead_letter" and self._dead_letters is not None:
            self._tasks.start(self._forward(self._dead_letters, entry), f"bad entries of {source.topic}")
        elif policy != "fail":
            self._acknowledge_bits(source, entry.position, entry.wanted, entry.whole)
            self._schedule_acks()

    # For the run.

    async def _give_back(self, message: Message[T], delay_s: float) -> bool:
        source, place, bits, _ = self._locate(message)
        if source is not None:
            self._redelivery.give_back(source, place, bits, delay_s)
        return True

    async def _forward(self, letters: DeadLetters, entry: Received) -> None:
        """Send an entry to the dead letter topic and acknowledge it; give it back if sending fails."""
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        try:
            await letters.forward(entry)
            self._acknowledge_bits(source, entry.position, entry.wanted, entry.whole)
            self._send_acks()
        except AnabranchError as error:
            letters.report(self.topic, error)
            delay_s = self._options.redelivery.delay(0, self._pool.rng)
            self._redelivery.give_back(source, entry.position, entry.wanted, delay_s)
