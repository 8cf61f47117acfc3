"""The policies of a namespace as one body, with the names of Pulsar's `Policies`."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from anabranch.admin.models.body import Body
from anabranch.admin.models.scalable import AutoScaleOverride
from anabranch.admin.models.tenants import DispatchRate, PublishRate


class AuthPolicies(Body, frozen=True, kw_only=True, rename=None):
    """Granted actions: by role, by topic and role; and the roles of reserved subscriptions."""

    namespace_auth: dict[str, list[str]] = {}
    destination_auth: dict[str, dict[str, list[str]]] = {}
    subscription_auth_roles: dict[str, list[str]] = {}


class Bundles(Body, frozen=True, kw_only=True):
    """The hash ranges that Pulsar's tools expect of a namespace; here there is always one."""

    boundaries: list[str] = field(default_factory=lambda: ["0x00000000", "0xffffffff"])
    num_bundles: int = 1


class RetentionPolicies(Body, frozen=True, kw_only=True, omit_defaults=True):
    """How long acknowledged messages stay, and how much of them; -1 means no limit."""

    # Clients in Go read a whole number only if it is written as one.
    retention_time_in_minutes: int | float | None = None
    retention_size_in_mb: int | float | None = field(default=None, name="retentionSizeInMB")


class AutoTopicCreation(Body, frozen=True, kw_only=True, omit_defaults=True):
    """Whether clients create a topic by using it, and the partitions that it gets."""

    allow_auto_topic_creation: bool
    topic_type: Literal["partitioned", "non-partitioned"] | None = None
    default_num_partitions: int | None = None


class AutoSubscriptionCreation(Body, frozen=True, kw_only=True):
    """Whether consumers create a subscription by using it."""

    allow_auto_subscription_creation: bool


class BacklogQuotaBody(Body, frozen=True, kw_only=True, omit_defaults=True):
    """The most bytes or seconds that subscriptions may leave unacknowledged; -1 means no limit."""

    limit: int | None = None
    """An older name of `limitSize`."""
    limit_size: int | None = None
    limit_time: int | None = None
    policy: Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]


class NamespacePolicies(Body, frozen=True, kw_only=True, rename=None, omit_defaults=True):
    """The policies that are set; an absent one comes from the broker. Rates are by cluster."""

    auth_policies: AuthPolicies | None = None
    replication_clusters: list[str] | None = None
    allowed_clusters: list[str] | None = None
    bundles: Bundles | None = None
    properties: dict[str, str] | None = None
    retention_policies: RetentionPolicies | None = None
    message_ttl_in_seconds: int | None = None
    backlog_quota_map: dict[str, BacklogQuotaBody] | None = None
    subscription_expiration_time_minutes: int | None = None
    deduplication_enabled: bool | None = field(default=None, name="deduplicationEnabled")
    auto_topic_creation_override: AutoTopicCreation | None = field(
        default=None, name="autoTopicCreationOverride"
    )
    auto_subscription_creation_override: AutoSubscriptionCreation | None = field(
        default=None, name="autoSubscriptionCreationOverride"
    )
    scalable_topic_auto_scale_policy: AutoScaleOverride | None = field(
        default=None, name="scalableTopicAutoScalePolicy"
    )
    publish_max_message_rate: dict[str, PublishRate] | None = field(
        default=None, name="publishMaxMessageRate"
    )
    topic_dispatch_rate: dict[str, DispatchRate] | None = field(default=None, name="topicDispatchRate")
    subscription_dispatch_rate: dict[str, DispatchRate] | None = field(
        default=None, name="subscriptionDispatchRate"
    )
    cluster_subscribe_rate: dict[str, Any] | None = field(default=None, name="clusterSubscribeRate")
    subscription_auth_mode: str | None = None
    subscription_types_enabled: list[str] | None = None
    encryption_required: bool | None = None
    delayed_delivery_policies: dict[str, Any] | None = None
    inactive_topic_policies: dict[str, Any] | None = None
    persistence: dict[str, Any] | None = None
    max_producers_per_topic: int | None = None
    max_consumers_per_topic: int | None = None
    max_consumers_per_subscription: int | None = None
    max_unacked_messages_per_consumer: int | None = None
    max_unacked_messages_per_subscription: int | None = None
    max_subscriptions_per_topic: int | None = None
    max_topics_per_namespace: int | None = None
    compaction_threshold: int | None = None
    schema_compatibility_strategy: str | None = None
    schema_validation_enforced: bool | None = None
    is_allow_auto_update_schema: bool | None = None
    schema_auto_update_compatibility_strategy: str | None = None
