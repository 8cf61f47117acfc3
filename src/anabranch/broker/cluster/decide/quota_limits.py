"""Decides whether one more client exceeds a quota, from the clients that all brokers count.

Example: maxConsumersPerTopic=3, and the consumers a, b and c of one subscription are each attached to segment
0. Names are counted, so the topic has 3 consumers.

- d is new: 0 + 1 attachments are more than the 0 that are counted for d, so d is one more and is refused.
- b attaches to segment 1 as well: 0 + 1 there is not more than the 1 that is counted for b, so b is admitted.
- Another b attaches to segment 0: 1 + 1 is more than 1, so it is one more and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from anabranch.broker.serving.rates.usage import TenantUse, TopicUse
from anabranch.model.names import TopicName
from anabranch.model.quotas import NamespaceQuotas, TenantQuotas


class NewClient(NamedTuple):
    """A producer or consumer that asks to be attached."""

    topic: TopicName
    kind: Literal["producer", "consumer"]
    name: str
    subscription: str = ""
    attached: int = 0
    """How often a consumer of this name is attached to the same log; 0 where a name is held only once."""
    is_connected: bool = False
    """Whether its connection counts for the tenant already."""


class ReachedQuota(NamedTuple):
    """A quota that leaves no room, and why."""

    policy: str
    reason: str


def limits_clients(kind: str, quotas: NamespaceQuotas, tenant: TenantQuotas) -> tuple[bool, bool]:
    """Whether the clients of a topic, and those of a tenant, have to be counted for a new client."""
    if kind == "producer":
        return bool(quotas.max_producers_per_topic), bool(tenant.producers or tenant.connections)
    of_topic = quotas.max_consumers_per_topic or quotas.max_consumers_per_subscription
    return bool(of_topic), bool(tenant.consumers or tenant.connections)


def reached_in_topic(new: NewClient, use: TopicUse, quotas: NamespaceQuotas) -> ReachedQuota | None:
    """The quota of the namespace that does not allow the client; None if all do."""
    if not _is_one_more(new, use):
        return None
    for policy, known, most, what in _of_topic(new, use, quotas):
        if most and known >= most:
            return ReachedQuota(policy, f"{new.topic} has {known} {what}: {policy}={most}")
    return None


def reached_in_tenant(new: NewClient, use: TenantUse, tenant: TenantQuotas) -> ReachedQuota | None:
    """The quota of the tenant that does not allow the client; None if all do."""
    is_one_more = _is_one_more(new, use.topics.get(str(new.topic), TopicUse()))
    policy = "maxProducers" if new.kind == "producer" else "maxConsumers"
    known = use.producers if new.kind == "producer" else use.consumers
    most = tenant.producers if new.kind == "producer" else tenant.consumers
    if most and known >= most and is_one_more:
        reason = f"tenant {new.topic.tenant} has {known} {new.kind}s: {policy}={most}"
        return ReachedQuota(policy, reason)
    most, known = tenant.connections, use.connections
    if most and known >= most and not new.is_connected:
        reason = f"tenant {new.topic.tenant} has {known} connections: maxConnections={most}"
        return ReachedQuota("maxConnections", reason)
    return None


def _of_topic(new: NewClient, use: TopicUse, quotas: NamespaceQuotas) -> Iterator[tuple[str, int, int, str]]:
    if new.kind == "producer":
        yield "maxProducersPerTopic", use.producer_count, quotas.max_producers_per_topic, "producers"
        return
    yield "maxConsumersPerTopic", use.consumer_count, quotas.max_consumers_per_topic, "consumers"
    of_subscription = use.consumers_of(new.subscription)
    most, what = quotas.max_consumers_per_subscription, f"consumers of subscription {new.subscription}"
    yield "maxConsumersPerSubscription", of_subscription, most, what


def _is_one_more(new: NewClient, use: TopicUse) -> bool:
    """Whether the topic would count a further client, and not a known one on a further segment."""
    names: Mapping[str, int] = use.consumers.get(new.subscription, {})
    if new.kind == "producer":
        names = use.producers
    return new.attached + 1 > names.get(new.name, 0)
