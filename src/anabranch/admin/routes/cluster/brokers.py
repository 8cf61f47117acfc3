"""Requests of load balancers, monitors and Pulsar's tools: health, brokers, figures, topic lookup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import urlsplit

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.models.brokers import BrokerInfo, InternalConfiguration, LeaderBroker, LookupAnswer
from anabranch.admin.models.topics import TopicStats
from anabranch.admin.routes.topics.upkeep import BUNDLE
from anabranch.aio import in_slices, together
from anabranch.broker.broker import Broker
from anabranch.broker.browsing import stats
from anabranch.broker.cluster.remote_calls import Port
from anabranch.broker.wire.handlers.lookup import check_listener
from anabranch.errors import NotAllowedError, NotFoundError, TopicNotFoundError
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.protocol.connection import SERVER_VERSION
from anabranch.rights.rows import AUTHENTICATED, LOOKED_UP, OPEN, SUPERUSER, lookup_in


async def health(call: Call) -> str:
    return "ok"


async def status(call: Call) -> str:
    return "OK"


async def version(call: Call) -> str:
    return SERVER_VERSION


async def brokers(call: Call) -> list[str]:
    if "cluster" in call.parts and call.part("cluster") != call.broker.config.cluster:
        raise NotFoundError(
            f"{call.path} is not offered: {call.part('cluster')!r} is neither a call nor the cluster, "
            f"which is {call.broker.config.cluster!r}"
        )
    living = sorted(call.broker.directory.brokers.items())
    return [urlsplit(broker.web_url).netloc for _, broker in living]


async def workers(call: Call) -> list[BrokerInfo]:
    """Each living broker with the stores it owns, and last the stores without an owner."""
    directory = call.broker.directory
    shown = [
        BrokerInfo(
            id=broker.id,
            service_url=broker.url or None,
            web_service_url=broker.http_url or None,
            service_url_tls=broker.url_tls or None,
            web_service_url_tls=broker.http_url_tls or None,
            stores=[store for store in sorted(directory.stores) if directory.owner_of(store) == broker],
        )
        for _, broker in sorted(directory.brokers.items())
    ]
    unserved = [store for store in sorted(directory.stores) if directory.owner_of(store) is None]
    if unserved:
        shown.append(BrokerInfo(stores=unserved))
    return shown


async def leader(call: Call) -> LeaderBroker:
    """The first broker: Pulsar's tools ask for a leader of all brokers, which this cluster does not have."""
    living = call.broker.directory.brokers.values()
    first = min(living, key=lambda broker: broker.id, default=call.broker.record)
    return LeaderBroker(broker_id=urlsplit(first.web_url).netloc, service_url=first.web_url)


async def internal_configuration(call: Call) -> InternalConfiguration:
    """The store that all brokers share; there is no BookKeeper and no state storage here."""
    url = call.topics.store.url
    return InternalConfiguration(metadata_store_url=url, configuration_metadata_store_url=url)


async def lookup(call: Call) -> LookupAnswer:
    name = lookup_in(call.part)
    check_listener(call.query("listenerName") or call.header("X-Pulsar-ListenerName"))
    if (name.domain == "persistent" or name.is_live) and not await call.broker.classic.is_usable(name):
        raise TopicNotFoundError(f"{name} does not exist")
    broker = await call.broker.owners.owner_of(name) or call.broker.record
    return LookupAnswer(
        broker_url=broker.url or None,
        broker_url_tls=broker.url_tls or None,
        http_url=broker.http_url or None,
        http_url_tls=broker.http_url_tls or None,
        native_url=broker.url or None,
        broker_id=urlsplit(broker.web_url).netloc,
    )


TARGET: Final = "policies"


class WorkerPolicies(Protocol):
    """The policies of the logs of one worker, as the others ask for them."""

    async def check(self) -> None:
        """Compare every log with its policies now, and not only at intervals."""


class LocalPolicies:
    """The policies of the logs of this worker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def check(self) -> None:
        await self._broker.catalog.policy_rounds.round()


POLICIES: Final = Port(WorkerPolicies)  # type: ignore[type-abstract]


class PolicyChecks:
    """Asks all workers of the cluster."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._local = broker, LocalPolicies(broker)
        self._others: Callable[[BrokerRecord], WorkerPolicies] = broker.links.serve_each(
            TARGET, POLICIES, self._local
        )

    async def check(self) -> None:
        """Return when every living worker has compared its logs."""
        living = self._broker.directory.brokers
        others = [self._others(broker) for id_, broker in living.items() if id_ != self._broker.id]
        await together(worker.check() for worker in (self._local, *others))


async def check_backlog_quotas(call: Call) -> None:
    """Keep backlog quotas, expiry and thresholds of compaction now, at all workers."""
    await call.policy_checks.check()


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
BROKERS = "/admin/v2/brokers"

ENDPOINTS = [
    AdminEndpoint("GET", STATS + "/topics", SUPERUSER, topics),
    AdminEndpoint("GET", STATS + "/{figures}", SUPERUSER, refuse),
    AdminEndpoint("GET", BROKERS + "/backlog-quota-check", SUPERUSER, check_backlog_quotas),
    AdminEndpoint("GET", BROKERS, SUPERUSER, brokers),
    # Load balancers ask for these without credentials.
    AdminEndpoint("GET", BROKERS + "/health", OPEN, health),
    AdminEndpoint("GET", BROKERS + "/ready", OPEN, health),
    AdminEndpoint("GET", BROKERS + "/version", AUTHENTICATED, version, client="version"),
    AdminEndpoint("GET", BROKERS + "/leaderBroker", SUPERUSER, leader),
    AdminEndpoint("GET", BROKERS + "/workers", SUPERUSER, workers, client="brokers"),
    AdminEndpoint(
        "GET",
        BROKERS + "/internal-configuration",
        SUPERUSER,
        internal_configuration,
        client="internal_configuration",
    ),
    AdminEndpoint("GET", BROKERS + "/{cluster}", SUPERUSER, brokers),
    AdminEndpoint(
        "GET",
        "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}",
        LOOKED_UP,
        lookup,
        query={"listenerName": str},
        client="lookup",
    ),
    AdminEndpoint("GET", "/status.html", OPEN, status),
]
