"""The consumer of a topic as its membership sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from anabranch.aio import TaskRegistry
from anabranch.client.consume.inbox.missing_topic import MissingTopic
from anabranch.client.consume.segments.attachment import Attachment, SegmentAddress
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.client.consume.segments.group_membership import GroupMembership


class MemberHome(Protocol):
    """A consumer of a topic that reads the segments assigned to it."""

    _pool: ConnectionPool
    _tasks: TaskRegistry
    _loop: asyncio.AbstractEventLoop
    _sources: dict[int, SegmentConsumer]
    _opened_in: int | None
    _missing: MissingTopic

    _closed: bool

    def _consume(self, address: SegmentAddress, attachment: Attachment) -> SegmentConsumer:
        """Begin to read a segment."""

    async def _first_answers(
        self, deadline: Deadline, answer: Callable[[SegmentConsumer], Awaitable[None]]
    ) -> None:
        """Wait for the first answer about each segment."""

    def _send_acks(self) -> None: ...
    def _has_messages_of(self, source: SegmentConsumer) -> bool:
        """Whether the application has messages of a segment that it has not acknowledged."""

    def _left(self, source: SegmentConsumer, why: str | None) -> None:
        """Called when a segment is not read any more; `why` unless all acknowledgements are confirmed."""

    def _use_share(self, share: GroupMembership) -> None:
        """Read what the leader assigns from now on, because the topic was migrated."""

    def _topic_gone(self, error: AnabranchError) -> None:
        """Called for each attempt that does not find the topic."""

    def _refused(self, error: AnabranchError) -> None:
        """Called once, when the leader refuses the consumer for good."""
