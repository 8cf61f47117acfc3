"""Quotas of namespaces and tenants: their names in Pulsar's policies, their values, and which of them apply.

A count of 0 means no limit. A policy of a namespace replaces the setting of the broker; the quotas of a
tenant apply in addition to those of its namespaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from anabranch.errors import InvalidConfigurationError
from anabranch.model.token_bucket import Rate

COUNT_MAX: Final = 2**31 - 1
RATE_MAX: Final = 2**63 - 1

NAMESPACE_COUNTS: Final = {
    "maxProducersPerTopic": "max_producers_per_topic",
    "maxConsumersPerTopic": "max_consumers_per_topic",
    "maxConsumersPerSubscription": "max_consumers_per_subscription",
    "maxSubscriptionsPerTopic": "max_subscriptions_per_topic",
    "maxTopicsPerNamespace": "max_topics_per_namespace",
}
"""Name in the path -> name in Pulsar's Policies, and of the setting of the broker."""

TOPIC_COUNTS: Final = {
    "maxProducers": "max_producers_per_topic",
    "maxConsumers": "max_consumers_per_topic",
    "maxConsumersPerSubscription": "max_consumers_per_subscription",
    "maxSubscriptionsPerTopic": "max_subscriptions_per_topic",
}
"""Name in the paths of topics -> name in Pulsar's Policies."""

NAMESPACE_RATES: Final = {
    "publishRate": "publishMaxMessageRate",
    "dispatchRate": "topicDispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
}
"""Name in the path -> name in Pulsar's Policies, where the value is a map from clusters to rates."""

TENANT_COUNTS: Final = (
    "maxConnections",
    "maxNamespaces",
    "maxTopics",
    "maxSubscriptions",
    "maxProducers",
    "maxConsumers",
)
TENANT_RATES: Final = ("publishRate", "dispatchRate")

_RATE_PLACES: Final = ("publish", "dispatch", "subscription_dispatch")
_PUBLISH: Final = {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": -1}
_DISPATCH: Final = {
    "dispatchThrottlingRateInMsg": -1,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}


@dataclass(frozen=True, slots=True)
class NamespaceQuotas:
    """The limits of one namespace; the fields of counts have the names of Pulsar's Policies."""

    max_producers_per_topic: int = 0
    max_consumers_per_topic: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions_per_topic: int = 0
    max_topics_per_namespace: int = 0
    publish: Rate | None = None
    """For each topic."""
    dispatch: Rate | None = None
    """For each topic, over all subscriptions."""
    subscription_dispatch: Rate | None = None
    """For each subscription."""


@dataclass(frozen=True, slots=True)
class TenantQuotas:
    """The limits of one tenant, over all its namespaces."""

    connections: int = 0
    namespaces: int = 0
    topics: int = 0
    subscriptions: int = 0
    producers: int = 0
    consumers: int = 0
    publish: Rate | None = None
    dispatch: Rate | None = None


NO_NAMESPACE_QUOTAS: Final = NamespaceQuotas()
NO_TENANT_QUOTAS: Final = TenantQuotas()


def check_count(name: str, value: object) -> int:
    """Return the value of a policy that counts; raises InvalidConfigurationError."""
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise InvalidConfigurationError(
            f"{name} must be a whole number from 0 to {COUNT_MAX}; 0 means no limit"
        )
    return value


def check_rate(name: str, value: object) -> dict[str, Any]:
    """Return a rate with all its fields, in Pulsar's form; raises InvalidConfigurationError."""
    form = _PUBLISH if name == "publishRate" else _DISPATCH
    if not isinstance(value, dict):
        raise InvalidConfigurationError(f"{name} must be an object with {', '.join(form)}")
    unknown = [field for field in value if field not in form]
    if unknown:
        raise InvalidConfigurationError(f"{name} has no field {unknown[0]!r}; it has {', '.join(form)}")
    rate: dict[str, Any] = {**form, **value}
    for field, found in rate.items():
        low = 1 if field == "ratePeriodInSecond" else -1
        right = type(found) is bool if type(form[field]) is bool else _is_whole(found, low)
        if not right:
            wanted = "true or false" if type(form[field]) is bool else f"a whole number of at least {low}"
            raise InvalidConfigurationError(f"{name}: {field} must be {wanted}, not {found!r}")
    return rate


def check_tenant(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the quotas of a tenant in their full form; raises InvalidConfigurationError."""
    known = (*TENANT_COUNTS, *TENANT_RATES)
    unknown = [name for name in value if name not in known]
    if unknown:
        raise InvalidConfigurationError(
            f"there is no quota {unknown[0]!r}; the quotas are {', '.join(known)}"
        )
    checked: dict[str, Any] = {}
    for name, given in value.items():
        if given is not None:
            checked[name] = (check_count if name in TENANT_COUNTS else check_rate)(name, given)
    return checked


def namespace_quotas(policies: Mapping[str, Any], broker: NamespaceQuotas, cluster: str) -> NamespaceQuotas:
    """Return the limits of a namespace with these policies; a policy that cannot be read is ignored."""
    found: dict[str, Any] = {field.name: getattr(broker, field.name) for field in fields(NamespaceQuotas)}
    for field in NAMESPACE_COUNTS.values():
        if _is_whole(policies.get(field), 0):
            found[field] = policies[field]
    for place, (name, field) in zip(_RATE_PLACES, NAMESPACE_RATES.items(), strict=True):
        by_cluster = policies.get(field)
        rate = _read_rate(name, by_cluster.get(cluster)) if isinstance(by_cluster, dict) else None
        found[place] = rate or found[place]
    return NamespaceQuotas(**found)


def topic_quotas(namespace: NamespaceQuotas, own: Mapping[str, Any]) -> NamespaceQuotas:
    """Return the limits of a topic with these stored policies.

    A rate without limits lifts that of the namespace.
    """
    found: dict[str, Any] = {
        field: own[name] for name, field in TOPIC_COUNTS.items() if _is_whole(own.get(name), 0)
    }
    for place, name in zip(_RATE_PLACES, NAMESPACE_RATES, strict=True):
        if name in own:
            found[place] = _read_rate(name, own[name])
    return replace(namespace, **found)


def tenant_quotas(stored: Mapping[str, Any]) -> TenantQuotas:
    """Return the limits of a tenant with these stored quotas."""
    counts = (stored.get(name, 0) for name in TENANT_COUNTS)
    return TenantQuotas(*counts, *(_read_rate(name, stored.get(name)) for name in TENANT_RATES))


def rate_of(messages: float, size: float, period_s: float = 1.0, *, relative: bool = False) -> Rate | None:
    """Return the rate with these limits.

    A limit that is not positive is ignored. Return None if no limit is left.
    """
    if messages <= 0 and size <= 0:
        return None
    return Rate(messages if messages > 0 else None, size if size > 0 else None, period_s, relative)


def _read_rate(name: str, value: object) -> Rate | None:
    try:
        given = check_rate(name, value)
    except InvalidConfigurationError:
        return None
    if name == "publishRate":
        return rate_of(*(given[field] for field in _PUBLISH))
    messages, size, relative, period = (given[field] for field in _DISPATCH)
    return rate_of(messages, size, float(period), relative=relative)


def _is_whole(value: object, low: int) -> bool:
    return type(value) is int and low <= value <= RATE_MAX
