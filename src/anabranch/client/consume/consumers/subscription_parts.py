"""The parts of a consumer with a subscription, and what they do together: open, seek, unsubscribe and close.

A stream consumer and the kinds of queue consumers choose the acknowledgement policy, the failure policy and
the share of the topic. Their classes tell the parts of each event of a segment, in the order that they need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from anabranch.aio import Backoff, is_transient
from anabranch.client.consume.acknowledgements.cumulative_acks import CumulativeAcks
from anabranch.client.consume.acknowledgements.given_back import check_topic
from anabranch.client.consume.acknowledgements.single_acks import SingleAcks
from anabranch.client.consume.consumers.consumer import figures_of
from anabranch.client.consume.context import ConsumerContext, Waiters
from anabranch.client.consume.failures.letters import Letters
from anabranch.client.consume.failures.policies import FailurePolicy
from anabranch.client.consume.handlers.run_options import RETRY, Handler, RunOptions, RunOrder, RunStatistics
from anabranch.client.consume.handlers.running import RunParts
from anabranch.client.consume.handlers.runs import HandlerRuns, ReadingParts
from anabranch.client.consume.inbox.bad_entries import BadEntryRecord
from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.consume.segments.attachment import SubscriptionOptions
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.consume.segments.segments import ConsumedSegments
from anabranch.client.decide.consuming.seeking import SeekMove, plan_seek
from anabranch.client.figures import ConsumerFigures
from anabranch.client.message import Message
from anabranch.client.net.closing import Deadline
from anabranch.client.net.topics.layout_watch import look_up_layout
from anabranch.client.options import Seconds, one_of, wall_ms
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConsumerBusyError,
    InvalidConfigurationError,
    MetadataError,
    NotConnectedError,
    OperationTimeoutError,
    TopicNotFoundError,
)
from anabranch.model.ids import MessageId

T = TypeVar("T")

SeekWord = Literal["earliest", "latest"]
SeekTarget = datetime | SeekWord | Message[Any] | MessageId
"""A time with its time zone, the first or last message, or the message after which reading continues."""


def reading_parts(
    context: ConsumerContext, options: SubscriptionOptions, bad: BadEntryRecord | None = None
) -> ReadingParts[Any]:
    """Make the parts that do not depend on the kind of the consumer."""
    segments = ConsumedSegments(context, options.receiver_queue_size)
    bad = BadEntryRecord(options.bad_entries) if bad is None else bad
    inbox: Inbox[Any] = Inbox(context, segments.sources, bad, options.encryption)
    return ReadingParts(context, segments, inbox, HandlerRuns())


class SubscriptionParts(Generic[T]):
    """The parts of one consumer; those of a kind of consumers are a subclass, which completes the events."""

    run_order: RunOrder = "key"
    """The order of handlers unless the application chooses one."""
    run_retry: Backoff = RETRY
    """The pauses after failures unless the application chooses them."""

    def __init__(
        self,
        reading: ReadingParts[T],
        acks: CumulativeAcks | SingleAcks,
        failures: FailurePolicy[T],
        letters: Letters,
        options: SubscriptionOptions,
    ) -> None:
        self.context, self.segments, self.inbox, self.runs = reading
        self.acks, self.failures = acks, failures
        self._letters, self._options = letters, options
        self.subscription = options.subscription
        self.context.resolved = lambda: self.segments.share.topic

    # The life of the consumer.

    async def open(self) -> None:
        """Subscribe to the first segments; closes the consumer if that fails."""
        try:
            await self._open(Deadline(self.context.pool.operation_timeout_s))
            self.context.role.opened = True
        except (Exception, asyncio.CancelledError):
            await self.close_by(Deadline(0.0))
            raise

    async def _open(self, deadline: Deadline) -> None:
        await self.segments.share.open(deadline)

    async def close_by(self, deadline: Deadline) -> None:
        """As `close` of the consumer, with the deadline of the caller."""
        try:
            await self.context.closing.run(deadline, self._stop_and_close)
        finally:
            self._report_end()

    def _report_end(self) -> None:
        if self.context.interceptors is not None:
            self.context.interceptors.closed(self.context.topic)

    async def _stop_and_close(self, deadline: Deadline) -> None:
        try:
            await self.runs.end(deadline)
        finally:
            await self._close(deadline)

    async def _close(self, deadline: Deadline) -> None:
        """Leave the topic; messages that the application did not acknowledge stay unacknowledged."""
        self.inbox.close()
        self.failures.close()
        self.segments.share.stop()
        self.acks.send()
        try:
            await self.segments.leave(deadline, self.acks.confirmed)
        finally:
            try:
                await self.segments.share.leave(deadline)
                await self._letters.close_by(deadline)
            finally:
                await self.context.tasks.stop()

    def join(self, waiting: Waiters) -> None:
        """Wake the callers that wait for messages of several consumers."""
        self.context.waiting = waiting

    @property
    def figures(self) -> ConsumerFigures:
        """The consumer now, for `AsyncClient.stats`."""
        return figures_of(self.context, self.inbox, self.segments)

    async def run(self, handler: Handler[T], options: RunOptions) -> RunStatistics:
        """Handle messages until the run is stopped."""
        parts = RunParts(self.context, self.inbox, self.acks, self.failures)
        return await self.runs.run(parts, handler, options)

    # Moving and deleting the subscription.

    async def seek(self, to: SeekTarget, timeout: Seconds | None) -> None:
        """Move the subscription; see `AsyncStreamConsumer.seek`."""
        target = checked_target(to)
        context = self.context
        if isinstance(to, Message):
            check_topic(to.topic, context.given_topic)
        if context.closed:
            raise AlreadyClosedError("the consumer is closed")
        deadline = Deadline(context.limit_s(timeout))
        self.inbox.hold_back("seek")
        try:
            if not await deadline.allow(self.acks.confirmed()):
                raise OperationTimeoutError(
                    f"{context.topic}: acknowledgements before a seek are not confirmed"
                )
            for source in self.segments.sources.values():
                source.void()
            layout = await self._retry(
                lambda: look_up_layout(context.pool, self._options.topic, create=False), deadline
            )
            for move in plan_seek(target, layout.layout):
                await self._retry(partial(self._move, move), deadline)
        finally:
            for source in list(self.segments.sources.values()):
                source.start_over()
            self.inbox.release("seek")

    async def _move(self, move: SeekMove) -> None:
        await self.segments.share.move(move)

    async def unsubscribe(self, timeout: Seconds | None) -> None:
        """Delete the subscription and close the consumer; see `AsyncStreamConsumer.unsubscribe`."""
        if self.context.closed:
            raise AlreadyClosedError("the consumer is closed")
        deadline = Deadline(self.context.limit_s(timeout))
        try:
            await self.runs.end(deadline)
            self.inbox.close()
            with suppress(TopicNotFoundError):
                await self._retry(self._delete_if_there, deadline, (MetadataError,))
        except MetadataError as error:
            raise ConsumerBusyError(f"{self.subscription} is not deleted: {error}") from error
        finally:
            await self.close_by(deadline)

    async def delete(self) -> None:
        """Delete the subscription; raises ConsumerBusyError or MetadataError if it has other consumers."""
        await self.segments.share.delete()

    async def _delete_if_there(self) -> None:
        """As `delete`; raises TopicNotFoundError if the topic was deleted, and this consumer with it."""
        try:
            await self.delete()
        except (MetadataError, NotConnectedError):
            await look_up_layout(self.context.pool, self._options.topic, create=False)
            raise

    async def _retry(
        self,
        attempt: Callable[[], Awaitable[Any]],
        deadline: Deadline,
        final: tuple[type[AnabranchError], ...] = (),
    ) -> Any:
        what = f"moving or deleting the subscription {self.subscription}"
        try:
            return await self.context.pool.retry(
                attempt,
                what,
                lambda error: is_transient(error) and not isinstance(error, final),
                deadline.left_s,
            )
        except OperationTimeoutError:
            raise
        except AnabranchError as error:
            if error.retryable and not isinstance(error, final):
                raise OperationTimeoutError(f"{what} was not done in time: {error}") from error
            raise

    # Events of segments, which do not differ between kinds of consumers.

    def ready(self, source: SegmentConsumer) -> None:
        self.inbox.ready(source)

    def attached_again(self, source: SegmentConsumer) -> None:
        self.segments.share.attached_again(source)

    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        ends = self.segments.share.is_final(source, error)
        return self.segments.is_final(error) if ends is None else ends


def checked_target(to: SeekTarget) -> int | SeekWord | MessageId:
    """Return the target as `plan_seek` takes it; raises InvalidConfigurationError."""
    if isinstance(to, datetime):
        return wall_ms("to", to)
    if isinstance(to, Message):
        # The vector of an id tells where the other segments are now, and not when the message was received.
        return replace(to.id, vector=())
    if isinstance(to, MessageId):
        return to
    if not isinstance(to, str):
        raise InvalidConfigurationError(
            f'seek needs a datetime, "earliest", "latest", a message or its id, not {to!r}'
        )
    one_of("to", to, SeekWord)
    return to


async def end_runs(consumers: Iterable[object], deadline: Deadline) -> None:
    """End every `run` of these consumers before anything closes, because their handlers may use producers."""
    running = [each.runs for each in consumers if isinstance(each, SubscriptionParts)]
    await asyncio.gather(*(runs.end(deadline) for runs in running))
