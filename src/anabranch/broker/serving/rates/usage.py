"""Counts the clients that are connected to this broker, by tenant and topic.

A topic counts a client once, although the client is attached to several of its segments: a name counts as
often as it is attached to the segment that has it most often. Brokers exchange these counts by name, so that
this is true over all brokers too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from anabranch.model.names import TopicName

Names = Mapping[str, int]
"""How often each name is attached."""


class UsingProducer(Protocol):
    """A producer, its name bound to its role, and its connection."""

    @property
    def bound_name(self) -> str: ...

    @property
    def link(self) -> object: ...


class UsingConsumer(Protocol):
    """A consumer and its connection."""

    @property
    def name(self) -> str: ...

    @property
    def link(self) -> object: ...


class TopicUse(msgspec.Struct, frozen=True):
    """The clients of one topic."""

    producers: Names = {}
    consumers: Mapping[str, Names] = {}
    """By subscription."""

    @property
    def producer_count(self) -> int:
        return sum(self.producers.values())

    @property
    def consumer_count(self) -> int:
        return sum(map(self.consumers_of, self.consumers))

    def consumers_of(self, subscription: str) -> int:
        return sum(self.consumers.get(subscription, {}).values())


class TenantUse(msgspec.Struct, frozen=True):
    """The clients of one tenant at one broker, or at all brokers."""

    connections: int = 0
    topics: Mapping[str, TopicUse] = {}

    @property
    def producers(self) -> int:
        return sum(topic.producer_count for topic in self.topics.values())

    @property
    def consumers(self) -> int:
        return sum(topic.consumer_count for topic in self.topics.values())


def merged(uses: Iterable[TopicUse]) -> TopicUse:
    """Return the clients of a topic, from the uses of its segments or of several brokers."""
    producers: Counter[str] = Counter()
    consumers: dict[str, Counter[str]] = {}
    for use in uses:
        producers |= Counter(use.producers)
        for subscription, names in use.consumers.items():
            consumers[subscription] = consumers.get(subscription, Counter()) | Counter(names)
    return TopicUse(producers, consumers)


def merged_tenant(uses: Iterable[TenantUse]) -> TenantUse:
    """Return the clients of a tenant at several brokers."""
    connections = 0
    parts: dict[str, list[TopicUse]] = {}
    for use in uses:
        connections += use.connections
        for topic, of_topic in use.topics.items():
            parts.setdefault(topic, []).append(of_topic)
    return TenantUse(connections, {topic: merged(found) for topic, found in parts.items()})


def topic_of(log: TopicName) -> TopicName:
    """Return the topic that a log counts for: that of a segment, else the log itself, as in Pulsar."""
    return log.topic if log.is_segment else log


class _Entry(NamedTuple):
    log: TopicName
    subscription: str | None
    name: str
    link: object


class _LogUse:
    __slots__ = ("consumers", "producers")

    def __init__(self) -> None:
        self.producers: Counter[str] = Counter()
        self.consumers: dict[str, Counter[str]] = {}

    def use(self) -> TopicUse:
        return TopicUse(self.producers, self.consumers)


class Usage:
    """The clients of this broker. Adding and discarding cost the same however many there are."""

    def __init__(self) -> None:
        self._entries: dict[object, _Entry] = {}
        self._logs: dict[str, dict[TopicName, dict[TopicName, _LogUse]]] = {}
        """By tenant, topic and log."""
        self._links: dict[str, Counter[object]] = {}
        """By tenant the connections with the number of their clients."""

    def add_producer(self, log: TopicName, producer: UsingProducer) -> None:
        self._add(producer, _Entry(log, None, producer.bound_name, producer.link))

    def add_consumer(self, log: TopicName, subscription: str, consumer: UsingConsumer) -> None:
        """Count a consumer of a log, or a registered consumer of a whole topic."""
        self._add(consumer, _Entry(log, subscription, consumer.name, consumer.link))

    def discard(self, client: object) -> None:
        """Stop counting a producer or consumer. Does nothing if it is not counted."""
        entry = self._entries.pop(client, None)
        if entry is None:
            return
        tenant, topic = entry.log.tenant, topic_of(entry.log)
        logs = self._logs[tenant][topic]
        use = logs[entry.log]
        names = use.producers if entry.subscription is None else use.consumers[entry.subscription]
        _drop(names, entry.name)
        if entry.subscription is not None and not names:
            del use.consumers[entry.subscription]
        _drop(self._links[tenant], entry.link)
        if not use.producers and not use.consumers:
            del logs[entry.log]
            if not logs:
                del self._logs[tenant][topic]
            if not self._logs[tenant]:
                del self._logs[tenant], self._links[tenant]

    def of_topic(self, log: TopicName) -> TopicUse:
        """Return the clients of the topic that the log belongs to."""
        logs = self._logs.get(log.tenant, {}).get(topic_of(log), {})
        return merged(use.use() for use in logs.values())

    def of_tenant(self, tenant: str) -> TenantUse:
        topics = {str(topic): self.of_topic(topic) for topic in self._logs.get(tenant, {})}
        return TenantUse(len(self._links.get(tenant, ())), topics)

    def attached(self, log: TopicName, subscription: str, name: str) -> int:
        """How often a consumer of this name is attached to the log."""
        use = self._logs.get(log.tenant, {}).get(topic_of(log), {}).get(log)
        return 0 if use is None else use.consumers.get(subscription, Counter())[name]

    def uses(self, tenant: str, link: object) -> bool:
        """Return whether a connection counts for the tenant already."""
        return link in self._links.get(tenant, ())

    def _add(self, client: object, entry: _Entry) -> None:
        self.discard(client)
        self._entries[client] = entry
        tenant = entry.log.tenant
        logs = self._logs.setdefault(tenant, {}).setdefault(topic_of(entry.log), {})
        use = logs.setdefault(entry.log, _LogUse())
        if entry.subscription is None:
            use.producers[entry.name] += 1
        else:
            use.consumers.setdefault(entry.subscription, Counter())[entry.name] += 1
        self._links.setdefault(tenant, Counter())[entry.link] += 1


def _drop(counts: Counter[Any], key: object) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
