"""The insides of live consumers that tests look at; applications cannot name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.aio import TaskRegistry
from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.net.connection_pool import ConnectionPool


def sources_of(consumer: Inbox[Any]) -> Mapping[int, SegmentConsumer]:
    """The consumers of the segments that a consumer reads now, by segment id."""
    return consumer._sources


def pool_of(consumer: Inbox[Any]) -> ConnectionPool:
    """The connections that a consumer shares with the other objects of its client."""
    return consumer._pool


def tasks_of(consumer: Inbox[Any]) -> TaskRegistry:
    """The tasks that a consumer has started."""
    return consumer._tasks
