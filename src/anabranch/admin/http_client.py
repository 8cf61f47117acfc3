"""Requests to a broker over HTTP: credentials, redirects, repetitions, a deadline; blocking.

Answers are the JSON of the API as plain dicts; an error status is raised as the exception family that it
stands for. This module knows no path.
"""

from __future__ import annotations

import http.client
import json
import math
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import urlencode, urlsplit

from anabranch.credentials.asking import checked_authentication, http_headers, renew
from anabranch.credentials.authentication import Authentication
from anabranch.credentials.fetching import wait_for
from anabranch.errors import (
    AnabranchError,
    AuthenticationError,
    AuthorizationError,
    ConflictError,
    ConnectError,
    InvalidConfigurationError,
    NotAllowedError,
    NotFoundError,
    OperationTimeoutError,
    ServiceNotReadyError,
    TooManyRequestsError,
    UnknownServerError,
)
from anabranch.transport.tls_arguments import TlsArguments, tls_of
from anabranch.transport.tls_errors import explain

Json = Any
Exchanged = tuple[int, dict[str, str], bytes]
"""Status, headers and body of an answer."""

DEFAULT_URL = "http://127.0.0.1:8080"
REDIRECTS_MAX = 5
ATTEMPTS = 3
"""Attempts of a GET whose connection is lost: the server closes idle connections, and a worker may die."""

_ERRORS: Mapping[int, type[AnabranchError]] = {
    400: InvalidConfigurationError,
    401: AuthenticationError,
    403: AuthorizationError,
    404: NotFoundError,
    405: NotAllowedError,
    409: ConflictError,
    412: InvalidConfigurationError,
    429: TooManyRequestsError,
    503: ServiceNotReadyError,
}


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
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout_s: float = 60.0,
        authentication: Authentication | None = None,
        **tls: Unpack[TlsArguments],
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfigurationError(f"{url!r} is not an admin URL; write http://host:port")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._timeout_s = timeout_s
        self._authentication = checked_authentication(authentication)
        self._tls = tls_of(self.url, "https", tls, authentication)
        self._deadline = math.inf
        self._connection: _TimedConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

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
        """Send one request; returns the decoded JSON, the text, or None for an empty answer."""
        target = f"{path}?{urlencode(query)}" if query else path
        data = b"" if body is None else json.dumps(body).encode()
        self._deadline = time.monotonic() + self._timeout_s
        for _ in range(REDIRECTS_MAX):
            status, headers, answer = self._exchange_as_role(method, target, data)
            if status != 307:
                break
            location = urlsplit(headers.get("location", ""))
            if self.url.startswith("https:") and location.scheme != "https":
                raise ConnectError(
                    f"{self.url} redirects to an address without TLS; the client does not follow"
                )
            self.close()
            self.url = f"{location.scheme}://{location.netloc}"
            target = f"{location.path}?{location.query}" if location.query else location.path
        if status >= 300:
            raise _ERRORS.get(status, UnknownServerError)(_reason(status, answer))
        if not answer:
            return None
        if headers.get("content-type", "").startswith("application/json"):
            return json.loads(answer)
        return answer.decode()

    def _exchange_as_role(self, method: str, target: str, data: bytes) -> Exchanged:
        """Send a request with fresh credentials, and once again if those were refused and there are newer."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        role = self._role_headers()
        answered = self._exchange(method, target, data, headers | role)
        if answered[0] == 401 and self._authentication is not None:
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
    ) -> Exchanged:
        if method != "GET":
            # A server may close an idle connection while a request is sent, and the client cannot know if the
            # request was carried out. So a request that changes something uses a new connection.
            self.close()
        try:
            return self._request(method, target, data, headers)
        except TimeoutError as error:
            self.close()
            raise OperationTimeoutError(
                f"{self.url} did not answer {method} {target} within {self._timeout_s:g} s"
            ) from error
        except _LOST as error:
            self.close()
            if method == "GET" and attempts > 1:
                return self._exchange(method, target, data, headers, attempts - 1)
            doubt = "" if method == "GET" else " If so, the broker died and may have made the change."
            raise ConnectError(
                f"{self.url} closed the connection instead of answering {method} {target}; "
                f"is this the HTTP port of the broker?{doubt}"
            ) from error
        except ssl.SSLError as error:
            self.close()
            raise explain(error, self.url) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ConnectError(
                f"cannot reach the broker's admin API at {self.url}: {error}; "
                "is `anabranch serve` running, with this --http-port?"
            ) from error

    def _context(self, scheme: str) -> ssl.SSLContext | None:
        """The TLS of the next connection; a redirect may ask for it although the first URL did not."""
        if scheme == "https" and self._tls is None:
            self._tls = tls_of("https://", "https", {}, self._authentication)
        return self._tls() if self._tls is not None else None

    def _request(self, method: str, target: str, data: bytes, headers: dict[str, str]) -> Exchanged:
        if self._connection is None:
            parts = urlsplit(self.url)
            assert parts.hostname is not None
            port = parts.port or (443 if parts.scheme == "https" else 80)
            self._connection = _TimedConnection(parts.hostname, port, timeout=self._timeout_s)
            self._connection.tls = self._context(parts.scheme)
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the deadline of the call is over")
        self._connection.timeout = left_s
        if self._connection.sock is None:
            self._connection.connect()
        self._connection.sock.settimeout(left_s)
        assert isinstance(self._connection.sock, _Deadline)
        self._connection.sock.deadline = self._deadline
        self._connection.request(method, target, body=data, headers=headers)
        response = self._connection.getresponse()
        answer = response.read()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, answer


def _reason(status: int, answer: bytes) -> str:
    try:
        return str(json.loads(answer)["reason"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace").strip() or f"HTTP status {status}"
