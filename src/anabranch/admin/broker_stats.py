"""`/admin/v2/broker-stats`: the figures of the asked broker, as Pulsar's tools read them."""

from __future__ import annotations

from typing import Final

from anabranch.admin.calls import Call, route
from anabranch.admin.models.topics import TopicStats
from anabranch.admin.upkeep import BUNDLE
from anabranch.aio import in_slices
from anabranch.broker.browsing import stats
from anabranch.errors import NotAllowedError

LOGS_PER_TURN: Final = 50
"""Logs whose figures are collected in one turn of the event loop."""

BrokerTopics = dict[str, dict[str, dict[str, dict[str, TopicStats]]]]
"""By namespace, bundle and scheme the stats of each topic."""


async def topics(call: Call) -> BrokerTopics:
    """The stats of the topics, partitions and segments that the asked broker has loaded."""
    shown: BrokerTopics = {}
    async for log in in_slices(call.broker.logs.served, LOGS_PER_TURN):
        schemes = shown.setdefault(log.name.namespace_name, {}).setdefault(BUNDLE, {})
        facts = stats.facts_of(call.broker, log.name)
        schemes.setdefault(log.name.domain, {})[str(log.name)] = stats.topic_stats(log, facts)
    return shown


async def refuse(call: Call) -> None:
    """Refuse the figures of a Java process; those of this broker are metrics for Prometheus."""
    raise NotAllowedError(f"{call.path} is not supported: the figures of a broker are at /metrics")


STATS = "/admin/v2/broker-stats"

ROUTES = [
    route("GET", STATS + "/topics", topics),
    route("GET", STATS + "/{figures}", refuse),
]
