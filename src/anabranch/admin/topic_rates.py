"""The rates of single topics over HTTP, with Pulsar's paths: they replace those of the namespace."""

from __future__ import annotations

from typing import Any

import msgspec

from anabranch.admin.calls import Call, route
from anabranch.admin.permissions import topic_exists
from anabranch.errors import TopicNotFoundError
from anabranch.metadata.records import NamespaceRecord
from anabranch.model.names import Domain, TopicName
from anabranch.model.quotas import (
    NAMESPACE_RATES,
    check_rate,
    rate_of_topic,
    topic_key,
    with_topic_rate,
)


class _TopicRate:
    """One rate of the topics of one scheme."""

    def __init__(self, domain: Domain, name: str) -> None:
        self._domain = domain
        self._name = name

    async def get(self, call: Call) -> Any:
        """The rate of the topic; with `applied`, the rate of its namespace if the topic has none."""
        topic = await self._topic(call)
        policies = (await call.topics.namespaces.load_namespace(call.namespace())).policies
        found = rate_of_topic(policies, topic_key(topic), self._name)
        if found is None and call.flag("applied"):
            by_cluster = policies.get(NAMESPACE_RATES[self._name]) or {}
            found = by_cluster.get(call.broker.config.cluster)
        return found

    async def set(self, call: Call) -> None:
        topic = await self._topic(call)
        await self._store(call, topic, check_rate(self._name, await call.body(object)))

    async def remove(self, call: Call) -> None:
        await self._store(call, await self._topic(call), None)

    async def _topic(self, call: Call) -> TopicName:
        name = call.topic(self._domain)
        if not await topic_exists(call, name):
            raise TopicNotFoundError(f"{name} does not exist")
        return name

    async def _store(self, call: Call, topic: TopicName, rate: dict[str, Any] | None) -> None:
        def change(record: NamespaceRecord) -> NamespaceRecord:
            policies = with_topic_rate(record.policies, topic_key(topic), self._name, rate)
            return msgspec.structs.replace(record, policies=policies)

        await call.topics.namespaces.update_namespace(call.namespace(), change)


CLASSIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
SCALABLE = "/admin/v2/scalable/{tenant}/{namespace}/{topic}"
_PLACES: tuple[tuple[str, Domain], ...] = ((CLASSIC, "persistent"), (SCALABLE, "topic"))
_RATES = [
    (f"{path}/{name}", _TopicRate(domain, name)) for path, domain in _PLACES for name in NAMESPACE_RATES
]

ROUTES = [
    *(route("GET", path, rate.get) for path, rate in _RATES),
    *(route("POST", path, rate.set) for path, rate in _RATES),
    *(route("DELETE", path, rate.remove) for path, rate in _RATES),
]
