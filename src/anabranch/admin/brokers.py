"""Requests of load balancers, monitors and Pulsar's tools: health, version, brokers, topic lookup."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from anabranch.admin.calls import Call, route
from anabranch.errors import NotFoundError
from anabranch.protocol.connection import SERVER_VERSION
from anabranch.rights.lines import lookup_in


async def health(call: Call) -> str:
    return "ok"


async def status(call: Call) -> str:
    return "OK"


async def version(call: Call) -> str:
    return SERVER_VERSION


async def brokers(call: Call) -> list[str]:
    if "cluster" in call.parts and call.part("cluster") != call.broker.config.cluster:
        raise NotFoundError(f"there is no cluster {call.part('cluster')!r}")
    living = sorted(call.broker.directory.brokers.items())
    return [urlsplit(broker.web_url).netloc for _, broker in living]


async def workers(call: Call) -> Any:
    """Each living broker with the stores it owns, and last the stores without an owner."""
    directory = call.broker.directory
    shown: list[dict[str, object]] = [
        {
            "id": broker.id,
            "serviceUrl": broker.url or None,
            "webServiceUrl": broker.http_url or None,
            "serviceUrlTls": broker.url_tls or None,
            "webServiceUrlTls": broker.http_url_tls or None,
            "stores": [store for store in sorted(directory.stores) if directory.owner_of(store) == broker],
        }
        for _, broker in sorted(directory.brokers.items())
    ]
    unserved = [store for store in sorted(directory.stores) if directory.owner_of(store) is None]
    if unserved:
        shown.append({"id": None, "serviceUrl": None, "webServiceUrl": None, "stores": unserved})
    return shown


async def leader(call: Call) -> Any:
    """The first broker: Pulsar's tools ask for a leader of all brokers, which this cluster does not have."""
    living = call.broker.directory.brokers.values()
    first = min(living, key=lambda broker: broker.id, default=call.broker.record)
    return {"brokerId": urlsplit(first.web_url).netloc, "serviceUrl": first.web_url}


async def lookup(call: Call) -> Any:
    # As in Pulsar, a lookup answers for topics that do not exist, too.
    broker = await call.broker.owner_of(lookup_in(call.part)) or call.broker.record
    return {
        "brokerUrl": broker.url or None,
        "brokerUrlTls": broker.url_tls or None,
        "httpUrl": broker.http_url or None,
        "httpUrlTls": broker.http_url_tls or None,
        "nativeUrl": broker.url or None,
        "brokerId": urlsplit(broker.web_url).netloc,
    }


BROKERS = "/admin/v2/brokers"

ROUTES = [
    route("GET", BROKERS, brokers),
    route("GET", BROKERS + "/health", health),
    route("GET", BROKERS + "/ready", health),
    route("GET", BROKERS + "/version", version),
    route("GET", BROKERS + "/leaderBroker", leader),
    route("GET", BROKERS + "/workers", workers),
    route("GET", BROKERS + "/{cluster}", brokers),
    route("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", lookup),
    route("GET", "/status.html", status),
]
