"""`/admin/v2/persistent`: the figures of classic topics, with or without partitions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anabranch.admin.calls import Call, route
from anabranch.admin.models.topics import (
    InternalStats,
    MessageIdBody,
    PartitionedInternalStats,
    PartitionedTopicStats,
    TopicStats,
)
from anabranch.admin.stats_sums import add_up
from anabranch.admin.topics import TOPIC, classic_places, topic_metadata
from anabranch.aio import together
from anabranch.broker.browsing import stats
from anabranch.errors import InvalidConfigurationError
from anabranch.model.names import Place


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
    """The stats of each place, with the time when its topic was created."""
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


WANTED = {
    "getPreciseBacklog": bool,
    "subscriptionBacklogSize": bool,
    "getEarliestTimeInBacklog": bool,
    "excludePublishers": bool,
    "excludeConsumers": bool,
}
"""Parameters of Pulsar's stats. Backlogs are always precise here, and always have a size."""

ROUTES = [
    route("GET", TOPIC + "/lastMessageId", last_message_id),
    route("PUT", TOPIC + "/backlogSize", backlog_size, body=MessageIdBody),
    route("GET", TOPIC + "/stats", topic_stats, query=WANTED),
    route("GET", TOPIC + "/partitioned-stats", partitioned_stats, query={**WANTED, "perPartition": bool}),
    route("GET", TOPIC + "/internalStats", internal_stats),
    route("GET", TOPIC + "/partitioned-internalStats", partitioned_internal_stats),
]
