"""The parts of a queue consumer: single acknowledgements, and one of three ways to treat failed messages.

Without an order the consumer follows the layout and subscribes to every segment, including sealed ones; the
broker delivers failed messages again, or a retry topic does. With the order of keys the consumer is a member
of a group, as a stream consumer is: all messages of a key come to one consumer at a time, also through splits
and merges, and a refused message stays here and comes again from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from anabranch.client.consume.acknowledgements.single_acks import SingleAcks
from anabranch.client.consume.consumers.subscription_parts import SubscriptionParts, reading_parts
from anabranch.client.consume.context import ConsumerContext, Waiters
from anabranch.client.consume.failures.letters import Letters, OpenLetters
from anabranch.client.consume.failures.policies import KeyedFailures, QueueFailures
from anabranch.client.consume.failures.queue_entries import QueueEntries
from anabranch.client.consume.inbox.bad_entries import BadEntryRecord
from anabranch.client.consume.inbox.inbox import unhold
from anabranch.client.consume.segments.attachment import QueueOptions
from anabranch.client.consume.segments.classic_share import open_ordered
from anabranch.client.consume.segments.group_membership import GroupMembership
from anabranch.client.consume.segments.layout_following import LayoutFollowing
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.message import renumbered
from anabranch.client.net.closing import Deadline
from anabranch.client.options import log, parse_topic
from anabranch.errors import AnabranchError, OperationTimeoutError, SubscriptionNotFoundError
from anabranch.protocol.pb import pulsar_pb2 as pb

T = TypeVar("T")

RETRIES_TAKEN = 100
"""Most messages of the retry topic that are handed out in one turn."""


class QueueParts(SubscriptionParts[T]):
    """The parts of one queue consumer, which gets the events of its segments."""

    acks: SingleAcks
    failures: QueueFailures[T] | KeyedFailures[T]

    def __init__(
        self,
        context: ConsumerContext,
        options: QueueOptions,
        open_letters: OpenLetters,
        bad: BadEntryRecord | None = None,
    ) -> None:
        reading = reading_parts(context, options, bad)
        acks = SingleAcks(context, reading.segments, options)
        self.letters = letters = Letters(context, options, open_letters)
        kind = KeyedFailures if options.order == "key" else QueueFailures
        failures: QueueFailures[Any] | KeyedFailures[Any] = kind(reading, acks, letters)
        super().__init__(reading, acks, failures, letters, options)
        self.run_order, self.run_retry = options.order, options.redelivery
        self.retries: RetryReading | None = None
        """The retry topic; None without one."""
        self.handed_out_by: SubscriptionParts[Any] | None = None
        """The parts of the consumer that hands the messages out, if this one reads its retry topic."""
        attachment = options.attachment(pb.CommandSubscribe.Shared, context.name, priority=options.priority)
        segments, loading = reading.segments, None
        if isinstance(failures, KeyedFailures):
            segments.share = GroupMembership(context, segments, acks, attachment, options)
            loading = failures.load
        else:
            segments.share = LayoutFollowing(context, segments, options.topic, attachment)
        if letters.retry is not None:
            self.retries = RetryReading(self, letters.retry.topic, options, open_letters)
            loading = self.retries.load
        entries = QueueEntries(reading, acks, letters, failures.redelivery, options)
        reading.inbox.follow(entries, loading)
        segments.events = self

    async def _open(self, deadline: Deadline) -> None:
        if isinstance(self.failures, KeyedFailures):
            await open_ordered(self.context, self.segments, self._options, deadline)
        else:
            await super()._open(deadline)
        if self.retries is not None:
            await self.retries.open(deadline)

    def join(self, waiting: Waiters) -> None:
        super().join(waiting)
        if self.retries is not None:
            self.retries.parts.join(waiting)

    async def delete(self) -> None:
        await super().delete()
        if self.retries is not None:
            await self.retries.parts.delete()

    async def _close(self, deadline: Deadline) -> None:
        try:
            if self.retries is not None:
                await self.retries.parts.close_by(deadline)
        finally:
            await super()._close(deadline)

    def _report_end(self) -> None:
        # The consumer of the application reports its own end.
        if self.handed_out_by is None:
            super()._report_end()

    # Events of segments.

    def dropped(self, source: SegmentConsumer) -> None:
        self.inbox.drop(source, everything=source.released)
        self.failures.segment_dropped(source)

    def voided(self, source: SegmentConsumer) -> None:
        self.inbox.drop(source, everything=True)
        self._withdraw(source)
        self.failures.segment_voided(source)

    def reached_end(self, source: SegmentConsumer) -> None:
        self.segments.share.reached_end(source)

    def active_changed(self, source: SegmentConsumer) -> None:
        if not source.active:
            # Another consumer gets the messages, so they may come back here later.
            unhold(self.runs.withdraw_segment(source))
        self.segments.share.active_changed(source)

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        log.debug("%s: %s", source.topic, error)
        self.segments.share.gave_up(source, error)
        self._withdraw(source)
        if isinstance(error, SubscriptionNotFoundError):
            self.context.fail(error)
            self.segments.leave_at_once()
        self.segments.role_refused(error)
        if source.released and self.context.failure is None:
            # The leader may have assigned the segment again, with other buckets.
            self.segments.share.reconcile()

    def _withdraw(self, source: SegmentConsumer) -> None:
        """Start no handler for messages of a segment that the broker delivers again."""
        self.runs.withdraw_segment(source)
        if self.handed_out_by is not None:
            self.handed_out_by.inbox.drop(source, everything=True)
            self.handed_out_by.runs.withdraw_segment(source)


class RetryReading:
    """Reads the retry topic of a queue consumer, which hands its messages out in turn with its own.

    Both topics have the same subscription. Retries give the order of keys up.
    """

    def __init__(
        self, outer: QueueParts[Any], topic: str, options: QueueOptions, open_letters: OpenLetters
    ) -> None:
        self._outer = outer
        self._topic = topic
        self._is_next = False
        """Whether the next turn is that of the retry topic."""
        mine = outer.context
        options = replace(
            options,
            topic=parse_topic(topic),
            retry_topic=False,
            initial_position="earliest",
            name=mine.name,
        )
        context = ConsumerContext(mine.pool, mine.schema, options, "queue")
        context.interceptors, context.waiting = mine.interceptors, mine.waiting
        context.on_failure, context.handed_out_by = mine.fail, mine
        self.parts: QueueParts[Any] = QueueParts(context, options, open_letters, outer.inbox.bad)
        self.parts.handed_out_by = outer
        self.parts.letters.dead = outer.letters.dead
        outer.acks.retries = self.parts.acks

    async def open(self, deadline: Deadline) -> None:
        """Subscribe to the retry topic; raises OperationTimeoutError at the deadline."""
        if not await deadline.allow(self.parts.open()):
            raise OperationTimeoutError(f"the retry topic {self._topic} did not open in time")

    def load(self, next_entry: Callable[[], bool]) -> bool:
        """Take turns between the two topics; `next_entry` loads an entry of the consumer's own topic."""
        self._is_next = not self._is_next
        if self._is_next:
            return self._load() or next_entry()
        return next_entry() or self._load()

    def _load(self) -> bool:
        inbox, retries = self._outer.inbox, self.parts.inbox
        if self._outer.context.failure is not None or inbox.bad.to_raise is not None:
            return False
        found = retries.take(RETRIES_TAKEN) if retries.has_message() else []
        number = inbox.number
        messages = [renumbered(message, number + place) for place, message in enumerate(found, 1)]
        inbox.put(messages, retries.asked_for_more())
        return bool(found)
