"""`/admin/v2/persistent`: the figures of classic topics, with or without partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.models.topics import (
    CompactionStats,
    InternalStats,
    MessageIdBody,
    PartitionedInternalStats,
    PartitionedTopicStats,
    SubscriptionStats,
    TopicStats,
)
from anabranch.admin.routes.topics.topics import TOPIC, classic_places, topic_metadata
from anabranch.aio import together
from anabranch.broker.browsing import stats
from anabranch.errors import InvalidConfigurationError
from anabranch.model.names import Place
from anabranch.rights.rows import CLASSIC_LOOK, CLASSIC_READ

SUMMED = (
    "msg_rate_in",
    "msg_throughput_in",
    "msg_rate_out",
    "msg_throughput_out",
    "bytes_in_counter",
    "msg_in_counter",
    "bytes_out_counter",
    "msg_out_counter",
    "storage_size",
    "backlog_size",
    "publish_rate_limited_times",
    "waiting_publishers",
    "msg_drop_rate",
    "msg_drop_counter",
)
_LATEST = ("last_publish_time_stamp", "topic_creation_time_stamp", "oldest_backlog_message_age_seconds")


async def last_message_id(call: Call) -> MessageIdBody:
    (only,) = await classic_places(call, partitions=False)
    return await call.logs.last_id(only)


async def backlog_size(call: Call) -> int:
    """The stored bytes behind a message; all bytes for the ledger -1."""
    last = await call.body(MessageIdBody)
    if last is None:
        raise InvalidConfigurationError('the body must be a message id, {"ledgerId": .., "entryId": ..}')
    (only,) = await classic_places(call, partitions=False)
    return await call.logs.size_after(only, last)


def _wanted(call: Call) -> stats.StatsRequest:
    return stats.StatsRequest(
        publishers=not call.flag("excludePublishers"),
        consumers=not call.flag("excludeConsumers"),
        earliest_in_backlog=call.flag("getEarliestTimeInBacklog"),
    )


async def _stats_of(call: Call, places: Sequence[Place]) -> list[TopicStats]:
    """Return the stats of each place, with the time when its topic was created."""
    wanted = _wanted(call)
    found = await together(call.logs.stats(place, wanted) for place in places)
    record = await call.topics.find_classic(call.classic().partitioned_topic)
    created_ms = 0 if record is None else record.created_at_ms
    return [msgspec.structs.replace(one, topic_creation_time_stamp=created_ms) for one in found]


async def topic_stats(call: Call) -> TopicStats:
    parts = await _stats_of(call, await classic_places(call))
    return add_up(parts) if len(parts) > 1 else parts[0]


async def partitioned_stats(call: Call) -> PartitionedTopicStats:
    places = await classic_places(call)
    parts = await _stats_of(call, places)
    shown = zip((str(place.name) for place in places), parts, strict=True)
    return PartitionedTopicStats(
        **msgspec.structs.asdict(add_up(parts)),
        metadata=await topic_metadata(call),
        partitions=dict(shown) if call.flag("perPartition", True) else {},
    )


async def partitioned_internal_stats(call: Call) -> PartitionedInternalStats:
    places = await classic_places(call)
    parts = await together(call.logs.internal_stats(place) for place in places)
    shown = zip((str(place.name) for place in places), parts, strict=True)
    return PartitionedInternalStats(metadata=await topic_metadata(call), partitions=dict(shown))


async def internal_stats(call: Call) -> InternalStats:
    (only,) = await classic_places(call, partitions=False)
    return await call.logs.internal_stats(only)


def add_up(parts: Sequence[TopicStats]) -> TopicStats:
    """Return the stats of a partitioned topic: the sums of the counters and rates of its partitions."""
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in SUMMED}
    latest: dict[str, Any] = {
        name: max((getattr(part, name) for part in parts), default=0) for name in _LATEST
    }
    return TopicStats(
        **sums,
        **latest,
        average_msg_size=sums["bytes_in_counter"] / sums["msg_in_counter"] if sums["msg_in_counter"] else 0.0,
        publishers=[publisher for part in parts for publisher in part.publishers],
        subscriptions=_joined_by_name(parts),
        msg_chunk_published=any(part.msg_chunk_published for part in parts),
        compaction=_joined_compactions(parts),
        deduplication_status=parts[0].deduplication_status if parts else "Disabled",
        troubles=[trouble for part in parts for trouble in part.troubles],
    )


def _joined_compactions(parts: Sequence[TopicStats]) -> CompactionStats:
    """Return the messages that were removed in all partitions, and the latest times of any."""
    found = [msgspec.structs.asdict(part.compaction) for part in parts]
    latest = {name: max(one[name] for one in found) for name in found[0]} if found else {}
    if found:
        removed = "last_compaction_removed_event_count"
        latest[removed] = sum(one[removed] for one in found)
    return CompactionStats(**latest)


def _joined_by_name(parts: Sequence[TopicStats]) -> dict[str, SubscriptionStats]:
    joined: dict[str, SubscriptionStats] = {}
    for part in parts:
        for name, subscription in part.subscriptions.items():
            known = joined.get(name)
            joined[name] = subscription if known is None else _joined(known, subscription)
    return joined


def _joined(one: SubscriptionStats, other: SubscriptionStats) -> SubscriptionStats:
    joined: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(other).items():
        known = getattr(one, name)
        if isinstance(value, list):
            joined[name] = [*known, *value]
        elif name == "earliest_msg_publish_time_in_backlog":
            joined[name] = min(known or value, value or known)
        elif isinstance(value, bool | str):
            joined[name] = known or value
        elif isinstance(value, int | float):
            joined[name] = max(known, value) if name.endswith("timestamp") else known + value
    return msgspec.structs.replace(one, **joined)


WANTED = {
    "getPreciseBacklog": bool,
    "subscriptionBacklogSize": bool,
    "getEarliestTimeInBacklog": bool,
    "excludePublishers": bool,
    "excludeConsumers": bool,
}
"""Parameters of Pulsar's stats. Backlogs are always precise here, and always have a size."""

ENDPOINTS = [
    AdminEndpoint("GET", TOPIC + "/lastMessageId", CLASSIC_READ, last_message_id, client="last_message_id"),
    AdminEndpoint(
        "PUT", TOPIC + "/backlogSize", CLASSIC_READ, backlog_size, body=MessageIdBody, client="backlog_size"
    ),
    AdminEndpoint("GET", TOPIC + "/stats", CLASSIC_LOOK, topic_stats, query=WANTED, client="classic_stats"),
    AdminEndpoint(
        "GET",
        TOPIC + "/partitioned-stats",
        CLASSIC_LOOK,
        partitioned_stats,
        query={**WANTED, "perPartition": bool},
        client="partitioned_stats",
    ),
    AdminEndpoint("GET", TOPIC + "/internalStats", CLASSIC_LOOK, internal_stats, client="internal_stats"),
    AdminEndpoint("GET", TOPIC + "/partitioned-internalStats", CLASSIC_LOOK, partitioned_internal_stats),
]
