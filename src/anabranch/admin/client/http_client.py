"""Requests to a broker over HTTP: credentials, redirects, repetitions, a deadline; blocking.

It uses the standard library alone, so that commands start quickly. This module knows no path.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from urllib.parse import urlsplit

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
from anabranch.credentials.fetching import wait_for
from anabranch.errors import (
    AlreadyClosedError,
    ConnectError,
    OperationTimeoutError,
)
from anabranch.transport.tls_arguments import TlsArguments, tls_of
from anabranch.transport.tls_errors import explain

Json = Any
T = TypeVar("T")
REDIRECTS_MAX = 5
ATTEMPTS = 3
"""Attempts of a GET whose connection is lost: the server closes idle connections, and a worker may die."""

_LOST = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)


class _Deadline:
    """A socket whose reads end at a deadline, however slowly the bytes arrive."""

    deadline = math.inf

    def recv_into(self, *arguments: Any) -> int:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the deadline of the request is over")
        self.settimeout(left_s)  # type: ignore[attr-defined]
        received: int = super().recv_into(*arguments)  # type: ignore[misc]
        return received


class _TimedSocket(_Deadline, socket.socket):
    pass


class _TimedTlsSocket(_Deadline, ssl.SSLSocket):
    pass


class _TimedConnection(http.client.HTTPConnection):
    tls: ssl.SSLContext | None = None

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is None:
            self.sock = _TimedSocket(fileno=plain.detach())
            return
        self.tls.sslsocket_class = _TimedTlsSocket
        try:
            self.sock = self.tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise


class HttpClient:
    """One HTTP connection to a broker, opened on first use and again after a loss.

    Each call ends within `timeout_s`, redirects and repetitions included, or raises OperationTimeoutError.
    Calls of several threads follow one another.
    """

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
        self._timeout_s = self._call_timeout_s = timeout_of("timeout_s", timeout_s)
        self._authentication = checked_authentication(authentication)
        self._tls = tls_of(self.url, "https", tls, authentication)
        self._deadline = math.inf
        self._connection: _TimedConnection | None = None
        self._call = threading.Lock()
        """The thread of a call holds it, and no other thread touches the connection meanwhile."""
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}{' closed' if self._closed else ''}>"

    def close(self) -> None:
        """Close the connection; later calls, and one that another thread makes, raise AlreadyClosedError."""
        self._closed = True
        if self._call.acquire(blocking=False):
            self._disconnect()
            self._call.release()
        else:
            self._interrupt()

    def _interrupt(self) -> None:
        """End the wait of the thread that makes a call; that thread closes the connection."""
        connection = self._connection
        if connection is not None and (sock := connection.sock) is not None:
            # The socket may not be connected yet, or be closed meanwhile.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | Sequence[tuple[str, object]] = (),
        body: Json = None,
    ) -> Json:
        """Send any request; returns the decoded JSON, the text, or None for an empty answer."""
        pairs = query.items() if isinstance(query, Mapping) else query
        parameters = tuple((name, str(value)) for name, value in pairs)
        return self.send(AdminRequest(method, path, any_json, parameters, body))

    def send(self, request: AdminRequest[T], timeout: float | None = None) -> T:
        """Send a request within `timeout` seconds, else those of the client; returns what it reads."""
        timeout_s = self._timeout_s if timeout is None else timeout_of("timeout", timeout)
        deadline = time.monotonic() + timeout_s
        if not self._call.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise OperationTimeoutError(
                f"calls of other threads to {self.url} did not end within {timeout_s:g} s"
            )
        self._call_timeout_s, self._deadline = timeout_s, deadline
        try:
            return self._send(request)
        finally:
            self._call.release()
            # A thread that closes the client while a call is under way leaves the connection to the call.
            if self._closed:
                self._disconnect()

    def _send(self, request: AdminRequest[T]) -> T:
        target = request.target
        for _ in range(REDIRECTS_MAX):
            answer = self._exchange_as_role(request.method, target, request.data)
            if answer.status != 307:
                break
            url, target = redirected(self.url, answer)
            self._disconnect()
            self.url = url
        return request.read(checked(request, answer))

    def _exchange_as_role(self, method: str, target: str, data: bytes) -> HttpAnswer:
        """Send a request with fresh credentials, and once again if those were refused and there are newer."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        role = self._role_headers()
        answered = self._exchange(method, target, data, headers | role)
        if answered.status == 401 and self._authentication is not None:
            renew(self._authentication)
            newer = self._role_headers()
            if newer != role:
                return self._exchange(method, target, data, headers | newer)
        return answered

    def _role_headers(self) -> dict[str, str]:
        authentication = self._authentication
        if authentication is None:
            return {}
        host = urlsplit(self.url).hostname or ""
        left_s = max(self._deadline - time.monotonic(), 0.0)
        return wait_for(lambda: http_headers(authentication, host, left_s))

    def _exchange(
        self, method: str, target: str, data: bytes, headers: dict[str, str], attempts: int = ATTEMPTS
    ) -> HttpAnswer:
        if method != "GET":
            # A server may close an idle connection while a request is sent, and the client cannot know if the
            # request was carried out. So a request that changes something uses a new connection.
            self._disconnect()
        self._check_open()
        try:
            return self._request(method, target, data, headers)
        except (OSError, http.client.HTTPException) as error:
            self._disconnect()
            self._check_open(error)
            if method == "GET" and attempts > 1 and isinstance(error, _LOST):
                return self._exchange(method, target, data, headers, attempts - 1)
            raise self._explained(error, method, target) from error

    def _check_open(self, cause: Exception | None = None) -> None:
        if self._closed:
            raise AlreadyClosedError("the admin client is closed") from cause

    def _explained(self, error: Exception, method: str, target: str) -> Exception:
        """Return the error that the caller of a failed request gets."""
        if isinstance(error, TimeoutError):
            return OperationTimeoutError(
                f"{self.url} did not answer {method} {target} within {self._call_timeout_s:g} s"
            )
        if isinstance(error, _LOST):
            doubt = "" if method == "GET" else " If so, the broker died and may have made the change."
            return ConnectError(
                f"{self.url} closed the connection instead of answering {method} {target}; "
                f"is this the HTTP port of the broker?{doubt}"
            )
        if isinstance(error, ssl.SSLError):
            return explain(error, self.url)
        return ConnectError(
            f"cannot reach the broker's admin API at {self.url}: {error}; "
            "is `anabranch serve` running, with this --http-port?"
        )

    def _context(self, scheme: str) -> ssl.SSLContext | None:
        """Return the TLS of the next connection; a redirect may ask for it although the first URL did not."""
        if scheme == "https" and self._tls is None:
            self._tls = tls_of("https://", "https", {}, self._authentication)
        return self._tls() if self._tls is not None else None

    def _request(self, method: str, target: str, data: bytes, headers: dict[str, str]) -> HttpAnswer:
        if self._connection is None:
            parts = urlsplit(self.url)
            assert parts.hostname is not None
            port = parts.port or (443 if parts.scheme == "https" else 80)
            self._connection = _TimedConnection(parts.hostname, port, timeout=self._call_timeout_s)
            self._connection.tls = self._context(parts.scheme)
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the deadline of the call is over")
        self._connection.timeout = left_s
        if self._connection.sock is None:
            self._connection.connect()
            self._check_open()
        self._connection.sock.settimeout(left_s)
        assert isinstance(self._connection.sock, _Deadline)
        self._connection.sock.deadline = self._deadline
        self._connection.request(method, target, body=data, headers=headers)
        response = self._connection.getresponse()
        answer = response.read()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return HttpAnswer(response.status, headers, answer)
