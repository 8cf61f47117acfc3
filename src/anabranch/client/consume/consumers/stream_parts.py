"""The parts of a stream consumer: cumulative acknowledgements, and a membership in a group."""

from __future__ import annotations

from typing import Any, TypeVar

from anabranch.client.consume.acknowledgements.cumulative_acks import CumulativeAcks, drop_acknowledged
from anabranch.client.consume.consumers.subscription_parts import SubscriptionParts, reading_parts
from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.failures.letters import Letters, OpenLetters
from anabranch.client.consume.failures.policies import FailurePolicy
from anabranch.client.consume.inbox.inbox import unhold
from anabranch.client.consume.segments.attachment import StreamOptions
from anabranch.client.consume.segments.classic_share import open_ordered
from anabranch.client.consume.segments.group_membership import GroupMembership
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.connecting.refused_roles import is_refused_role
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import log
from anabranch.client.schema import Codec
from anabranch.errors import AnabranchError
from anabranch.protocol.pb import pulsar_pb2 as pb

T = TypeVar("T")


class StreamParts(SubscriptionParts[T]):
    """The parts of one stream consumer, which gets the events of its segments."""

    acks: CumulativeAcks

    def __init__(
        self,
        pool: ConnectionPool,
        schema: Codec[T],
        options: StreamOptions,
        open_letters: OpenLetters,
        *,
        paused: bool = False,
    ) -> None:
        """With `paused` the segments are attached, and not asked for messages."""
        context = ConsumerContext(pool, schema, options, "stream")
        reading = reading_parts(context, options)
        acks = CumulativeAcks(reading, options)
        letters = Letters(context, options, open_letters)
        failures: FailurePolicy[Any] = FailurePolicy(reading, acks, letters)
        super().__init__(reading, acks, failures, letters, options)
        context.vector = acks.vector
        reading.inbox.follow(acks)
        attachment = options.attachment(pb.CommandSubscribe.Exclusive, context.name, paused=paused)
        membership = GroupMembership(context, reading.segments, acks, attachment, options)
        membership.on_assignment = options.on_assignment
        reading.segments.share, reading.segments.events = membership, self

    async def _open(self, deadline: Deadline) -> None:
        await open_ordered(self.context, self.segments, self._options, deadline)

    # Events of segments.

    def dropped(self, source: SegmentConsumer) -> None:
        self.inbox.drop(source, everything=source.released)
        drop_acknowledged(source)

    def voided(self, source: SegmentConsumer) -> None:
        self.inbox.drop(source, everything=True)
        self.runs.withdraw_segment(source)
        self.acks.left(source, "the broker has moved the subscription, or another consumer reads there")
        # A hand-over under way has nothing to wait for after the segment's consumer has cleared its entries.
        self.context.loop.call_soon(self.segments.share.progressed)

    def reached_end(self, source: SegmentConsumer) -> None:
        """The leader takes drained segments away."""

    def active_changed(self, source: SegmentConsumer) -> None:
        if not source.active:
            # Another consumer gets the messages, so they may come back here later.
            unhold(self.runs.withdraw_segment(source))
        drop_acknowledged(source)
        self.segments.share.active_changed(source)

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        log.debug("%s: %s", source.topic, error)
        self.segments.share.gave_up(source, error)
        self.runs.withdraw_segment(source)
        if is_refused_role(error):
            self.segments.share.refused(error)
        elif source.released:
            # The leader may have assigned the segment again, with other buckets.
            self.segments.share.reconcile()
