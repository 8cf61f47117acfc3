"""The admin API and metrics over HTTP: all routes in one app, served on sockets that listen already."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from anabranch.admin.http.answers import reason
from anabranch.admin.http.browsers import AllowedHosts, guarded
from anabranch.admin.http.callers import authenticated
from anabranch.admin.http.calls import CallRoute
from anabranch.admin.http.connection import HEAD_BYTES_MAX, AdminConnection
from anabranch.admin.metrics.scrape import Scraper
from anabranch.admin.routes.cluster.brokers import PolicyChecks
from anabranch.admin.routes.table import ENDPOINTS, OPEN_PATHS
from anabranch.broker.broker import Broker
from anabranch.broker.browsing.logs import serve_logs
from anabranch.transport.accepting import Acceptor, TlsHandshake
from anabranch.transport.door import Door

STOP_TIMEOUT_S = 5.0

ELSEWHERE: Final = ("/admin/v2/persistent/", "/admin/v2/non-persistent/", "/lookup/")
"""Paths of calls about topics of the cluster."""


def create_app(broker: Broker) -> Any:
    """Return the ASGI app that serves all endpoints."""
    app = Starlette(routes=[CallRoute(one) for one in ENDPOINTS], exception_handlers={HTTPException: _refuse})
    app.state.broker = broker
    app.state.logs = serve_logs(broker)
    app.state.scraper = Scraper(broker)
    app.state.policy_checks = PolicyChecks(broker)
    asked = authenticated(redirected(app, broker.engine.traits.admin_url), broker, OPEN_PATHS)

    async def keep_escapes(scope: Any, receive: Any, send: Any) -> None:
        # A topic name may contain an escaped slash, so routes match the escaped path, and `Call.part` decodes
        # each part.
        if scope["type"] == "http" and scope.get("raw_path"):
            scope["path"] = scope["raw_path"].decode("ascii", "replace")
        await asked(scope, receive, send)

    hosts = AllowedHosts.of(broker.config, socket.gethostname())
    return guarded(keep_escapes, hosts, broker.gate.audit)


def redirected(app: Any, admin_url: str) -> Any:
    """Send calls about topics of the cluster to the cluster's own admin API, if it has one."""
    if not admin_url:
        return app

    async def redirect(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(ELSEWHERE):
            path = (scope.get("raw_path") or scope["path"].encode()).decode("ascii", "replace")
            query = scope.get("query_string", b"").decode("ascii", "replace")
            await RedirectResponse(f"{admin_url}{path}{f'?{query}' if query else ''}")(scope, receive, send)
            return
        await app(scope, receive, send)

    return redirect


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: f"there is no {request.url.path}", 405: f"{request.method} is not allowed here"}
    return reason(error.status_code, text.get(error.status_code, str(error.detail)))


class AdminServer:
    """One HTTP server on the event loop of the broker."""

    def __init__(self, broker: Broker, listeners: Sequence[socket.socket]) -> None:
        self._listeners: list[tuple[socket.socket, TlsHandshake | None]] = [(one, None) for one in listeners]
        self._config = uvicorn.Config(
            create_app(broker),
            loop="none",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            # Else each local client could choose its address in the audit log and in the count of failures.
            proxy_headers=False,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_graceful_shutdown=int(STOP_TIMEOUT_S),
        )
        self._server = uvicorn.Server(self._config)
        self._part_timeout_s = broker.config.http_request_timeout_s
        self._door = Door("the HTTP port", broker.config.http_connections_max, self._make_connection)
        # Any client can cause the warnings of uvicorn: one line for each broken request.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    def _make_connection(self) -> AdminConnection:
        return AdminConnection(self._config, self._server.server_state, self._door, self._part_timeout_s)

    def listen_tls(self, listeners: Sequence[socket.socket], tls: TlsHandshake) -> None:
        """Serve these listeners over TLS; call it before `start`."""
        self._listeners += [(one, tls) for one in listeners]

    async def start(self) -> None:
        # `Server.serve` would install signal handlers, poll ten times a second and accept without the door.
        self._config.load()
        self._server.lifespan = self._config.lifespan_class(self._config)
        self._server.servers = [
            cast(asyncio.Server, Acceptor(one, self._door, tls)) for one, tls in self._listeners
        ]
        self._server.started = True

    async def stop(self) -> None:
        """Refuse new requests and finish the requests under way."""
        if self._server.started:
            self._door.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * STOP_TIMEOUT_S):
                    await self._server.shutdown(sockets=[one for one, _ in self._listeners])
