"""Bodies about scalable topics: their layout, their figures, and the reasons of their leader."""

from __future__ import annotations

from typing import Any

from anabranch.admin.models.body import Body
from anabranch.admin.models.lanes import LaneInfo


class HashRangeBody(Body, frozen=True, kw_only=True):
    """A range of the ring of hashes; both ends belong to it."""

    start: int
    end: int


class SegmentInfo(Body, frozen=True, kw_only=True):
    """One node of the DAG."""

    segment_id: int
    hash_range: HashRangeBody
    state: str = "ACTIVE"
    parent_ids: list[int] = []
    child_ids: list[int] = []
    created_at_epoch: int = 0
    sealed_at_epoch: int = -1
    created_at_ms: int = 0
    sealed_at_ms: int = -1
    legacy_topic_name: str | None = None
    entry_bucket_splits: list[int] = []
    store: int = 0


class ScalableMetadata(Body, frozen=True, kw_only=True):
    """The stored record of a scalable topic."""

    epoch: int = 0
    next_segment_id: int = 0
    segments: dict[int, SegmentInfo] = {}
    properties: dict[str, str] = {}
    auto_scale_policy: dict[str, bool | int | float] | None = None
    hash_version: int = 1
    incarnation: int = 0
    store: int = 0
    term: int = 0
    created_at_ms: int = 0
    intent: dict[str, Any] | None = None
    """The change of the layout that is under way."""
    garbage: list[dict[str, Any]] = []
    pruned: dict[int, Any] = {}
    history: dict[str, Any] = {}
    deleted: bool = False


class AutoScaleOverride(Body, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of the auto-scaling policy that a namespace or topic sets itself (PIP-483 and PIP-486)."""

    enabled: bool | None = None
    max_segments: int | None = None
    min_segments: int | None = None
    max_dag_depth: int | None = None
    split_cooldown_seconds: float | None = None
    merge_cooldown_seconds: float | None = None
    merge_window_seconds: float | None = None
    rebucket_cooldown_seconds: float | None = None
    split_msg_rate_in_threshold: float | None = None
    split_bytes_rate_in_threshold: float | None = None
    split_msg_rate_out_threshold: float | None = None
    split_bytes_rate_out_threshold: float | None = None
    merge_msg_rate_in_threshold: float | None = None
    merge_bytes_rate_in_threshold: float | None = None
    merge_msg_rate_out_threshold: float | None = None
    merge_bytes_rate_out_threshold: float | None = None
    split_vs_rebucket_min_msg_rate_in_threshold: float | None = None
    entry_bucket_max_per_segment: int | None = None
    load_stale_seconds: float | None = None


class HotHashBody(Body, frozen=True, kw_only=True):
    """A hash with much of the traffic of a segment, and one of its keys."""

    hash: str = ""
    bucket_hash: int = 0
    share: float = 0.0
    sample_key: str | None = None


class SegmentStats(Body, frozen=True, kw_only=True):
    """The figures of one segment; rates are None while its owner does not answer."""

    name: str = ""
    state: str = ""
    hash_range: str = ""
    parent_ids: list[int] = []
    child_ids: list[int] = []
    bucket_count: int = 1
    msg_rate_in: float | None = None
    bytes_rate_in: float | None = None
    msg_rate_out: float | None = None
    bytes_rate_out: float | None = None
    backlog_messages: int | None = None
    storage_size: int | None = None
    troubles: list[str] = []
    hottest: list[HotHashBody] = []
    store: int | None = None
    owner_broker: str | None = None


class MemberInfo(Body, frozen=True, kw_only=True):
    """A registered consumer; a disconnected one keeps its segments for a while."""

    connected: bool = False
    evicted_in_seconds: float | None = None
    segments: list[int] = []


class WaitingFor(Body, frozen=True, kw_only=True):
    """Buckets of a sealed segment that must be drained first, and the consumers that read them."""

    segment: int = 0
    buckets: list[str] = []
    consumers: list[str] = []


class SubscriptionState(Body, frozen=True, kw_only=True):
    """The progress, the troubles and the members of a subscription."""

    type: str | None = None
    initial_position: str | None = None
    generation: int = 0
    drained: list[int] = []
    partly_drained: dict[str, list[str]] = {}
    waiting: dict[str, list[WaitingFor]] = {}
    """By segment that is held back."""
    unfinished: str | None = None
    trouble: str | None = None
    unreached: dict[str, str] = {}
    consumers: dict[str, MemberInfo] = {}


class ScalableSubscriptionStats(SubscriptionState, frozen=True, kw_only=True):
    """The state of a subscription with the figures of its backlog, in messages."""

    consumer_count: int = 0
    backlog: int | None = None
    backlog_by_segment: dict[str, int] = {}
    lanes: int = 0
    lane_entries: int = 0
    lane_messages: int = 0
    lane_bytes: int = 0
    spilled_bytes: int = 0
    consumable_backlog: int | None = None


class ScalableStats(Body, frozen=True, kw_only=True):
    """The figures of a scalable topic: sums, segments by id, subscriptions by name."""

    epoch: int = 0
    msg_rate_in: float = 0.0
    bytes_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0
    backlog_messages: int = 0
    storage_size: int = 0
    total_segments: int = 0
    active_segments: int = 0
    sealed_segments: int = 0
    segments: dict[str, SegmentStats] = {}
    subscriptions: dict[str, ScalableSubscriptionStats] = {}
    auto_scale_policy: dict[str, Any] = {}


class ScaleDecision(Body, frozen=True, kw_only=True):
    """A decision of auto-scaling, its count in a row, and the reasons against everything else."""

    action: str = ""
    reason: str = ""
    against: list[str] = []
    outcome: str | None = None
    count: int = 1
    first_ms: int = 0
    last_ms: int = 0
    look_again_seconds: float | None = None


class HotKey(Body, frozen=True, kw_only=True):
    """A key and its part of the traffic of a segment."""

    key: str | None = None
    traffic_share: float = 0.0


class Explanation(Body, frozen=True, kw_only=True):
    """Changes under way, the state of each subscription, decisions of auto-scaling, hot keys and lanes."""

    topic: str = ""
    epoch: int = 0
    term: int = 0
    operation: dict[str, Any] | None = None
    waiting_changes: int = 0
    garbage: list[str] = []
    troubles: dict[str, str] = {}
    subscriptions: dict[str, SubscriptionState] = {}
    decisions: list[ScaleDecision] = []
    hot_keys: dict[str, list[HotKey]] = {}
    lanes: dict[str, list[LaneInfo]] = {}
