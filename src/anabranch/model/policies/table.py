"""The one table of policies: their names in paths and in Pulsar's Policies, their forms, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from anabranch.errors import InvalidConfigurationError, NotAllowedError
from anabranch.model.limits import PARTITIONS_MAX
from anabranch.model.policies.backlog import check_quotas
from anabranch.model.policies.quotas import (
    COUNT_MAX,
    NAMESPACE_COUNTS,
    NAMESPACE_RATES,
    RATE_MAX,
    check_count,
    check_rate,
)
from anabranch.model.policies.retention import check_retention

SUBSCRIPTION_TYPES: Final = ("Exclusive", "Failover", "Shared", "Key_Shared")

Check = Callable[[str, object], object]
"""Takes the name of a policy and a value, returns the value to store; raises InvalidConfigurationError."""


def check_flag(name: str, value: object) -> object:
    if type(value) is not bool:
        raise InvalidConfigurationError(f"{name} must be true or false, not {value!r}")
    return value


def check_size(name: str, value: object) -> object:
    if type(value) is not int or not 0 <= value <= RATE_MAX:
        raise InvalidConfigurationError(f"{name} must be a whole number of bytes; 0 means none")
    return value


def check_seconds(name: str, value: object) -> object:
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise InvalidConfigurationError(f"{name} must be a whole number of seconds; 0 means no limit")
    return value


def check_topic_creation(name: str, value: object) -> object:
    allowed = value.get("allowAutoTopicCreation") if isinstance(value, dict) else None
    if not isinstance(value, dict) or type(allowed) is not bool:
        raise InvalidConfigurationError(
            f"{name} must be an object with allowAutoTopicCreation, true or false"
        )
    kind, count = value.get("topicType"), value.get("defaultNumPartitions")
    if kind not in (None, "non-partitioned", "partitioned"):
        raise InvalidConfigurationError(
            f"{name}: topicType must be partitioned or non-partitioned, not {kind!r}"
        )
    if kind == "partitioned" and (type(count) is not int or not 1 <= count <= PARTITIONS_MAX):
        raise InvalidConfigurationError(
            f"{name}: a partitioned topic needs defaultNumPartitions, from 1 to {PARTITIONS_MAX}"
        )
    return value


def check_subscription_creation(name: str, value: object) -> object:
    allowed = value.get("allowAutoSubscriptionCreation") if isinstance(value, dict) else None
    if type(allowed) is not bool:
        raise InvalidConfigurationError(
            f"{name} must be an object with allowAutoSubscriptionCreation, true or false"
        )
    return {"allowAutoSubscriptionCreation": allowed}


def check_types(name: str, value: object) -> object:
    if not isinstance(value, list) or not all(one in SUBSCRIPTION_TYPES for one in value):
        raise InvalidConfigurationError(f"{name} must be a list of {', '.join(SUBSCRIPTION_TYPES)}")
    return value


class PolicyRow(NamedTuple):
    """One policy that brokers enforce."""

    field: str
    """Name in Pulsar's Policies; empty if namespaces do not have the policy."""
    check: Check
    topic_name: str = ""
    """Name in the paths of topics; empty if topics do not have the policy."""
    scalable: str = ""
    """Why scalable topics do not have it; empty if they do."""


_COMPACTION: Final = (
    "compaction works on persistent:// topics; keep the latest value of each key of a scalable topic with "
    "`anabranch pipeline compact`"
)

POLICIES: Final[Mapping[str, PolicyRow]] = {
    "retention": PolicyRow("retention_policies", check_retention, "retention"),
    "messageTTL": PolicyRow("message_ttl_in_seconds", check_seconds, "messageTTL"),
    "backlogQuotaMap": PolicyRow("backlog_quota_map", check_quotas, "backlogQuotaMap"),
    "deduplication": PolicyRow("deduplicationEnabled", check_flag, "deduplicationEnabled"),
    "compactionThreshold": PolicyRow(
        "compaction_threshold", check_size, "compactionThreshold", scalable=_COMPACTION
    ),
    "autoTopicCreation": PolicyRow("autoTopicCreationOverride", check_topic_creation),
    "autoSubscriptionCreation": PolicyRow(
        "autoSubscriptionCreationOverride", check_subscription_creation, "autoSubscriptionCreation"
    ),
    "subscriptionTypesEnabled": PolicyRow(
        "subscription_types_enabled", check_types, "subscriptionTypesEnabled"
    ),
    "encryptionRequired": PolicyRow("encryption_required", check_flag),
    "maxUnackedMessagesPerConsumer": PolicyRow(
        "max_unacked_messages_per_consumer", check_count, "maxUnackedMessagesOnConsumer"
    ),
    "maxUnackedMessagesPerSubscription": PolicyRow(
        "max_unacked_messages_per_subscription", check_count, "maxUnackedMessagesOnSubscription"
    ),
    "maxMessageSize": PolicyRow("", check_size, "maxMessageSize"),
    "maxProducersPerTopic": PolicyRow("max_producers_per_topic", check_count, "maxProducers"),
    "maxConsumersPerTopic": PolicyRow("max_consumers_per_topic", check_count, "maxConsumers"),
    "maxConsumersPerSubscription": PolicyRow(
        "max_consumers_per_subscription", check_count, "maxConsumersPerSubscription"
    ),
    "maxSubscriptionsPerTopic": PolicyRow(
        "max_subscriptions_per_topic", check_count, "maxSubscriptionsPerTopic"
    ),
    "maxTopicsPerNamespace": PolicyRow(NAMESPACE_COUNTS["maxTopicsPerNamespace"], check_count),
    **{name: PolicyRow(field, check_rate, name) for name, field in NAMESPACE_RATES.items()},
}
"""Every policy that is enforced, by its name in the paths of namespaces."""

_ONE_CLUSTER: Final = "there is one cluster, so nothing is replicated to others"
_NO_TIERS: Final = "there is no second tier of storage; keep less with retention, or archive with Spark"

REFUSED: Final[Mapping[str, str]] = {
    "compaction": _COMPACTION,
    "persistence": "an entry is on disk before its receipt, once; there are no bookies to configure",
    "replication": _ONE_CLUSTER,
    "replicatorDispatchRate": _ONE_CLUSTER,
    "shadowTopics": _ONE_CLUSTER,
    "allowedClusters": _ONE_CLUSTER,
    "migration": _ONE_CLUSTER,
    "antiAffinity": _ONE_CLUSTER,
    "bookieAffinityGroup": _ONE_CLUSTER,
    "offloadPolicies": _NO_TIERS,
    "offloadThreshold": _NO_TIERS,
    "offloadThresholdInSeconds": _NO_TIERS,
    "offloadDeletionLagMs": _NO_TIERS,
    "inactiveTopicPolicies": "a topic that stores messages stays until it is deleted, even without clients",
    "subscriptionExpirationTime": "a subscription without consumers stays until it is deleted",
    "delayedDelivery": "delayed delivery is on for Shared and Key_Shared subscriptions, and cannot be tuned",
    "deduplicationSnapshotInterval": "sequence ids are stored with each entry, without snapshots",
    "subscribeRate": "consumers may subscribe at any rate; limit their number with maxConsumersPerTopic",
    "entryFilters": "brokers do not run user code; filter in the consumer",
    "resourcegroup": "there are no resource groups; a tenant has quotas at /admin/v2/tenants/{tenant}/quotas",
    "dispatcherPauseOnAckStatePersistent": "acknowledgements are stored exactly, up to a million holes",
}
"""Policies of Pulsar that this broker does not have, and why."""


def refuse(name: str) -> NotAllowedError | None:
    """Return the error for a policy of Pulsar that this broker does not have; None for any other name."""
    reason = REFUSED.get(name)
    return None if reason is None else NotAllowedError(f"the policy {name} is not supported: {reason}")
