"""The admin API of a real Pulsar cluster, over HTTP; every broker redirects to the owner of a topic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import AdminRequest, HttpAnswer
from anabranch.control.cluster_admin import PulsarInternals, PulsarOwner, PulsarStats
from anabranch.credentials.authentication import Authentication
from anabranch.errors import (
    AnabranchError,
    ConflictError,
    ConnectError,
    InvalidConfigurationError,
    NotFoundError,
    OperationTimeoutError,
    ServerError,
    ServiceNotReadyError,
    TooManyRequestsError,
    TopicNotFoundError,
    UnknownServerError,
)
from anabranch.model.names import TopicName

T = TypeVar("T")

CALL_S: Final = 30.0
"""How long one call may take. Pulsar leaves some calls about deleted topics without an answer."""

ANSWER_S: Final = 10.0
"""How long an answer may take to a call that takes effect at once, or never. Pulsar gives some calls about a
topic that moves meanwhile no answer, and a later call succeeds."""

MOVING: Final = ("find owner for topic", "find ownership for topic", "Subscription Busy")
"""In answers with status 412 while Pulsar moves a topic or a subscription; a later call succeeds."""

EXISTS: Final = "already exists"
"""In answers with status 409 to a creation that was made before; others report a lost race in Pulsar."""

MESSAGE: Final = re.compile(r"^Message: (.*)$", re.MULTILINE)
"""The reason in answers with status 500, which also have the stack trace of the broker."""

EARLIEST: Final = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}


class PulsarAdmin:
    """A cluster's admin API, at any of these addresses."""

    def __init__(
        self, urls: Sequence[str], authentication: Authentication | None = None, trust_file: str | None = None
    ) -> None:
        self._urls = list(urls)
        self._at = 0
        self._http = AsyncHttpClient(
            self._urls[0],
            timeout_s=CALL_S,
            authentication=authentication,
            tls_trust_certs_file_path=trust_file,
        )

    async def close(self) -> None:
        await self._http.close()

    async def create(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        with suppress(ConflictError):
            await self._call("PUT", topic, body=dict(properties))

    async def retain(self, topic: TopicName, minutes: int) -> None:
        body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1 if minutes else 0}
        await self._call("POST", topic, "/retention", body=body)

    async def recognise_repetitions(self, topic: TopicName) -> None:
        await self._call("POST", topic, "/deduplicationEnabled", body=True)

    async def terminate(self, topic: TopicName) -> None:
        await self._call("POST", topic, "/terminate")

    async def unload(self, topic: TopicName) -> None:
        await self._call("PUT", topic, "/unload")

    async def delete(self, topic: TopicName) -> None:
        try:
            await self._call("DELETE", topic)
        except TopicNotFoundError:
            return
        except InvalidConfigurationError as error:
            raise ServiceNotReadyError(f"{topic} still has clients: {error}") from error

    async def properties(self, topic: TopicName) -> dict[str, str]:
        return await self._read(topic, "/properties", dict[str, str])

    async def set_properties(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        with _answered():
            await self._call("PUT", topic, "/properties", body=dict(properties), answer_s=ANSWER_S)

    async def stats(self, topic: TopicName, *, precise: bool = False) -> PulsarStats:
        return await self._read(topic, "/stats?getPreciseBacklog=true" if precise else "/stats", PulsarStats)

    async def internals(self, topic: TopicName) -> PulsarInternals:
        return await self._read(topic, "/internalStats", PulsarInternals)

    async def create_subscription(self, topic: TopicName, name: str, *, earliest: bool) -> bool:
        try:
            # Without a body the subscription would start at the end of the topic.
            await self._call("PUT", topic, _subscription(name), body=EARLIEST if earliest else "latest")
        except ConflictError:
            return False
        except InvalidConfigurationError as error:
            # Also the answer to calls that create one subscription at the same time.
            await self.internals(topic)
            raise ServiceNotReadyError(f"{topic} has no subscription {name} yet: {error}") from error
        return True

    async def delete_subscription(self, topic: TopicName, name: str) -> None:
        with suppress(TopicNotFoundError):
            await self._call("DELETE", topic, f"{_subscription(name)}?force=true")

    async def seek_to_time(self, topic: TopicName, name: str, timestamp_ms: int) -> None:
        await self._call("POST", topic, f"{_subscription(name)}/resetcursor/{timestamp_ms}")

    async def seek_to_entry(self, topic: TopicName, name: str, ledger: int, entry: int) -> None:
        body = {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}
        await self._call("POST", topic, f"{_subscription(name)}/resetcursor", body=body)

    async def skip_all(self, topic: TopicName, name: str) -> None:
        await self._call("POST", topic, f"{_subscription(name)}/skip_all")

    async def owner(self, topic: TopicName) -> PulsarOwner:
        path = f"/lookup/v2/topic/persistent/{topic.namespace_name}/{_quoted(topic.local)}"
        found = await self._send(AdminRequest("GET", path, _json(dict[str, Any])))
        return PulsarOwner(found.get("brokerUrl") or "", found.get("brokerUrlTls") or "")

    async def partitions(self, topic: TopicName) -> int:
        found = await self._read(topic, "/partitions", dict[str, Any])
        return int(found.get("partitions", 0))

    async def topics(self, namespace: str) -> list[str]:
        return await self._send(AdminRequest("GET", f"/admin/v2/persistent/{namespace}", _json(list[str])))

    async def _read(self, topic: TopicName, path: str, kind: type[T]) -> T:
        try:
            with _answered():
                return await self._send(AdminRequest("GET", _path(topic) + path, _json(kind)), ANSWER_S)
        except NotFoundError as error:
            raise TopicNotFoundError(f"Pulsar has no topic {topic}") from error

    async def _call(
        self, method: str, topic: TopicName, path: str = "", *, body: object = None, answer_s: float = CALL_S
    ) -> None:
        request = AdminRequest(method, _path(topic) + path, lambda answer: None, body=body)
        try:
            await self._send(request, answer_s)
        except NotFoundError as error:
            raise TopicNotFoundError(f"Pulsar has no topic {topic}, or it lacks the subscription") from error

    async def _send(self, request: AdminRequest[T], answer_s: float = CALL_S) -> T:
        failed = self._at
        try:
            return await self._http.send(request, answer_s)
        except (ConnectError, OperationTimeoutError):
            # A redirect may have led to a broker that is gone now; the next call begins at the next address.
            # Calls that failed at the same address count once.
            self._at = (failed + 1) % len(self._urls)
            self._http.url = self._urls[self._at]
            raise
        except (ConflictError, InvalidConfigurationError, ServerError) as error:
            if passes(error):
                raise ServiceNotReadyError(f"Apache Pulsar failed: {_reason(error)}") from error
            raise


def passes(error: AnabranchError) -> bool:
    """Whether Pulsar may carry out the same call a moment later, and the call itself is not wrong.

    A broker that gives a topic up, or whose own clients lose one, fails with status 500.
    """
    if isinstance(error, ConflictError):
        return EXISTS not in str(error)
    if isinstance(error, InvalidConfigurationError):
        return any(words in str(error) for words in MOVING)
    return isinstance(error, (TooManyRequestsError, UnknownServerError))


def _reason(error: AnabranchError) -> str:
    found = MESSAGE.search(str(error))
    return str(error) if found is None else found[1]


@contextmanager
def _answered() -> Iterator[None]:
    """Allow a call that got no answer to be repeated, because it takes effect at once or never."""
    try:
        yield
    except OperationTimeoutError as error:
        raise ServiceNotReadyError(str(error)) from error


def admin_urls(text: str) -> tuple[str, ...]:
    """The addresses in `http://host:port[,host:port...]`; raises InvalidConfigurationError."""
    scheme, found, hosts = text.partition("://")
    if not found or scheme not in ("http", "https") or not all(hosts.split(",")):
        raise InvalidConfigurationError(
            f"{text!r} is not the address of an admin API; write http://host:port[,host:port...]"
        )
    return tuple(f"{scheme}://{host}" for host in hosts.split(","))


def _path(topic: TopicName) -> str:
    return f"/admin/v2/persistent/{topic.namespace_name}/{_quoted(topic.local)}"


def _subscription(name: str) -> str:
    return f"/subscription/{_quoted(name)}"


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _json(kind: type[T]) -> Callable[[HttpAnswer], T]:
    return lambda answer: msgspec.json.decode(answer.body, type=kind)
