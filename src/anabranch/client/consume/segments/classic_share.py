"""The share of an ordered consumer of a `persistent://` topic: Failover subscriptions on all its partitions.

Such a topic has no leader. The owner of each partition chooses one consumer of the subscription, which gets
all messages of the partition in order. When the topic is migrated, its leader assigns segments instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.consume.segments.attachment import Attachment, SegmentAddress, SubscriptionOptions
from anabranch.client.consume.segments.group_membership import GroupMembership
from anabranch.client.consume.segments.layout_following import LayoutFollowing
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import RECONNECT
from anabranch.client.net.topics.classic_layout import ClassicTopicError
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.errors import AnabranchError, OperationTimeoutError
from anabranch.protocol.pb import pulsar_pb2 as pb


class ClassicShare(LayoutFollowing):
    """The partitions of a classic topic for `home`; `membership` takes over when the topic is migrated."""

    def __init__(
        self,
        home: Inbox[Any],
        membership: GroupMembership | ClassicShare,
        options: SubscriptionOptions,
        queue_size: int,
    ) -> None:
        assert isinstance(membership, GroupMembership)
        attachment = replace(membership.attachment, kind=pb.CommandSubscribe.Failover)
        super().__init__(home, options.topic, attachment, queue_size)
        self._ordered = membership.home
        self._membership = membership
        self._reported: dict[str, None] = {}
        """The partitions that the application was told to have."""

    @property
    def assignment(self) -> tuple[str, ...]:
        """Names of the partitions that the consumer reads now."""
        return tuple(source.topic for source in self._ordered._sources.values() if _reads(source))

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of the partitions that other consumers of the subscription read."""
        return tuple(source.topic for source in self._ordered._sources.values() if not _reads(source))

    def active_changed(self, source: SegmentConsumer) -> None:
        """The owner of a partition gave it to this consumer, or took it away."""
        if source.active and source.topic not in self._reported:
            self._reported[source.topic] = None
            self._membership.report((source.topic,), ())
        elif not source.active and source.topic in self._reported:
            del self._reported[source.topic]
            self._membership.report((), (source.topic,))

    def lose_all(self) -> None:
        """The owners of partitions choose another consumer when this one leaves."""

    def reconcile(self) -> None:
        """Owners, and not a leader, assign partitions."""

    def _share(self, segments: int) -> int:
        return self._queue_size

    def _consume(self, address: SegmentAddress, attachment: Attachment, share: int) -> SegmentConsumer:
        return self._ordered._consume(address, attachment)

    def _layout_changed(self, layout: TopicLayout) -> None:
        if layout.is_classic:
            super()._layout_changed(layout)
            return
        self.stop()
        for source in self._ordered._sources.values():
            source.attachment = replace(source.attachment, kind=pb.CommandSubscribe.Exclusive)
        self._ordered._use_share(self._membership)
        self._ordered._tasks.start(self._join(), f"register with {layout.name}")

    async def _join(self) -> None:
        """Register with the leader of the migrated topic; it assigns the former partitions first."""
        home, failures = self._ordered, 0
        while not home._closed:
            try:
                await self._membership.open(Deadline(home._pool.operation_timeout_s))
                return
            except (OperationTimeoutError, ClassicTopicError):
                await asyncio.sleep(RECONNECT.delay(failures, home._pool.rng))
                failures += 1
            except AnabranchError as error:
                home._refused(error)
                return


async def open_share(
    share: LayoutFollowing | GroupMembership, deadline: Deadline, use_classic: Callable[[], ClassicShare]
) -> None:
    """Register with the leader, or subscribe to the partitions of a topic that has none."""
    try:
        await share.open(deadline)
    except ClassicTopicError:
        await use_classic().open(deadline)


def _reads(source: SegmentConsumer) -> bool:
    return source.first_answer.accepted and source.active and not source.released
