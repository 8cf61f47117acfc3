"""The settings of quotas that hold where a namespace has no policy: a part of `BrokerConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.config.fields import setting
from anabranch.model.policies.quotas import NamespaceQuotas, rate_of


@dataclass(frozen=True, kw_only=True)
class QuotaConfig:
    """Limits for every namespace; 0 means no limit."""

    connections_per_address_max: int = setting(
        0,
        "Most connections from one IP address to one worker. 0 means no limit.",
        pulsar="brokerMaxConnectionsPerIp",
        low=0,
    )
    max_namespaces_per_tenant: int = setting(
        0, "Most namespaces of a tenant. 0 means no limit.", pulsar="maxNamespacesPerTenant", low=0
    )
    max_topics_per_namespace: int = setting(
        0,
        "Most topics of a namespace; each partition of a classic topic counts. 0 means no limit.",
        pulsar="maxTopicsPerNamespace",
        low=0,
    )
    max_producers_per_topic: int = setting(
        0, "Most connected producers of a topic. 0 means no limit.", pulsar="maxProducersPerTopic", low=0
    )
    max_consumers_per_topic: int = setting(
        0, "Most connected consumers of a topic. 0 means no limit.", pulsar="maxConsumersPerTopic", low=0
    )
    max_consumers_per_subscription: int = setting(
        0,
        "Most connected consumers of a subscription. 0 means no limit.",
        pulsar="maxConsumersPerSubscription",
        low=0,
    )
    max_subscriptions_per_topic: int = setting(
        0,
        "Most durable subscriptions of a topic. 0 means no limit.",
        pulsar="maxSubscriptionsPerTopic",
        low=0,
    )
    publish_messages_per_s: int = setting(
        0,
        "Most messages published to a topic each second. 0 means no limit.",
        pulsar="maxPublishRatePerTopicInMessages",
        low=0,
    )
    publish_bytes_per_s: int = setting(
        0,
        "Most bytes published to a topic each second. 0 means no limit.",
        pulsar="maxPublishRatePerTopicInBytes",
        low=0,
    )
    dispatch_messages_per_s: int = setting(
        0,
        "Most messages delivered from a topic each second. 0 means no limit.",
        pulsar="dispatchThrottlingRatePerTopicInMsg",
        low=0,
    )
    dispatch_bytes_per_s: int = setting(
        0,
        "Most bytes delivered from a topic each second. 0 means no limit.",
        pulsar="dispatchThrottlingRatePerTopicInByte",
        low=0,
    )
    subscription_messages_per_s: int = setting(
        0,
        "Most messages delivered to a subscription each second. 0 means no limit.",
        pulsar="dispatchThrottlingRatePerSubscriptionInMsg",
        low=0,
    )
    subscription_bytes_per_s: int = setting(
        0,
        "Most bytes delivered to a subscription each second. 0 means no limit.",
        pulsar="dispatchThrottlingRatePerSubscriptionInByte",
        low=0,
    )
    dispatch_relative: bool = setting(
        False,
        "Whether the limits of delivery are added to the rate at which a topic is published to.",
        pulsar="dispatchThrottlingRateRelativeToPublishRate",
    )

    policy_check_s: float = setting(
        60.0,
        "Interval in which messages are expired, and backlog quotas and compaction thresholds are compared.",
        pulsar="backlogQuotaCheckIntervalInSeconds",
        low=0.05,
    )

    def namespace_quotas(self) -> NamespaceQuotas:
        """Return the limits of a namespace without policies."""
        relative = self.dispatch_relative
        return NamespaceQuotas(
            max_producers_per_topic=self.max_producers_per_topic,
            max_consumers_per_topic=self.max_consumers_per_topic,
            max_consumers_per_subscription=self.max_consumers_per_subscription,
            max_subscriptions_per_topic=self.max_subscriptions_per_topic,
            max_topics_per_namespace=self.max_topics_per_namespace,
            publish=rate_of(self.publish_messages_per_s, self.publish_bytes_per_s),
            dispatch=rate_of(self.dispatch_messages_per_s, self.dispatch_bytes_per_s, relative=relative),
            subscription_dispatch=rate_of(
                self.subscription_messages_per_s, self.subscription_bytes_per_s, relative=relative
            ),
        )
