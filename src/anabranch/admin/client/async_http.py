"""Requests to a broker over HTTP on asyncio: credentials, redirects, repetitions, a deadline.

Calls of one client may run side by side, each on a connection of its own. This module knows no path.
"""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from urllib.parse import urlsplit

import h11

from anabranch.admin.client.requests import (
    DEFAULT_URL,
    AdminRequest,
    HttpAnswer,
    admin_url,
    any_json,
    checked,
    redirected,
    timeout_of,
)
from anabranch.arguments import refuse_unknown
from anabranch.credentials.asking import checked_authentication, http_headers, renew
from anabranch.credentials.authentication import Authentication
from anabranch.errors import (
    AlreadyClosedError,
    ConnectError,
    OperationTimeoutError,
)
from anabranch.transport.tls_arguments import TlsArguments, tls_of
from anabranch.transport.tls_errors import explain

T = TypeVar("T")

REDIRECTS_MAX = 5
ATTEMPTS = 3
"""Attempts of a GET whose connection is lost: the server closes idle connections, and a worker may die."""

READ_BYTES = 65536


class LostConnectionError(ConnectionError):
    """The server closed the connection before it had answered."""


class AsyncHttpConnection:
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host
        self._protocol = h11.Connection(h11.CLIENT)

    async def exchange(self, method: str, target: str, data: bytes, headers: dict[str, str]) -> HttpAnswer:
        """Send one request and read its whole answer."""
        head = {"Host": self._host, "Content-Length": str(len(data)), **headers}
        sent = self._protocol.send(h11.Request(method=method, target=target, headers=list(head.items())))
        sent = (sent or b"") + (self._protocol.send(h11.Data(data=data)) or b"")
        self._writer.write(sent + (self._protocol.send(h11.EndOfMessage()) or b""))
        await self._writer.drain()
        body = bytearray()
        answer = HttpAnswer(0, {}, b"")
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                found = {name.decode(): value.decode("latin-1") for name, value in event.headers}
                answer = HttpAnswer(event.status_code, found, b"")
            elif isinstance(event, h11.Data):
                body += event.data
        return answer._replace(body=bytes(body))

    async def _next(self) -> Any:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            received = await self._reader.read(READ_BYTES)
            if not received and self._protocol.their_state is h11.SEND_RESPONSE:
                raise LostConnectionError("the connection was closed instead of an answer")
            self._protocol.receive_data(received)
        return event

    def reusable(self) -> bool:
        """Return whether the next request may use this connection."""
        if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
            return False
        self._protocol.start_next_cycle()
        return not self._reader.at_eof()

    def close(self) -> None:
        self._writer.close()


class AsyncHttpClient:
    """Sends requests to a broker. Each ends within its timeout, redirects and repetitions included."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout_s: float = 60.0,
        authentication: Authentication | None = None,
        **tls: Unpack[TlsArguments],
    ) -> None:
        refuse_unknown(tls, TlsArguments)
        self.url = admin_url(url)
        self._timeout_s = timeout_of("timeout_s", timeout_s)
        self._authentication = checked_authentication(authentication)
        self._tls = tls_of(self.url, "https", tls, authentication)
        self._idle: AsyncHttpConnection | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}{' closed' if self._closed else ''}>"

    async def close(self) -> None:
        """Close the idle connection; later calls raise AlreadyClosedError."""
        self._closed = True
        self._drop_idle()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(self, method: str, path: str, *, query: Any = (), body: object = None) -> Any:
        """Send any request; returns the decoded JSON, the text, or None for an empty answer."""
        pairs = query.items() if isinstance(query, dict) else query
        parameters = tuple((name, str(value)) for name, value in pairs)
        return await self.send(AdminRequest(method, path, any_json, parameters, body))

    async def send(self, request: AdminRequest[T], timeout: float | None = None) -> T:
        """Send a request within `timeout` seconds, else those of the client; returns what it reads."""
        if self._closed:
            raise AlreadyClosedError("the admin client is closed")
        limit_s = self._timeout_s if timeout is None else timeout_of("timeout", timeout)
        try:
            async with asyncio.timeout(limit_s):
                return request.read(checked(request, await self._followed(request)))
        except TimeoutError as error:
            if isinstance(error, OperationTimeoutError):
                raise
            raise OperationTimeoutError(
                f"{self.url} did not answer {request.method} {request.target} within {limit_s:g} s"
            ) from error

    async def _followed(self, request: AdminRequest[Any]) -> HttpAnswer:
        target = request.target
        for _ in range(REDIRECTS_MAX):
            answer = await self._exchange_as_role(request.method, target, request.data)
            if answer.status != 307:
                break
            url, target = redirected(self.url, answer)
            self._drop_idle()
            self.url = url
        return answer

    async def _exchange_as_role(self, method: str, target: str, data: bytes) -> HttpAnswer:
        """Send a request with fresh credentials, and once again if those were refused and there are newer."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        role = await self._role_headers()
        answer = await self._exchange(method, target, data, headers | role)
        if answer.status == 401 and self._authentication is not None:
            renew(self._authentication)
            newer = await self._role_headers()
            if newer != role:
                return await self._exchange(method, target, data, headers | newer)
        return answer

    async def _role_headers(self) -> dict[str, str]:
        if self._authentication is None:
            return {}
        return await http_headers(self._authentication, urlsplit(self.url).hostname or "", self._timeout_s)

    async def _exchange(
        self, method: str, target: str, data: bytes, headers: dict[str, str], attempts: int = ATTEMPTS
    ) -> HttpAnswer:
        try:
            # A server may close an idle connection while a request is sent, and the client cannot know if the
            # request was carried out. So a request that changes something uses a new connection.
            connection = await self._connection(reuse=method == "GET")
            try:
                answer = await connection.exchange(method, target, data, headers)
            except BaseException:
                connection.close()
                raise
        except (LostConnectionError, ConnectionResetError, BrokenPipeError) as error:
            if method == "GET" and attempts > 1:
                return await self._exchange(method, target, data, headers, attempts - 1)
            doubt = "" if method == "GET" else " If so, the broker died and may have made the change."
            raise ConnectError(
                f"{self.url} closed the connection instead of answering {method} {target}; "
                f"is this the HTTP port of the broker?{doubt}"
            ) from error
        except ssl.SSLError as error:
            raise explain(error, self.url) from error
        except TimeoutError:
            raise
        except (OSError, h11.ProtocolError) as error:
            raise ConnectError(
                f"cannot reach the broker's admin API at {self.url}: {error}; "
                "is `anabranch serve` running, with this --http-port?"
            ) from error
        self._keep(connection)
        return answer

    def _keep(self, connection: AsyncHttpConnection) -> None:
        if self._closed or self._idle is not None or not connection.reusable():
            connection.close()
        else:
            self._idle = connection

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()

    async def _connection(self, *, reuse: bool) -> AsyncHttpConnection:
        idle, self._idle = self._idle, None
        if idle is not None:
            if reuse:
                return idle
            idle.close()
        parts = urlsplit(self.url)
        if parts.scheme == "https" and self._tls is None:
            # A redirect may ask for TLS although the first URL did not.
            self._tls = tls_of("https://", "https", {}, self._authentication)
        context = self._tls() if self._tls is not None and parts.scheme == "https" else None
        port = parts.port or (443 if context else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
        return AsyncHttpConnection(reader, writer, parts.netloc)
