"""The policies of single topics, which are stored among those of their namespace, by topic and by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from anabranch.model.names import TopicName

TOPIC_POLICIES: Final = "topic_rates"
"""The key of the policies of single topics among those of a namespace. The name is older than most of
them."""


def topic_key(name: TopicName) -> str:
    """Return the key of a topic in the policies of its namespace, the same for all schemes and partitions."""
    return name.partitioned_topic.local


def topic_policies(policies: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the stored policies of single topics, by topic and by name in the path."""
    stored = policies.get(TOPIC_POLICIES)
    return {
        topic: own
        for topic, own in (stored.items() if isinstance(stored, dict) else ())
        if isinstance(own, dict)
    }


def policy_of_topic(policies: Mapping[str, Any], topic: str, name: str) -> Any:
    """Return one policy of one topic as it is stored; None if the topic has none of its own."""
    return topic_policies(policies).get(topic, {}).get(name)


def with_topic_policy(policies: Mapping[str, Any], topic: str, name: str, value: object) -> dict[str, Any]:
    """Return the policies after one policy of a topic was set, or removed if it is None."""
    own = {other: kept for other, kept in topic_policies(policies).get(topic, {}).items() if other != name}
    if value is not None:
        own[name] = value
    found = without_topic_policies(policies, topic)
    return {**found, TOPIC_POLICIES: {**topic_policies(found), topic: own}} if own else found


def without_topic_policies(policies: Mapping[str, Any], topic: str) -> dict[str, Any]:
    """Return the policies after all policies of a topic were removed."""
    left = {other: own for other, own in topic_policies(policies).items() if other != topic}
    found = {field: value for field, value in policies.items() if field != TOPIC_POLICIES}
    return {**found, TOPIC_POLICIES: left} if left else found
