"""The policies in force for one topic: its own, else those of its namespace, else the broker's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from anabranch.model.policies.backlog import NO_QUOTA, BacklogQuota, quota_of
from anabranch.model.policies.retention import FOR_EVER, Retention, retention_of
from anabranch.model.policies.table import POLICIES, SUBSCRIPTION_TYPES

_UNLIMITED: Final = 2**62


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """The values in force for one topic; counts and rates are in `NamespaceQuotas`."""

    retention: Retention = FOR_EVER
    message_ttl_s: int | None = None
    """Older messages are acknowledged for every subscription; None means no limit."""
    backlog: BacklogQuota = NO_QUOTA
    """The quota of each log: a topic, a partition or a segment."""
    deduplicate: bool = True
    compaction_bytes: int | None = None
    """A topic is compacted once this much was stored since the last compaction; None means only on
    request."""
    creates_subscriptions: bool = True
    subscription_types: frozenset[str] = frozenset(SUBSCRIPTION_TYPES)
    encryption_required: bool = False
    message_bytes_max: int | None = None
    unacked_per_consumer: int = 0
    """0 means no limit."""
    unacked_per_subscription: int = 0

    @property
    def unacked_of_consumer_max(self) -> int:
        """Most unacknowledged messages of one consumer, as a bound to compare with."""
        return self.unacked_per_consumer or _UNLIMITED

    @property
    def unacked_of_all_max(self) -> int:
        """As `unacked_of_consumer_max`, for all consumers of a subscription together."""
        return self.unacked_per_subscription or _UNLIMITED


def effective(policies: Mapping[str, Any], own: Mapping[str, Any], default: TopicPolicies) -> TopicPolicies:
    """Return the values for a topic with its own policies in a namespace.

    A value of an unknown form is ignored.
    """
    found: dict[str, Any] = {
        "retention": retention_of(_value("retention", policies, own), default.retention.time_s),
        "backlog": quota_of([own.get("backlogQuotaMap"), policies.get("backlog_quota_map")]),
    }
    for field, name in _NUMBERS.items():
        value = _value(name, policies, own)
        if type(value) is int and value >= 0:
            found[field] = value or (0 if field in _COUNTS else None)
    for field, name in _FLAGS.items():
        value = _value(name, policies, own)
        if type(value) is bool:
            found[field] = value
    creation = _value("autoSubscriptionCreation", policies, own)
    if isinstance(creation, dict) and type(creation.get("allowAutoSubscriptionCreation")) is bool:
        found["creates_subscriptions"] = creation["allowAutoSubscriptionCreation"]
    types = _value("subscriptionTypesEnabled", policies, own)
    if isinstance(types, list) and types:
        found["subscription_types"] = frozenset(SUBSCRIPTION_TYPES) & frozenset(types)
    return replace(default, **found)


_NUMBERS = {
    "message_ttl_s": "messageTTL",
    "compaction_bytes": "compactionThreshold",
    "message_bytes_max": "maxMessageSize",
    "unacked_per_consumer": "maxUnackedMessagesPerConsumer",
    "unacked_per_subscription": "maxUnackedMessagesPerSubscription",
}
_COUNTS = ("unacked_per_consumer", "unacked_per_subscription")
_FLAGS = {"deduplicate": "deduplication", "encryption_required": "encryptionRequired"}


def _value(name: str, policies: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    line = POLICIES[name]
    found = own.get(line.topic_name) if line.topic_name else None
    return policies.get(line.field) if found is None and line.field else found
