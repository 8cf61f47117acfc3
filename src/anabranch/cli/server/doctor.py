"""`anabranch doctor`: looks at settings, files, the machine and a running broker, and names weak points.

Exit code 0 without weak points, 1 with some. Notes do not count.
"""

from __future__ import annotations

import http.client
import os
import resource
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from anabranch.cli.answers import tell
from anabranch.cli.options import AsJson
from anabranch.config.broker import BrokerConfig
from anabranch.config.doors import is_loopback
from anabranch.config.files import load_config
from anabranch.errors import InvalidConfigurationError
from anabranch.security.weak_files import weak_files
from anabranch.security.weak_settings import Severity, Weakness, weak_settings

EXIT_WEAK = 1
PROBE_S = 10.0
DESCRIPTORS_SPARE = 256
"""Descriptors that a broker needs besides those of its clients."""
OLDEST = datetime(2026, 1, 1, tzinfo=UTC)
"""No clock that is right shows an earlier time."""

_ORDER: Mapping[Severity, int] = {"danger": 0, "warning": 1, "note": 2}


def doctor(
    *,
    config: Annotated[
        str | None, Parameter(metavar="FILE", help="the file of `anabranch serve --config`")
    ] = None,
    sets: Annotated[
        tuple[str, ...], Parameter(name="--set", metavar="KEY=VALUE", help="as for `anabranch serve`")
    ] = (),
    data: Annotated[
        str | None, Parameter(metavar="DIR", help="data directory (the one of the configuration)")
    ] = None,
    url: Annotated[
        str | None, Parameter(metavar="URL", help="also ask a running broker, http://host:port")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Name the weak points of a configuration, its files and a running broker.

    The command looks at a configuration, the files it names, the data directory, this machine and, with
    --url, a running broker. Each weak point comes with its reason and the remedy. Exit code 0 without weak
    points, 1 with some; notes do not count. Changes nothing.
    """
    changed = [*sets, *([] if data is None else [f"data={data}"])]
    settings = load_config(config, changed, os.environ)
    now = datetime.now(UTC)
    found = [*weak_settings(settings), *weak_files(settings, now), *_machine(settings, now)]
    if url is not None:
        found += probe(url)
    found.sort(key=lambda weakness: _ORDER[weakness.severity])
    text = "\n\n".join(map(_text_of, found)) or "no weak points found"
    tell({"findings": [weakness._asdict() for weakness in found]}, text, as_json=as_json)
    return EXIT_WEAK if any(weakness.severity != "note" for weakness in found) else 0


def _text_of(weakness: Weakness) -> str:
    return (
        f"{weakness.severity}: {weakness.what} [{weakness.name}]\n"
        f"  why: {weakness.why}\n"
        f"  do:  {weakness.remedy}"
    )


def _machine(config: BrokerConfig, now: datetime) -> Iterator[Weakness]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = config.connections_max + config.http_connections_max + DESCRIPTORS_SPARE
    if limit != resource.RLIM_INFINITY and limit < needed:
        yield Weakness(
            "warning",
            "few-descriptors",
            f"this process may open {limit} files, and the settings allow for {needed}",
            "the broker accepts fewer clients than brokerMaxConnections, so a few can keep others out",
            f"raise the limit (`ulimit -Hn {needed}`, or LimitNOFILE of systemd), or lower the settings",
        )
    if now < OLDEST:
        yield Weakness(
            "danger",
            "clock",
            f"the clock of this machine shows {now:%F}",
            "tokens and certificates that expired count as valid",
            "let a time service such as chrony keep the clock",
        )
    if os.geteuid() == 0:
        yield Weakness(
            "note",
            "root",
            "this user is root; the broker needs no right of root",
            "a fault in the broker would concern the whole machine",
            "run the broker as a user of its own",
        )


def probe(url: str) -> Iterator[Weakness]:
    """Ask a running broker for things that a stranger must not get."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidConfigurationError(f"{url!r} is not an admin URL; write http://host:port")
    local = is_loopback(parts.hostname)
    if parts.scheme == "http" and not local:
        yield Weakness(
            "warning",
            "plain-admin",
            f"{url} has no TLS",
            "tokens and passwords of operators cross the network in the clear",
            "set webServicePortTls and leave webServicePort empty",
        )
    if _answers(url, "/admin/v2/tenants"):
        yield Weakness(
            "warning" if local else "danger",
            "open-admin",
            f"{url} lists tenants without credentials",
            "any process that reaches it may do everything",
            "set authenticationEnabled=true and authorizationEnabled=true",
        )
    if not local and _answers(url, "/metrics"):
        yield Weakness(
            "warning",
            "open-metrics",
            f"{url}/metrics needs no credentials",
            "it names tenants, namespaces, topics and subscriptions with their load",
            "set authenticateMetricsEndpoint=true and give the scraper a token",
        )
    if _answers(url, "/admin/v2/brokers/health", host="rebinding.invalid"):
        yield Weakness(
            "danger",
            "any-host",
            f"{url} answers requests for a host name that is not its own",
            "a web page can reach it from the browser of an operator by DNS rebinding",
            "list the names of the broker in http_allowed_hosts, without *",
        )


def _answers(url: str, path: str, host: str | None = None) -> bool:
    """Whether a request without credentials succeeds."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        # The question is whether the broker answers strangers; they do not check its certificate either.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=PROBE_S, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PROBE_S)
    try:
        connection.request("GET", path, headers={"Host": host} if host else {})
        return connection.getresponse().status == 200
    except OSError as error:
        raise InvalidConfigurationError(
            f"cannot reach {url}: {error}; is `anabranch serve` running?"
        ) from None
    finally:
        connection.close()
