"""A blocking client of the admin API, on the standard library alone, for the command line and for scripts.

Answers are the JSON of the API as plain dicts; an error status is raised as the exception family that it
stands for. This module must not know what a broker does.
"""

from __future__ import annotations

import http.client
import json
import math
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

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
from anabranch.model.names import TopicName

Json = Any

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


class _TimedSocket(socket.socket):
    """A socket whose reads end at a deadline, however slowly the bytes arrive."""

    deadline = math.inf

    def recv_into(self, *arguments: Any) -> int:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the deadline of the request is over")
        self.settimeout(left_s)
        return super().recv_into(*arguments)


class _TimedConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = _TimedSocket(fileno=plain.detach())


class AdminClient:
    """One HTTP connection to a broker, opened on first use and again after a loss.

    Each call ends within `timeout_s`, redirects and repetitions included, or raises OperationTimeoutError.
    """

    def __init__(self, url: str = DEFAULT_URL, *, timeout_s: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfigurationError(f"{url!r} is not an admin URL; write http://host:port")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._timeout_s = timeout_s
        self._deadline = math.inf
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> AdminClient:
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
            status, headers, answer = self._exchange(method, target, data)
            if status != 307:
                break
            location = urlsplit(headers.get("location", ""))
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

    def _exchange(
        self, method: str, target: str, data: bytes, attempts: int = ATTEMPTS
    ) -> tuple[int, dict[str, str], bytes]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
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
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            self.close()
            if method == "GET" and attempts > 1:
                return self._exchange(method, target, data, attempts - 1)
            doubt = "" if method == "GET" else " If so, the broker died and may have made the change."
            raise ConnectError(
                f"{self.url} closed the connection instead of answering {method} {target}; "
                f"is this the HTTP port of the broker?{doubt}"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ConnectError(
                f"cannot reach the broker's admin API at {self.url}: {error}; "
                "is `anabranch serve` running, with this --http-port?"
            ) from error

    def _request(
        self, method: str, target: str, data: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        if self._connection is None:
            parts = urlsplit(self.url)
            assert parts.hostname is not None
            kind = http.client.HTTPSConnection if parts.scheme == "https" else _TimedConnection
            self._connection = kind(parts.hostname, parts.port, timeout=self._timeout_s)
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the deadline of the call is over")
        self._connection.timeout = left_s
        if self._connection.sock is None:
            self._connection.connect()
        self._connection.sock.settimeout(left_s)
        if isinstance(self._connection.sock, _TimedSocket):
            self._connection.sock.deadline = self._deadline
        self._connection.request(method, target, body=data, headers=headers)
        response = self._connection.getresponse()
        answer = response.read()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, answer

    def brokers(self) -> list[dict[str, Json]]:
        """The living brokers, each with the stores it owns."""
        found: list[dict[str, Json]] = self.call("GET", "/admin/v2/brokers/workers")
        return found

    def create_topic(
        self, name: TopicName, segments: int = 1, properties: Mapping[str, str] | None = None
    ) -> None:
        self.call(
            "PUT",
            _scalable(name),
            query={"numInitialSegments": segments},
            body=dict(properties or {}) or None,
        )

    def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        self.call("DELETE", _scalable(name), query={"force": str(force).lower()})

    def migrate(self, name: TopicName, *, force: bool = False) -> None:
        """Continue the classic topic of this name as a scalable topic."""
        self.call("POST", f"{_scalable(name)}/migrate", query={"force": str(force).lower()})

    def list_topics(self, namespace: str, properties: Mapping[str, str] | None = None) -> list[str]:
        tenant, _, local = namespace.partition("/")
        filters = [("property", f"{key}={value}") for key, value in (properties or {}).items()]
        path = f"/admin/v2/scalable/{quote(tenant, safe='')}/{quote(local, safe='')}"
        return [str(topic) for topic in self.call("GET", path, query=filters)]

    def topic_metadata(self, name: TopicName) -> dict[str, Json]:
        """The stored record: epoch, segments, properties and policy."""
        return dict(self.call("GET", _scalable(name)))

    def set_properties(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """Change these properties of a topic; the others stay."""
        self.call("PUT", f"{_scalable(name)}/properties", body=dict(properties))

    def delete_property(self, name: TopicName, key: str) -> None:
        self.call("DELETE", f"{_scalable(name)}/properties", query={"key": key})

    def topic_stats(self, name: TopicName) -> dict[str, Json]:
        return dict(self.call("GET", f"{_scalable(name)}/stats"))

    def why(self, name: TopicName) -> dict[str, Json]:
        """Changes under way, the state of each subscription, and the last decisions of auto-scaling."""
        return dict(self.call("GET", f"{_scalable(name)}/why"))

    def split(
        self, name: TopicName, segment: int, *, points: Sequence[int] = (), parts: int | None = None
    ) -> None:
        """Split a segment in the middle, at the given start hashes, or into equal parts."""
        query: dict[str, object] = {}
        if points:
            query["points"] = ",".join(map(str, points))
        if parts is not None:
            query["parts"] = parts
        self.call("POST", f"{_scalable(name)}/split/{segment}", query=query)

    def merge(self, name: TopicName, segments: Iterable[int]) -> None:
        self.call("POST", f"{_scalable(name)}/merge/{'/'.join(map(str, segments))}")

    def rebucket(
        self,
        name: TopicName,
        segment: int,
        *,
        bucket_count: int | None = None,
        boundaries: Sequence[int] = (),
    ) -> None:
        """Replace a segment by one with this many equal buckets, or with these boundaries."""
        query: dict[str, object] = {}
        if bucket_count is not None:
            query["bucketCount"] = bucket_count
        if boundaries:
            query["boundaries"] = ",".join(map(str, boundaries))
        self.call("POST", f"{_scalable(name)}/rebucket/{segment}", query=query)

    def create_subscription(self, name: TopicName, subscription: str, kind: str = "STREAM") -> None:
        self.call("PUT", _subscription(name, subscription), query={"type": kind})

    def delete_subscription(self, name: TopicName, subscription: str) -> None:
        self.call("DELETE", _subscription(name, subscription))

    def seek(self, name: TopicName, subscription: str, timestamp_ms: int) -> None:
        self.call("POST", f"{_subscription(name, subscription)}/seek", query={"timestamp": timestamp_ms})

    def skip_all(self, name: TopicName, subscription: str) -> None:
        self.call("POST", f"{_subscription(name, subscription)}/skip-all")


def _reason(status: int, answer: bytes) -> str:
    try:
        return str(json.loads(answer)["reason"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace").strip() or f"HTTP status {status}"


def _scalable(name: TopicName) -> str:
    parts = (name.tenant, name.namespace, name.local)
    return "/admin/v2/scalable/" + "/".join(quote(part, safe="") for part in parts)


def _subscription(name: TopicName, subscription: str) -> str:
    return f"{_scalable(name)}/subscriptions/{quote(subscription, safe='')}"
