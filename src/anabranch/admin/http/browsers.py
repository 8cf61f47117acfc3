"""Protects the admin API from web pages in the browser of an operator.

A page of another site can send requests to any address that the browser reaches. `why_refused` decides from
the head of a request, before any handler runs: the host must be a known one, which stops DNS rebinding; the
request must not come from another site; and a body must be JSON, which a page cannot send without asking
first. Programs other than browsers send no Origin and no Sec-Fetch headers, so these rules do not bind them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from anabranch.admin.http.answers import reason
from anabranch.config.broker import BrokerConfig
from anabranch.config.fields import comma_list
from anabranch.security.audit import AuditEvent, AuditLog

App = Callable[[Any, Any, Any], Awaitable[None]]

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
READING: Final = ("GET", "HEAD", "OPTIONS")
PROBED: Final = ("/admin/v2/brokers/health", "/admin/v2/brokers/ready", "/status.html")
"""Paths for the probes of load balancers, which know the broker by an address that it may not know itself."""

JSON_TYPES: Final = ("application/json", "application/vnd.partitioned-topic-metadata+json")
"""The types of a body; Pulsar's admin clients have one of their own for partitioned topics."""
FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""The content types that a page may send to another site without asking first."""

SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
"""Sent with every answer. No CORS header is ever sent, so no page of another site can read an answer."""


class WebRefusal(NamedTuple):
    """Status and text of the answer to a refused request."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The names under which clients may call the HTTP port."""

    names: frozenset[str]
    suffixes: tuple[str, ...] = ()
    every: bool = False

    @classmethod
    def of(cls, config: BrokerConfig, hostname: str) -> AllowedHosts:
        """Loopback, the addresses of the configuration, the host name of the machine, and the given ones."""
        given = comma_list(config.http_allowed_hosts.lower())
        own = (config.host, config.advertised_host or "", hostname)
        names = {*LOOPBACK_NAMES, *own, *given} - {"", "*", "0.0.0.0", "::"}
        suffixes = tuple(name.removeprefix("*") for name in given if name.startswith("*."))
        return cls(frozenset(name.lower().strip("[]") for name in names), suffixes, "*" in given)

    def allow(self, host: str, own_address: str) -> bool:
        """Return whether a request for `host` may be answered on a socket with the address `own_address`."""
        if self.every or host in self.names or host.endswith(self.suffixes):
            return True
        literal = _address(host)
        # DNS rebinding needs a name in the Host header, and this is an address.
        return literal is not None and (literal.is_loopback or literal == _address(own_address))


class RequestHead(NamedTuple):
    """The parts of a request that the rules read."""

    method: str
    path: str
    headers: Mapping[str, str]
    own_address: str
    """The address of the socket that received the request."""

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> RequestHead:
        """Return the head of an ASGI request; a repeated header is joined, so that no rule allows it."""
        headers: dict[str, str] = {}
        for name, value in _decoded(scope["headers"]):
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        server = scope.get("server") or ("", None)
        # Routes match the path as it was sent, so the rules look at the same.
        path = scope["raw_path"].decode("ascii", "replace") if scope.get("raw_path") else scope["path"]
        return cls(scope["method"], path, headers, server[0])

    @property
    def has_body(self) -> bool:
        return self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers


def why_refused(head: RequestHead, hosts: AllowedHosts) -> WebRefusal | None:
    """Return the answer to a request that a page of another site may have caused; None for other requests."""
    return _wrong_host(head, hosts) or _cross_site(head) or _wrong_type(head)


def _wrong_host(head: RequestHead, hosts: AllowedHosts) -> WebRefusal | None:
    # A browser always names the host; a request without one is of an old program.
    given = head.headers.get("host")
    if given is None:
        return None
    host = _host_of(given)
    if hosts.allow(host, head.own_address):
        return None
    if head.method in READING and head.path in PROBED and _address(host) is not None:
        return None
    return WebRefusal(
        403,
        f"this broker does not know itself as {given!r}; if that is its name, add it to http_allowed_hosts",
    )


def _cross_site(head: RequestHead) -> WebRefusal | None:
    refusal = WebRefusal(403, "the admin API answers no request that a page of another site has made")
    origin = head.headers.get("origin")
    if origin is not None and not _is_origin_of(origin, head.headers.get("host", "")):
        return refusal
    site = head.headers.get("sec-fetch-site", "none")
    if site in ("none", "same-origin"):
        return None
    # A link on another page may lead a person here; its page sees nothing of the answer.
    follows_link = (
        head.method == "GET"
        and head.headers.get("sec-fetch-mode") == "navigate"
        and head.headers.get("sec-fetch-dest") == "document"
    )
    return None if follows_link else refusal


def _wrong_type(head: RequestHead) -> WebRefusal | None:
    if head.method in READING:
        return None
    given = head.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given in FORM_TYPES or (head.has_body and given not in JSON_TYPES):
        shown = f"not {given}" if given else "and has no content type"
        return WebRefusal(415, f"send the body as JSON with Content-Type: application/json, {shown}")
    return None


def _is_origin_of(origin: str, host: str) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _host_of(given: str) -> str:
    """Return the name or address in a Host header, without brackets, port and final dot."""
    try:
        found = urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return ""
    return found.removesuffix(".")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _decoded(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, str]]:
    return ((name.decode("latin-1").lower(), value.decode("latin-1").strip()) for name, value in headers)


def guarded(app: App, hosts: AllowedHosts, audit: AuditLog) -> App:
    """Return the app behind the rules above; its answers carry the headers that browsers heed."""

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *SECURITY_HEADERS]}
            await send(message)

        answer = app
        if scope["type"] == "http":
            head = RequestHead.of(scope)
            refused = why_refused(head, hosts)
            if refused is not None:
                address = ":".join(map(str, scope.get("client") or ("unknown",)))
                action = f"{head.method} {head.path}"
                audit.write(AuditEvent(action, "refused", address=address, reason=refused.text))
                answer = reason(*refused)
        await answer(scope, receive, send_with_headers)

    return guard
