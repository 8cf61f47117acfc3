"""Bodies about classic topics, with or without partitions, and the logs of segments."""

from __future__ import annotations

from anabranch.model.reports.body import Body
from anabranch.model.reports.logs import (
    BacklogAnalysis,
    CompactionStats,
    CompactionStatus,
    ConsumerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    LongNumber,
    MessageIdBody,
    PublisherStats,
    SubscriptionStats,
    TopicStats,
)

__all__ = [
    "BacklogAnalysis",
    "CompactionStats",
    "CompactionStatus",
    "ConsumerStats",
    "CursorPosition",
    "CursorStats",
    "InternalStats",
    "LedgerStats",
    "MessageIdBody",
    "PartitionedInternalStats",
    "PartitionedMetadata",
    "PartitionedTopicStats",
    "PublisherStats",
    "StoredMessage",
    "SubscriptionFigures",
    "SubscriptionStats",
    "TopicStats",
]


class CursorPosition(Body, frozen=True, kw_only=True):
    """The message at which a subscription begins; `isExcluded` begins behind the message."""

    ledger_id: LongNumber
    entry_id: LongNumber
    partition_index: int = -1
    batch_index: int = -1
    is_excluded: bool = False
    excluded: bool = False
    """Java's name of `isExcluded`."""
    properties: dict[str, str] | None = None


class PartitionedMetadata(Body, frozen=True, kw_only=True):
    """The number of partitions; 0 for a topic that has none."""

    partitions: int = 0
    deleted: bool = False
    properties: dict[str, str] | None = None


class SubscriptionFigures(Body, frozen=True, kw_only=True):
    """The figures that subscriptions of scalable and classic topics have in common."""

    type: str | None = None
    consumers: int = 0
    backlog: int | None = None
    """Messages of a scalable topic, entries of a classic one; None if it is not known."""


class PartitionedTopicStats(TopicStats, frozen=True, kw_only=True):
    """The sums over all partitions, and the stats of each partition by its name."""

    metadata: PartitionedMetadata = PartitionedMetadata()
    partitions: dict[str, TopicStats] = {}


class PartitionedInternalStats(Body, frozen=True, kw_only=True):
    """The internal stats of each partition by its name."""

    metadata: PartitionedMetadata = PartitionedMetadata()
    partitions: dict[str, InternalStats] = {}


class StoredMessage(Body, frozen=True, kw_only=True):
    """One stored entry of a classic topic; that of a batch has the whole batch as its payload."""

    message_id: str
    """`ledger:entry`."""
    payload: bytes
    properties: dict[str, str] = {}
    key: str | None = None
    producer_name: str = ""
    publish_time: str = ""
    batch_size: int | None = None
    """The number of messages in a batch; None for a single message."""
