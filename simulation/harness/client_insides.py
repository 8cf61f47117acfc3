"""The insides of live consumers that tests look at; applications cannot name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.aio import TaskRegistry
from anabranch.client.consume.consumers.checkpoint_consumer import AsyncCheckpointConsumer
from anabranch.client.consume.consumers.queue_consumer import AsyncQueueConsumer
from anabranch.client.consume.consumers.stream_consumer import AsyncStreamConsumer
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.net.connection_pool import ConnectionPool

AnyConsumer = AsyncCheckpointConsumer[Any] | AsyncQueueConsumer[Any] | AsyncStreamConsumer[Any]


def sources_of(consumer: AnyConsumer) -> Mapping[int, SegmentConsumer]:
    """The consumers of the segments that a consumer reads now, by segment id."""
    return consumer.parts.segments.sources


def pool_of(consumer: AnyConsumer) -> ConnectionPool:
    """The connections that a consumer shares with the other objects of its client."""
    return consumer.parts.context.pool


def tasks_of(consumer: AnyConsumer) -> TaskRegistry:
    """The tasks that a consumer has started."""
    return consumer.parts.context.tasks
