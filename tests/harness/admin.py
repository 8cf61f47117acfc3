"""Calls of the admin API without sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import cycle
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

from anabranch.admin.http.server import create_app
from anabranch.broker.broker import Broker
from anabranch.transport.certificates import PeerCertificate
from tests.harness.cluster import Brokers

ORDERS = "/admin/v2/scalable/public/default/orders"
CLASSIC = "/admin/v2/persistent/public/default/classic"
USUAL_HEADERS = MappingProxyType(
    {"host": "127.0.0.1:8080", "accept": "*/*", "content-type": "application/json"}
)
"""The headers of Pulsar's tools."""


class AdminAnswer(NamedTuple):
    """The answer to one HTTP request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Admin:
    """Calls the HTTP applications of the brokers in turn."""

    def __init__(self, brokers: Brokers) -> None:
        self.loop = brokers.loop
        self.certificate: PeerCertificate | None = None
        """The certificate that the calls show."""
        self.use(brokers)

    def use(self, brokers: Brokers) -> None:
        """Call the brokers that live now, for instance after a restart."""
        self.brokers = brokers
        self._apps = {n: create_app(brokers[n]) for n in brokers.living}
        self._turns = cycle(self._apps)

    @property
    def broker(self) -> Broker:
        """The only broker of a cluster of one."""
        return self.brokers[0]

    def __call__(self, method: str, path: str, body: object = None, **options: Any) -> AdminAnswer:
        """Call from a test that is not asynchronous; the options are those of `ask`."""
        return self.loop.run(self.ask(method, path, body, **options))

    def both(self, method: str, path: str) -> tuple[AdminAnswer, AdminAnswer]:
        """Make the same call at each of two brokers."""
        return self(method, path), self(method, path)

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        at: int | None = None,
        headers: Mapping[str, str | None] = MappingProxyType({}),
    ) -> AdminAnswer:
        """Call the broker `at`, or the one whose turn it is; a header of None is not sent."""
        app = self._apps[next(self._turns) if at is None else at]
        raw, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(raw),
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "headers": [
                (name.encode(), value.encode())
                for name, value in {**USUAL_HEADERS, **headers}.items()
                if value is not None
            ],
            "server": ("127.0.0.1", 8080),
            "scheme": "http",
            "root_path": "",
            "state": {"certificate": self.certificate},
        }
        sent: list[dict[str, Any]] = []
        if not isinstance(body, bytes):
            body = b"" if body is None else json.dumps(body).encode()
        given = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            return given.pop() if given else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(scope, receive, send)
        answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return AdminAnswer(sent[0]["status"], answered, b"".join(part.get("body", b"") for part in sent[1:]))
