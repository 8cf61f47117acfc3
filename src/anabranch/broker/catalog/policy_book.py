"""The policies of all topics, as the metadata store has them now. Must not know connections or logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anabranch.config.broker import BrokerConfig
from anabranch.model.names import TopicName
from anabranch.model.policies.effective import TopicPolicies, effective
from anabranch.model.policies.of_topics import topic_key, topic_policies
from anabranch.model.policies.retention import Retention


class PolicyBook:
    """Answers without waiting; the owner of the book sets the policies of namespaces as they change."""

    def __init__(self, config: BrokerConfig) -> None:
        self.default = _default(config)
        self.changed: Callable[[str | None], None] = lambda namespace: None
        """Called with a namespace after its policies, or those of its topics, have changed; None for all."""
        self._stored: dict[str, Mapping[str, Any]] = {}
        self._of_namespaces: dict[str, TopicPolicies] = {}
        self._of_topics: dict[str, dict[str, TopicPolicies]] = {}

    def of(self, log: TopicName) -> TopicPolicies:
        """Return the policies of a topic, for its own name, a partition or a segment."""
        namespace = log.namespace_name
        own = self._of_topics.get(namespace)
        found = None if own is None else own.get(topic_key(log.topic if log.is_segment else log))
        return found or self._of_namespaces.get(namespace, self.default)

    def of_namespace(self, namespace: str) -> TopicPolicies:
        return self._of_namespaces.get(namespace, self.default)

    def set(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Follow these policies of a namespace from now on."""
        if self._stored.get(namespace, {}) == policies:
            return
        self._stored[namespace] = policies
        self._work_out(namespace)
        if not policies:
            for kept in (self._stored, self._of_namespaces, self._of_topics):
                kept.pop(namespace)
        self.changed(namespace)

    def set_default(self, config: BrokerConfig) -> None:
        """Follow these settings from now on where no policy is set."""
        default = _default(config)
        if default != self.default:
            self.default = default
            for namespace in self._stored:
                self._work_out(namespace)
            self.changed(None)

    def _work_out(self, namespace: str) -> None:
        policies = self._stored[namespace]
        self._of_namespaces[namespace] = effective(policies, {}, self.default)
        self._of_topics[namespace] = {
            topic: effective(policies, own, self.default) for topic, own in topic_policies(policies).items()
        }


def _default(config: BrokerConfig) -> TopicPolicies:
    kept_s = config.segment_retention_s
    return TopicPolicies(
        retention=Retention(None if kept_s < 0 else kept_s),
        deduplicate=config.deduplication,
        unacked_per_consumer=config.max_unacked_per_consumer,
        unacked_per_subscription=config.max_unacked_per_subscription,
    )
