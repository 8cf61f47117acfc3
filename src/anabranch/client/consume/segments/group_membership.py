"""The membership of a consumer in its group: the leader of the topic assigns segments and pushes changes.

A member gives up a segment only after the application has acknowledged all messages that it has of the
segment, so that the next reader cannot overtake.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.segments.attachment import (
    Attachment,
    OnAssignment,
    SegmentAddress,
    SubscriptionOptions,
)
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.consume.segments.segments import ConsumedSegments
from anabranch.client.decide.consuming.seeking import SeekMove, seek_command
from anabranch.client.net.closing import Deadline, farewell
from anabranch.client.net.topics.registration import Registration, RegistrationOptions
from anabranch.client.options import log
from anabranch.errors import (
    AnabranchError,
    ConsumerAssignError,
    ConsumerBusyError,
    MetadataError,
    TopicNotFoundError,
)
from anabranch.model.assignment import UNCOUNTED, AssignedSegment, Assignment
from anabranch.protocol.pb import pulsar_pb2 as pb

HAND_OVER_WARNING_S = 10.0


class MemberAcks(Protocol):
    """The acknowledgements of a member, as far as they hold up the hand-over of a segment."""

    def send(self) -> None:
        """Send the acknowledgements that were noted."""

    def has_messages_of(self, source: SegmentConsumer) -> bool:
        """Whether the application has messages of a segment that it has not acknowledged."""

    def left(self, source: SegmentConsumer, why: str | None) -> None:
        """A segment is not read any more; `why` unless all acknowledgements are confirmed."""


class GroupMembership:
    """The share of a consumer that reads what the leader assigns to it."""

    def __init__(
        self,
        context: ConsumerContext,
        segments: ConsumedSegments,
        acks: MemberAcks,
        attachment: Attachment,
        options: SubscriptionOptions,
    ) -> None:
        self.attachment = attachment
        self.on_assignment: OnAssignment | None = None
        """Called with the names of segments that the consumer gained and lost."""
        self._context, self._segments, self._acks = context, segments, acks
        self._assignment: dict[int, AssignedSegment] = {}
        self._generation: int | None = None
        self._hand_overs: dict[int, asyncio.Task[Any]] = {}
        self._progress = asyncio.Event()
        request = RegistrationOptions(
            options.topic,
            options.subscription,
            attachment.consumer_name,
            pb.STREAM,
            attachment.initial_position,
        )
        self._registration = Registration(
            context.pool, request, self._assigned, self.refused, gone=segments.topic_gone
        )

    @property
    def topic(self) -> str:
        """The name of the topic that the broker resolved."""
        return str(self._registration.resolved)

    @property
    def assignment(self) -> tuple[str, ...]:
        """Names of the segments that the consumer reads now."""
        return tuple(
            source.topic
            for source in self._segments.sources.values()
            if source.first_answer.accepted and not source.released
        )

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of assigned segments that the consumer cannot read yet: other consumers hold them."""
        return tuple(
            source.topic
            for source in self._segments.sources.values()
            if not (source.first_answer.accepted or source.released)
        )

    async def open(self, deadline: Deadline) -> None:
        """Register, and subscribe to the first assigned segments."""
        await self._registration.open(self._context.tasks, deadline.left_s)
        await self._segments.first_answers(deadline, self._answered)

    @staticmethod
    async def _answered(source: SegmentConsumer) -> None:
        try:
            await source.first_answer.any()
        except AnabranchError as error:
            # Meanwhile the leader may have given the segment to another consumer, or retention removed it.
            if not source.released and not isinstance(error, TopicNotFoundError):
                raise

    async def move(self, move: SeekMove) -> None:
        """Have the leader move the subscription."""
        await self._registration.ask(partial(seek_command, move, to_leader=True))

    async def delete(self) -> None:
        """Have the leader delete the subscription, unless it has other members."""
        for source in self._segments.sources.values():
            source.hang_up()
        try:
            await self._registration.ask(
                lambda id_, request: pb.CommandUnsubscribe(consumer_id=id_, request_id=request)
            )
        except ConsumerBusyError as error:
            # The leader let this member go before it refused, so that another attempt would not find it.
            raise MetadataError(str(error)) from error

    def stop(self) -> None:
        """Wait for no acknowledgement of a segment any more."""
        for hand_over in self._hand_overs.values():
            hand_over.cancel()

    async def leave(self, deadline: Deadline) -> None:
        """Give the share back."""
        await farewell([self._registration.hang_up()], deadline)

    def progressed(self) -> None:
        """Look whether the application still has messages of segments that are handed over."""
        self._progress.set()

    # Assignments.

    def _assigned(self, assignment: Assignment) -> None:
        context = self._context
        if context.closed:
            return
        before = set(self._assignment)
        self._assignment = {segment.segment_id: segment for segment in assignment.segments}
        self._generation = assignment.generation if assignment.generation != UNCOUNTED else None
        context.opened_in = self._registration.opened_in
        context.missing.found()
        gone = before - self._assignment.keys()
        removed = tuple(
            self._segments.sources[id_].topic for id_ in sorted(gone) if id_ in self._segments.sources
        )
        self.reconcile()
        added = tuple(segment.topic for id_, segment in self._assignment.items() if id_ not in before)
        self.report(added, removed)

    def report(self, added: tuple[str, ...], removed: tuple[str, ...]) -> None:
        """Call the application's callback, if there is one and the assignment has changed."""
        if self.on_assignment is not None and (added or removed):
            try:
                self.on_assignment(added, removed)
            except Exception:
                # An error in the application's callback must not end the connection.
                log.exception("on_assignment failed")

    def refused(self, error: AnabranchError) -> None:
        """Release all segments, because the leader refused this consumer and others get them at once."""
        self._segments.refused(error)
        self.lose_all()
        self._segments.leave_at_once()

    def lose_all(self) -> None:
        """Release all segments, because other consumers get them at once."""
        self._assignment = {}
        self.stop()
        for source in self._segments.sources.values():
            source.release()

    def reconcile(self) -> None:
        """Subscribe to assigned segments, and begin to hand over the others."""
        sources = self._segments.sources
        for id_, source in list(sources.items()):
            assigned = self._assignment.get(id_)
            kept = assigned is not None and assigned.bucket_ranges == source.attachment.bucket_ranges
            if kept and not source.released:
                source.renew(self._generation)
            elif id_ not in self._hand_overs:
                source.release()
                work = self._hand_over(source)
                self._hand_overs[id_] = self._context.tasks.start(work, f"hand over {source.topic}")
        for id_, segment in self._assignment.items():
            if id_ not in sources:
                self._attach(segment)

    def _attach(self, segment: AssignedSegment) -> None:
        shared = bool(segment.bucket_ranges)
        attachment = replace(
            self.attachment,
            kind=pb.CommandSubscribe.Key_Shared if shared else pb.CommandSubscribe.Exclusive,
            bucket_ranges=segment.bucket_ranges,
            generation=self._generation,
        )
        is_classic = segment.topic.startswith("persistent://")
        address = SegmentAddress(segment.segment_id, segment.topic, is_classic)
        self._segments.consume(address, attachment)

    async def _hand_over(self, source: SegmentConsumer) -> None:
        """Wait until the application has acknowledged the segment's messages, then leave the segment."""
        self._acks.send()
        warning = self._context.loop.call_later(
            HAND_OVER_WARNING_S,
            log.warning,
            "%s: acknowledge its messages so that another consumer can read it",
            source.topic,
        )
        try:
            while self._acks.has_messages_of(source):
                self._progress.clear()
                await self._progress.wait()
        finally:
            warning.cancel()
        await source.acks_confirmed()
        await source.close()
        self.forget(source)
        self.reconcile()

    def forget(self, source: SegmentConsumer, why: str | None = None) -> None:
        """Remove the consumer of a segment; `why` says why its open acknowledgements are not confirmed."""
        self._hand_overs.pop(source.segment_id, None)
        self._segments.remove(source)
        self._acks.left(source, why)

    # Events of segments.

    def reached_end(self, source: SegmentConsumer) -> None:
        """The leader takes drained segments away."""

    def active_changed(self, source: SegmentConsumer) -> None:
        """The leader, and not the owner of a segment, chooses its reader."""

    def attached_again(self, source: SegmentConsumer) -> None:
        """The leader assigns the segments that a seek opens again."""

    @staticmethod
    def is_final(source: SegmentConsumer, error: AnabranchError) -> bool | None:
        """Whether another consumer's claim ends the segment's consumer; None for other errors."""
        if isinstance(error, (ConsumerBusyError, ConsumerAssignError)):
            # A released segment that another consumer reads cannot take acknowledgements any more.
            return source.released
        return None

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        """The segment's consumer has ended because of an error."""
        hand_over = self._hand_overs.get(source.segment_id)
        if hand_over is not None:
            hand_over.cancel()
        self.forget(source, str(error))
