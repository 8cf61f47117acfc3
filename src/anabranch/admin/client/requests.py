"""One request of an admin client and the meaning of its answer, without input or output.

The blocking client and the asynchronous one send the same requests. This module must not know how.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from anabranch.admin.models.topics import StoredMessage
from anabranch.arguments import number_of, of_kind, refused
from anabranch.errors import (
    AnabranchError,
    AuthenticationError,
    AuthorizationError,
    ConflictError,
    ConnectError,
    InvalidConfigurationError,
    InvalidNameError,
    NotAllowedError,
    NotFoundError,
    RemoteProtocolError,
    ServiceNotReadyError,
    TooManyRequestsError,
    UnknownServerError,
    UnsupportedFeatureError,
)
from anabranch.model.names import Domain, TopicName, parse_namespace

T = TypeVar("T")
U = TypeVar("U")

DEFAULT_URL: Final = "http://127.0.0.1:8080"

TopicLike = str | TopicName
"""A topic by its whole name, `topic://tenant/namespace/name`, or by a short one in `public/default`."""

LIVE: Final = "non-persistent"

TIMEOUT_S_MAX: Final = 1e8
"""Longer timeouts mean no limit, and sockets refuse them."""

Query = Mapping[str, object] | Iterable[tuple[str, object]]

_ERRORS: Final[Mapping[int, type[AnabranchError]]] = {
    400: InvalidConfigurationError,
    401: AuthenticationError,
    403: AuthorizationError,
    404: NotFoundError,
    405: NotAllowedError,
    409: ConflictError,
    412: InvalidConfigurationError,
    422: InvalidConfigurationError,
    429: TooManyRequestsError,
    501: UnsupportedFeatureError,
    503: ServiceNotReadyError,
}


class HttpAnswer(NamedTuple):
    """The answer to one request."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes


class Resource(NamedTuple):
    """A namespace, a topic or the like, as paths name it."""

    kind: str
    """The part of the path after `/admin/v2/`."""
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdminRequest(Generic[T]):
    """A call, and the function that reads its answer."""

    method: str
    path: str
    read: Callable[[HttpAnswer], T]
    query: tuple[tuple[str, str], ...] = ()
    body: object = None

    @property
    def target(self) -> str:
        """The path with its parameters."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def data(self) -> bytes:
        """The body as JSON; raises InvalidConfigurationError for an object that has no form in JSON."""
        try:
            return b"" if self.body is None else msgspec.json.encode(self.body)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidConfigurationError(
                f"the body of {self.method} {self.path} has no form in JSON: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class AdminCall(Generic[T]):
    """A call of the admin API as clients make it; `calls.py` has one for each name of an endpoint."""

    method: str
    read: Callable[[HttpAnswer], T]
    paths: tuple[str, ...]
    """The templates of its path: one, or one for each kind of resource."""
    query: tuple[str, ...] = ()
    """The names of its parameters."""

    def __call__(
        self, on: Resource | None = None, *names: str, query: Query = (), body: object = None
    ) -> AdminRequest[T]:
        """Return a request about a resource; `names` are the parts of the path that follow its own.

        Parameters without a value are left out.
        """
        parameters = _parameters(query)
        assert {name for name, _ in parameters} <= set(self.query), f"{self.paths[0]} has no such parameter"
        return AdminRequest(self.method, self._path(on, names), self.read, parameters, body)

    def reading(self, read: Callable[[HttpAnswer], U]) -> AdminCall[U]:
        """Return this call with another way to read its answer."""
        return AdminCall(self.method, read, self.paths, self.query)

    def _path(self, on: Resource | None, names: Sequence[str]) -> str:
        kind = "" if on is None else on.kind
        # Live topics have the paths of classic topics, as far as the broker serves them.
        start = "/" if on is None else f"/admin/v2/{'persistent' if kind == LIVE else kind}/"
        (template,) = [path for path in self.paths if path.startswith(start)]
        resource = template.split("/")[3]
        left = [_escaped(kind or resource, name) for name in (*(on.names if on else ()), *names)]

        def fill(part: re.Match[str]) -> str:
            taken = left[:] if part[0].endswith(":path}") else left[:1]
            del left[: len(taken)]
            return "/".join(taken)

        path = re.sub(r"\{[^}]+\}", fill, template)
        assert not left, f"{template} has fewer parts than {path} names"
        return path.replace("/persistent/", f"/{LIVE}/", 1) if kind == LIVE else path


def _escaped(resource: str, name: str) -> str:
    of_kind(f"a name in a call about {resource}", name, str, "text")
    if not name:
        raise InvalidConfigurationError(f"a name in a call about {resource} is empty")
    return quote(name, safe="")


def nothing(answer: HttpAnswer) -> None:
    """Read an answer without content."""


def value(kind: type[T]) -> Callable[[HttpAnswer], T]:
    """Read a JSON value of this type."""

    def read(answer: HttpAnswer) -> T:
        if kind is str and not _is_json(answer):
            return cast(T, answer.body.decode())
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError(f"the answer has another form than {kind}: {error}") from error

    return read


def optional(kind: type[T]) -> Callable[[HttpAnswer], T | None]:
    """Read a JSON value that may not be set."""
    read = value(kind)
    return lambda answer: read(answer) if answer.body else None


def message(answer: HttpAnswer) -> StoredMessage:
    """Read one stored message with its metadata."""
    shown = {
        name.removeprefix("x-pulsar-"): value
        for name, value in answer.headers.items()
        if name.startswith("x-pulsar-")
    }
    key = shown.get("partition-key")
    if key is not None and shown.get("partition-key-b64-encoded") == "true":
        key = base64.b64decode(key).decode(errors="backslashreplace")
    batch = shown.get("num-batch-message")
    return StoredMessage(
        message_id=shown.get("message-id", ""),
        payload=answer.body,
        properties=json.loads(shown.get("property", "{}")),
        key=key,
        producer_name=shown.get("producer-name", ""),
        publish_time=shown.get("publish-time", ""),
        batch_size=None if batch is None else int(batch),
    )


def _parameters(query: Query) -> tuple[tuple[str, str], ...]:
    pairs = query.items() if isinstance(query, Mapping) else query
    return tuple((name, _text(value)) for name, value in pairs if value is not None)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def any_json(answer: HttpAnswer) -> Any:
    """Return the decoded JSON, the text, or None for an empty answer."""
    if not answer.body:
        return None
    return json.loads(answer.body) if _is_json(answer) else answer.body.decode()


def _is_json(answer: HttpAnswer) -> bool:
    return answer.headers.get("content-type", "").startswith("application/json")


def checked(request: AdminRequest[Any], answer: HttpAnswer) -> HttpAnswer:
    """Return the answer, if it is not the error that its status stands for."""
    if answer.status < 300:
        return answer
    try:
        reason = str(json.loads(answer.body)["reason"])
    except (ValueError, KeyError, TypeError):
        # A broker gives its reason; only the web server in front of it refuses without one.
        if answer.status in (404, 405):
            raise lacking(f"{request.method} {request.path}") from None
        reason = answer.body.decode(errors="replace").strip() or f"HTTP status {answer.status}"
    raise _ERRORS.get(answer.status, UnknownServerError)(reason)


def lacking(call: str) -> UnsupportedFeatureError:
    """Return the error of a call that only brokers of Anabranch have."""
    return UnsupportedFeatureError(
        f"this broker has no call {call}: only brokers of Anabranch have it, "
        "and docs/pulsar-5.md lists what other brokers lack"
    )


def timeout_of(name: str, value: float) -> float:
    """Return a timeout in seconds; raises InvalidConfigurationError."""
    number = number_of(value)
    if not 0 <= number < math.inf:
        raise refused(name, "a positive number of seconds", value)
    return min(number, TIMEOUT_S_MAX)


def admin_url(url: str) -> str:
    """Return the part of a URL that names a broker; raises InvalidConfigurationError if it names none."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidConfigurationError(f"{url!r} is not an admin URL; write http://host:port")
    return f"{parts.scheme}://{parts.netloc}"


def redirected(url: str, answer: HttpAnswer) -> tuple[str, str]:
    """Return the address and the target that a redirect names; ConnectError if they are less safe."""
    location = urlsplit(answer.headers.get("location", ""))
    if url.startswith("https:") and location.scheme != "https":
        raise ConnectError(f"{url} redirects to an address without TLS; the client does not follow")
    target = f"{location.path}?{location.query}" if location.query else location.path
    return f"{location.scheme}://{location.netloc}", target


def namespace_of(namespace: str) -> Resource:
    """Return the resource of a namespace, `tenant/namespace`."""
    return Resource("namespaces", parse_namespace(namespace))


def topics_in(kind: str, namespace: str) -> Resource:
    """Return the resource of all topics of one kind in a namespace."""
    return Resource(kind, parse_namespace(namespace))


def scalable_topic(topic: TopicLike) -> Resource:
    """Return the resource of a scalable topic; a bare name means one. InvalidNameError for other topics."""
    name = topic_name(topic, "topic")
    if name.domain != "topic":
        raise InvalidNameError(f"{name}: this call is for topic:// topics")
    return Resource("scalable", (name.tenant, name.namespace, name.local))


def classic_topic(topic: TopicLike) -> Resource:
    """Return the resource of a classic topic; a bare name is persistent. InvalidNameError for others."""
    name = topic_name(topic, "persistent")
    if name.domain not in ("persistent", LIVE):
        raise InvalidNameError(f"{name}: this call is for persistent:// and non-persistent:// topics")
    return Resource(name.domain, (name.tenant, name.namespace, name.local))


def any_topic(topic: TopicLike) -> Resource:
    """Return the resource of a topic of any kind, by its scheme; a name without one is a scalable topic."""
    name = topic_name(topic, "topic")
    return (scalable_topic if name.domain == "topic" else classic_topic)(name)


def topic_or_namespace(on: TopicLike) -> Resource:
    """Return the resource of a namespace, `tenant/namespace`, or of a topic with its scheme."""
    return namespace_of(on) if isinstance(on, str) and "://" not in on else any_topic(on)


def schemas_of(topic: TopicLike) -> Resource:
    """Return the resource of the schemas of a topic, which are the same under each of its schemes."""
    name = topic_name(topic, "topic")
    return Resource("schemas", (name.tenant, name.namespace, name.local))


def topic_name(topic: TopicLike, scheme: Domain) -> TopicName:
    """Return the name of a topic; `scheme` is that of a name without one."""
    return topic if isinstance(topic, TopicName) else TopicName.parse(topic, default_domain=scheme)
