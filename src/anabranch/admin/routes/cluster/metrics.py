"""`/metrics` over HTTP: the exposition is sent piece by piece, as the client reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from prometheus_client import exposition
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.rights.rows import SUPERUSER


class PiecewiseText(Response):
    """A response whose body is made while it is sent."""

    def __init__(self, pieces: AsyncIterator[bytes], content_type: str) -> None:
        super().__init__(headers={"content-type": content_type})
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def metrics(call: Call) -> Response:
    """The metrics of all workers, for Prometheus."""
    accept = call.header("accept")
    return PiecewiseText(call.scraper.scrape(accept), exposition.choose_encoder(accept)[1])


ENDPOINTS = [
    AdminEndpoint("GET", path, SUPERUSER, metrics, returns=str) for path in ("/metrics", "/metrics/")
]
