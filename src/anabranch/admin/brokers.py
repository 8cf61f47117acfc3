"""What load balancers, monitors and Pulsar's own tools ask: health, version, who serves a topic."""

from __future__ import annotations

from typing import Any

from anabranch.admin.calls import Call, route
from anabranch.errors import NotFoundError
from anabranch.model.names import DOMAINS, TopicName
from anabranch.protocol.connection import SERVER_VERSION


async def health(call: Call) -> str:
    return "ok"


async def status(call: Call) -> str:
    return "OK"


async def version(call: Call) -> str:
    return SERVER_VERSION


async def brokers(call: Call) -> list[str]:
    if "cluster" in call.parts and call.part("cluster") != call.broker.config.cluster:
        raise NotFoundError(f"there is no cluster {call.part('cluster')!r}")
    return [call.http_address]


async def leader(call: Call) -> Any:
    return {"brokerId": call.http_address, "serviceUrl": call.http_url}


async def lookup(call: Call) -> Any:
    domain = call.part("domain")
    if domain not in DOMAINS:
        raise NotFoundError(f"unknown scheme {domain!r}; use one of {', '.join(DOMAINS)}")
    # Raises when the name breaks the rules; whether the topic exists is not asked here.
    TopicName.parse(f"{domain}://{call.namespace()}/{call.part('topic')}")
    url = call.broker.url
    return {
        "brokerUrl": url,
        "brokerUrlTls": None,
        "httpUrl": call.http_url,
        "httpUrlTls": None,
        "nativeUrl": url,
        "brokerId": call.http_address,
    }


BROKERS = "/admin/v2/brokers"

ROUTES = [
    route("GET", BROKERS, brokers),
    route("GET", BROKERS + "/health", health),
    route("GET", BROKERS + "/ready", health),
    route("GET", BROKERS + "/version", version),
    route("GET", BROKERS + "/leaderBroker", leader),
    route("GET", BROKERS + "/{cluster}", brokers),
    route("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", lookup),
    route("GET", "/status.html", status),
]
