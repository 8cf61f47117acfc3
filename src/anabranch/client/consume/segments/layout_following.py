"""The segments of a consumer that reads a whole topic: it follows the layout and subscribes to all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.segments.attachment import Attachment, address_in
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.consume.segments.segments import ConsumedSegments
from anabranch.client.decide.consuming.permits import Permits
from anabranch.client.decide.consuming.seeking import SeekMove, seek_command
from anabranch.client.net.closing import Deadline, farewell
from anabranch.client.net.topics.layout_watch import LayoutWatch, TopicLayout
from anabranch.client.net.topics.queue_subscription import QueueSubscription
from anabranch.errors import (
    AnabranchError,
    ConsumerBusyError,
    NotConnectedError,
    TopicNotFoundError,
    UnsupportedFeatureError,
)
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb

PERMITS_MIN = 16
"""Fewest messages that are buffered for a segment, even if many segments share the buffer."""


class LayoutFollowing:
    """The share of a consumer that reads all segments, and buffers messages of all of them together."""

    def __init__(
        self, context: ConsumerContext, segments: ConsumedSegments, topic: TopicName, attachment: Attachment
    ) -> None:
        self._context, self._segments = context, segments
        self._topic = topic
        self._attachment = attachment
        self._finished: dict[int, None] = {}
        """Sealed segments that the subscription has acknowledged to their end."""
        self._watch = LayoutWatch(context.pool, topic, self._layout_changed, gone=segments.topic_gone)
        self._at_leader = QueueSubscription(context.pool, attachment.subscription)
        self._layout: TopicLayout | None = None
        self._is_subscribed = False
        """Whether the segments have the subscription, or make it when a consumer attaches."""

    @property
    def topic(self) -> str:
        """The name of the topic that the broker resolved."""
        return str(self._layout.name if self._layout is not None else self._topic)

    @property
    def assignment(self) -> tuple[str, ...]:
        """Names of the segments that the consumer reads now."""
        return tuple(source.topic for source in self._segments.sources.values() if _reads(source))

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of the segments that other consumers of the subscription read."""
        return tuple(source.topic for source in self._segments.sources.values() if not _reads(source))

    @property
    def _is_classic(self) -> bool:
        return self._layout is not None and self._layout.is_classic

    async def open(self, deadline: Deadline) -> None:
        """Look the topic up and subscribe to all its segments."""
        self._layout = await self._watch.open(self._context.tasks, deadline.left_s)
        attachment = self._attachment
        if self._layout.topics and attachment.durable:
            await self._at_leader.make(self._layout, attachment.initial_position, deadline.left_s)
        self._is_subscribed = True
        self._follow(self._layout, self._attachment)
        await self._segments.first_answers(deadline, lambda source: source.first_answer.success())

    async def move(self, move: SeekMove) -> None:
        """Move the subscription: at the leader, or on each partition of a topic without one."""
        if self._layout is not None and self._layout.topics:
            request = self._context.pool.next_id()
            await self._at_leader.move(self._layout, seek_command(move, 0, request, to_leader=True))
            return
        sources = self._attached()
        if self._is_classic:
            chosen = [source for source in sources if move.segment_id in (None, source.segment_id)]
            for source in chosen:
                await source.ask(partial(seek_command, move, to_leader=False))
        elif sources[0].broker_is_ours:
            await sources[0].ask(partial(seek_command, move, to_leader=True))
        else:
            raise UnsupportedFeatureError(
                "this broker neither moves nor deletes the subscription of a scalable topic for its consumers"
            )

    async def delete(self) -> None:
        """Delete the subscription, unless it has other consumers."""
        if self._layout is not None and self._layout.topics:
            # The leader counts the consumers at Pulsar, so this one leaves first.
            await farewell(source.hang_up() for source in self._segments.sources.values())
            await self._at_leader.delete(self._layout)
            return
        asked = self._attached()
        if not self._is_classic and asked[0].broker_is_ours:
            # Its leader deletes the subscription in all segments.
            asked = asked[:1]
        for source in self._segments.sources.values():
            if source not in asked:
                source.hang_up()
        for source in asked:
            await source.ask(lambda id_, request: pb.CommandUnsubscribe(consumer_id=id_, request_id=request))
            source.hang_up()

    def _attached(self) -> list[SegmentConsumer]:
        """The segments' consumers that have a connection, those of classic segments last."""
        found = [source for source in self._segments.sources.values() if source.connected]
        if not found or (len(found) < len(self._segments.sources) and self._is_classic):
            raise NotConnectedError(f"{self.topic} is not connected now; try again")
        return sorted(found, key=lambda source: source.topic.startswith("persistent://"))

    def stop(self) -> None:
        """Follow no further layout."""
        self._watch.close()

    async def leave(self, deadline: Deadline) -> None:
        """The leader keeps no record of this consumer."""

    def progressed(self) -> None:
        """No other consumer waits for the acknowledgements of this one."""

    def _layout_changed(self, layout: TopicLayout) -> None:
        self._layout = layout
        self._context.missing.found()
        if not self._is_subscribed:
            return
        # Segments that are newer than this consumer have the subscription at their first message.
        self._follow(layout, replace(self._attachment, initial_position=pb.CommandSubscribe.Earliest))

    def _follow(self, layout: TopicLayout, attachment: Attachment) -> None:
        """Subscribe to the segments of a layout that are new, and leave those that it does not list."""
        context, sources = self._context, self._segments.sources
        if context.failure is not None:
            return
        segments = layout.layout.segments
        share = self._share(len(segments))
        for id_ in list(sources):
            if id_ not in segments:
                context.tasks.start(self._leave_segment(sources.pop(id_)), f"leave segment {id_}")
        self._finished = {id_: None for id_ in self._finished if id_ in segments}
        for id_ in sorted(segments):
            source = sources.get(id_)
            if source is not None:
                source.resize(share)
                source.owned_by(layout.owners.get(id_))
            elif id_ not in self._finished:
                self._segments.consume(address_in(layout, segments[id_]), attachment, self._permits(share))

    def _share(self, segments: int) -> int:
        """How many messages of each segment are buffered."""
        size = self._segments.queue_size
        return max(size // max(segments, 1), min(PERMITS_MIN, size))

    def _permits(self, share: int) -> Permits:
        return Permits(share)

    async def _leave_segment(self, source: SegmentConsumer) -> None:
        source.release()
        await Deadline(self._context.pool.operation_timeout_s).allow(source.acks_confirmed())
        await source.close()

    def reconcile(self) -> None:
        """No leader assigns segments to this consumer."""

    def refused(self, error: AnabranchError) -> None:
        """Leave all segments, because a broker refuses the role of this consumer for good."""
        self._segments.refused(error)
        self._segments.leave_at_once()

    # Events of segments.

    def reached_end(self, source: SegmentConsumer) -> None:
        """Leave a sealed segment that the subscription has acknowledged to its end."""
        context = self._context
        listed = self._layout.layout.segments.get(source.segment_id) if self._layout is not None else None
        if listed is None or listed.active or source.entries or source.unacked or context.closed:
            return
        if self._segments.sources.pop(source.segment_id, None) is not None:
            self._finished[source.segment_id] = None
            context.tasks.start(self._leave_segment(source), f"leave {source.topic}")

    def active_changed(self, source: SegmentConsumer) -> None:
        """The broker sends messages to all consumers of a Shared subscription."""

    def attached_again(self, source: SegmentConsumer) -> None:
        """Subscribe to finished segments again, because a seek may have moved the subscription back."""
        if self._is_classic:
            self._context.missing.found()
        if self._finished and self._layout is not None and not self._context.closed:
            self._finished.clear()
            self._layout_changed(self._layout)

    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool | None:
        """Whether the error ends the segment's consumer; None for errors that all consumers share."""
        if isinstance(error, ConsumerBusyError):
            # While opening the caller gets the error; later another consumer may hold a segment for a moment.
            return not source.first_answer.decided
        if isinstance(error, TopicNotFoundError) and self._is_classic and source.first_answer.accepted:
            # The layout of a classic topic tells neither of its deletion nor of its return.
            self._context.missing.report(error)
            earliest = pb.CommandSubscribe.Earliest
            source.attachment = replace(source.attachment, initial_position=earliest)
            return False
        return None

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        """The segment's consumer has ended because of an error."""
        self._segments.remove(source)


def _reads(source: SegmentConsumer) -> bool:
    return source.first_answer.accepted and source.active and not source.released
