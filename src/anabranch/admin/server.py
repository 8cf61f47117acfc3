"""The admin API and metrics over HTTP: all routes in one app, served on sockets that listen already."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from anabranch.admin import brokers, metrics, scalable, scalable_subscriptions, segments, tenants, topics
from anabranch.admin.calls import reason
from anabranch.admin.logs import serve_logs
from anabranch.broker.broker import Broker

STOP_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 1000

# The route of namespace policies matches any last part, so more specific routes come first.
ROUTES = [
    *scalable.ROUTES,
    *scalable_subscriptions.ROUTES,
    *segments.ROUTES,
    *topics.ROUTES,
    *tenants.ROUTES,
    *brokers.ROUTES,
    *metrics.ROUTES,
]


def create_app(broker: Broker) -> Any:
    """The ASGI app with all routes."""
    app = Starlette(routes=ROUTES, exception_handlers={HTTPException: _refuse})
    app.state.broker = broker
    app.state.logs = serve_logs(broker)

    async def keep_escapes(scope: Any, receive: Any, send: Any) -> None:
        # A topic name may contain an escaped slash, so routes match the escaped path, and `Call.part` decodes
        # each part.
        if scope["type"] == "http" and scope.get("raw_path"):
            scope["path"] = scope["raw_path"].decode("ascii", "replace")
        await app(scope, receive, send)

    return keep_escapes


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: f"there is no {request.url.path}", 405: f"{request.method} is not allowed here"}
    return reason(error.status_code, text.get(error.status_code, str(error.detail)))


class AdminServer:
    """One HTTP server on the event loop of the broker."""

    def __init__(self, broker: Broker, listeners: Sequence[socket.socket]) -> None:
        self._listeners = list(listeners)
        self._config = uvicorn.Config(
            create_app(broker),
            loop="none",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=int(STOP_TIMEOUT_S),
        )
        self._server = uvicorn.Server(self._config)

    async def start(self) -> None:
        # `Server.serve` would install signal handlers and poll ten times a second.
        self._config.load()
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.startup(sockets=self._listeners)

    async def stop(self) -> None:
        """Refuse new requests and finish the requests under way."""
        if self._server.started:
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * STOP_TIMEOUT_S):
                    await self._server.shutdown(sockets=self._listeners)
