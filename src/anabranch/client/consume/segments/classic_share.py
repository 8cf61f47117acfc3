"""The share of an ordered consumer of a `persistent://` topic: Failover subscriptions on all its partitions.

Such a topic has no leader. The owner of each partition chooses one consumer of the subscription, which gets
all messages of the partition in order. When the topic is migrated, its leader assigns segments instead.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.segments.attachment import SubscriptionOptions
from anabranch.client.consume.segments.group_membership import GroupMembership
from anabranch.client.consume.segments.layout_following import LayoutFollowing
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.consume.segments.segments import ConsumedSegments
from anabranch.client.decide.consuming.permits import Permits
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import RECONNECT
from anabranch.client.net.topics.classic_layout import ClassicTopicError
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.errors import AnabranchError, OperationTimeoutError
from anabranch.protocol.pb import pulsar_pb2 as pb


class ClassicShare(LayoutFollowing):
    """The partitions of a classic topic; `membership` takes over when the topic is migrated."""

    def __init__(
        self,
        context: ConsumerContext,
        segments: ConsumedSegments,
        membership: GroupMembership,
        options: SubscriptionOptions,
    ) -> None:
        attachment = replace(membership.attachment, kind=pb.CommandSubscribe.Failover)
        super().__init__(context, segments, options.topic, attachment)
        self._membership = membership
        self._reported: dict[str, None] = {}
        """The partitions that the application was told to have."""

    def active_changed(self, source: SegmentConsumer) -> None:
        """The owner of a partition gave it to this consumer, or took it away."""
        if source.active and source.topic not in self._reported:
            self._reported[source.topic] = None
            self._membership.report((source.topic,), ())
        elif not source.active and source.topic in self._reported:
            del self._reported[source.topic]
            self._membership.report((), (source.topic,))

    def _share(self, segments: int) -> int:
        return self._segments.queue_size

    def _permits(self, share: int) -> Permits:
        return self._segments.permits()

    def _layout_changed(self, layout: TopicLayout) -> None:
        if layout.is_classic:
            super()._layout_changed(layout)
            return
        self.stop()
        for source in self._segments.sources.values():
            source.attachment = replace(source.attachment, kind=pb.CommandSubscribe.Exclusive)
        self._segments.share = self._membership
        self._context.tasks.start(self._join(), f"register with {layout.name}")

    async def _join(self) -> None:
        """Register with the leader of the migrated topic; it assigns the former partitions first."""
        context, failures = self._context, 0
        while not context.closed:
            try:
                await self._membership.open(Deadline(context.pool.operation_timeout_s))
                return
            except (OperationTimeoutError, ClassicTopicError):
                await asyncio.sleep(RECONNECT.delay(failures, context.pool.rng))
                failures += 1
            except AnabranchError as error:
                self._membership.refused(error)
                return


async def open_ordered(
    context: ConsumerContext, segments: ConsumedSegments, options: SubscriptionOptions, deadline: Deadline
) -> None:
    """Register with the leader, or subscribe to the partitions of a topic that has none."""
    membership = segments.share
    try:
        await membership.open(deadline)
    except ClassicTopicError:
        assert isinstance(membership, GroupMembership)
        segments.share = ClassicShare(context, segments, membership, options)
        await segments.share.open(deadline)
