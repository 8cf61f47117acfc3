"""Backlog quotas of served logs: refuse producers, or acknowledge the oldest messages, as the quota says."""

from __future__ import annotations

from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.subscription.skipping import skip_up_to
from anabranch.errors import PublishRefusedError, QuotaExceededError
from anabranch.ledger.storage import LogExtent, SegmentLog
from anabranch.model.policies import backlog
from anabranch.model.policies.backlog import BacklogQuota, OldestBacklog
from anabranch.model.policies.effective import TopicPolicies


def oldest_backlog(log: SegmentLog, now_ms: int) -> OldestBacklog | None:
    """Return the backlog of the durable subscription that is furthest behind; None if none has a backlog."""
    extent = log.extent
    end = extent.next_ordinal
    marks = [
        (max(cursor.acks.mark, extent.first_ordinal), name)
        for name, cursor in log.cursors.items()
        if name != COMPACTION
    ]
    mark, name = min(marks, default=(end, ""))
    if mark >= end:
        return None
    stored_ms = extent.time_of(mark)
    age_s = 0.0 if stored_ms is None else (now_ms - stored_ms) / 1000
    return OldestBacklog(name, extent.bytes_between(mark, end), age_s)


def check_room(log: ServedLog, policies: TopicPolicies, now_ms: int) -> None:
    """Raise QuotaExceededError, or PublishRefusedError, while a quota does not let producers in."""
    quota = policies.backlog
    exceeded = backlog.decide(quota, oldest_backlog(log.log, now_ms)) if quota.limits else None
    if exceeded is not None and exceeded.action != "consumer_backlog_eviction":
        waits = exceeded.action == "producer_request_hold"
        raise (QuotaExceededError if waits else PublishRefusedError)(f"{log.name}: {exceeded.reason}")


async def enforce(log: ServedLog, quota: BacklogQuota, now_ms: int) -> None:
    """Disconnect the producers of a log beyond its quota, or evict its oldest messages."""
    exceeded = backlog.decide(quota, oldest_backlog(log.log, now_ms))
    if exceeded is None:
        return
    if exceeded.action != "consumer_backlog_eviction":
        # Their clients ask for a new producer, and `check_room` answers.
        log.producers.renew()
        return
    end = evicted_up_to(log.log.extent, quota, now_ms)
    for subscription in tuple(log.subscriptions.values()):
        if subscription.durable:
            await skip_up_to(subscription, end)


def evicted_up_to(extent: LogExtent, quota: BacklogQuota, now_ms: int) -> int:
    """Return the first ordinal that an eviction leaves, by the limits whose action is to evict."""
    first = extent.first_ordinal
    if quota.age_max_s is not None and quota.age_action == "consumer_backlog_eviction":
        first = extent.ordinal_at_time(now_ms - 1000 * quota.age_max_s)
    if quota.bytes_max is not None and quota.bytes_action == "consumer_backlog_eviction":
        first = max(first, _keeping(extent, int(quota.bytes_max * backlog.KEPT_SHARE)))
    return first


def _keeping(extent: LogExtent, size_bytes: int) -> int:
    """Return the lowest ordinal from which at most this much is stored."""
    low, high = extent.first_ordinal, extent.next_ordinal
    while low < high:
        middle = (low + high) // 2
        if extent.bytes_between(middle, extent.next_ordinal) > size_bytes:
            low = middle + 1
        else:
            high = middle
    return low
