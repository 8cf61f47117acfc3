"""The stats of a partitioned topic: those of its partitions added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from anabranch.admin.models.topics import CompactionStats, SubscriptionStats, TopicStats

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


def add_up(parts: Sequence[TopicStats]) -> TopicStats:
    """The stats of a partitioned topic: the sums of the counters and rates of its partitions."""
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
    """The messages that were removed in all partitions, and the latest times of any."""
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
