"""One admin call: its parts decoded, its rights checked, and its handler retried during a takeover.

A handler is called again while the owner of a store changes. Its requests to leaders are compare-and-set:
they refer to the state that the first attempt read (`Call.once`). This module must not know what handlers do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from anabranch import errors
from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.answers import MalformedBodyError, refusal, render
from anabranch.broker.broker import Broker
from anabranch.broker.browsing.logs import Logs
from anabranch.controller.ports.leader import TopicLeader
from anabranch.errors import InvalidConfigurationError, InvalidNameError, TopicNotFoundError
from anabranch.metadata.records import TopicRecord
from anabranch.metadata.topics import ClassicDomain, TopicStore
from anabranch.model.names import Domain, TopicName
from anabranch.rights.callers import ANYONE, Caller
from anabranch.rights.needs import MissingRightError
from anabranch.rights.rows import namespace_in, topic_in
from anabranch.security.audit import AuditEvent, Outcome

log = logging.getLogger(__name__)

T = TypeVar("T")
CALLER = "anabranch.caller"
"""The key of the caller in the scope of a request (`callers`)."""
BODY_BYTES_MAX = 1024 * 1024
EMPTY_BODIES = (b"", b"null", b'""')
"""How admin clients of several languages write that a call has no body."""
LIVE_PATHS = "/admin/v2/non-persistent/"
METRICS_PATHS = ("/metrics", "/metrics/")
"""Paths that need neither credentials nor rights if `authenticate_metrics` is off."""
NUMBER_MAX = 2**63 - 1
"""The largest number that fits into all records and files."""

TAKEOVER_S = 5.0
"""How long brokers may take, after the lease of a dead broker is over, to take its stores over."""

RETRY_S = 0.1

TAKEOVER_ERRORS = (
    errors.AlreadyClosedError,
    errors.ConnectError,
    errors.NotConnectedError,
    errors.NotLeaderError,
    errors.NotOwnerError,
    errors.ServiceNotReadyError,
)
"""The errors of a call while a store changes its owner; a retry reaches the new owner."""


class Call:
    """An HTTP request and the parts of the broker, as the argument of a handler."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.broker: Broker = request.app.state.broker
        self.topics: TopicStore = self.broker.records
        self.logs: Logs = request.app.state.logs
        """The logs of all brokers."""
        self.caller: Caller = request.scope.get(CALLER, ANYONE)
        self.repeatable = True
        """Cleared by a handler before a step that would have a further effect if it were repeated."""
        self._change = ""
        self._seen: dict[str, Any] = {}
        self._body: bytes | None = None

    async def once(self, key: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first `read` that succeeds, also when the handler is called again.

        A handler reads the incarnation of a topic or the epoch of a layout through this function. Its leader
        compares it, so a request that arrives twice changes nothing the second time.
        """
        if key not in self._seen:
            self._seen[key] = await read()
        found: T = self._seen[key]
        return found

    @property
    def parts(self) -> Mapping[str, str]:
        """The named parts of the path, still escaped."""
        return self._request.path_params

    @property
    def path(self) -> str:
        """The path as the caller wrote it."""
        return str(self._request.scope["path"])

    def part(self, name: str) -> str:
        """Return a part of the path, decoded."""
        try:
            return unquote(self.parts[name], errors="strict")
        except UnicodeDecodeError:
            raise InvalidNameError(f"{self.parts[name]!r} is not UTF-8; escape it as UTF-8") from None

    def number_part(self, name: str, *, least: int = -NUMBER_MAX) -> int:
        return whole(self.part(name), name, least)

    def namespace(self) -> str:
        return namespace_in(self.part)

    def topic(self, domain: Domain) -> TopicName:
        """Return the topic that the path names, in the scheme of the resource."""
        return topic_in(domain, self.part)

    @property
    def domain(self) -> ClassicDomain:
        """The scheme of the classic or live topics that the path is about."""
        live = self._request.scope["path"].startswith(LIVE_PATHS)
        return "non-persistent" if live else "persistent"

    def classic(self) -> TopicName:
        """Return the classic or live topic that the path names."""
        return self.topic(self.domain)

    async def admit(self, endpoint: AdminEndpoint) -> None:
        """Return if the caller has the right that the endpoint asks for, else raise MissingRightError."""
        if endpoint.path in METRICS_PATHS and not self.broker.config.authenticate_metrics:
            return
        if self.broker.authorizer.enabled:
            asking = self.broker.authorizer.admit(self.caller, endpoint.right.needs(self.part))
            if asking is not None:
                await asking

    def note_change(self, text: str) -> None:
        """Say what the call changed about rights, for its line in the audit log."""
        self._change = text

    def note(self, outcome: Outcome, error: Exception | None = None) -> None:
        """Write a refused call, or one that changes something, into the audit log."""
        request, resource, why = self._request, "", self._change
        if error is not None:
            why = str(error)
        if isinstance(error, MissingRightError):
            resource, why = error.resource, error.reason or why
        if outcome == "refused" or request.method not in ("GET", "HEAD"):
            action = f"{request.method} {request.scope['path']}"
            address = ":".join(map(str, request.scope.get("client") or ("unknown",)))
            event = AuditEvent(action, outcome, self.caller, address, resource, why)
            self.broker.gate.audit.write(event)

    async def leader(self) -> TopicLeader:
        """Return the leader of the scalable topic that the path names."""
        return await self._scalable(self.broker.controllers.controller)

    async def record(self) -> TopicRecord:
        """Return the record of the scalable topic that the path names."""
        return await self._scalable(self.topics.load)

    async def _scalable(self, find: Callable[[TopicName], Awaitable[T]]) -> T:
        name = self.topic("topic")
        try:
            return await find(name)
        except TopicNotFoundError as error:
            classic = await self.topics.find_classic(name)
            if classic is None or classic.migrated:
                raise
            raise TopicNotFoundError(f"{error}; {name.local} is a classic topic: migrate it first") from None

    @property
    def scraper(self) -> Any:
        """The metrics of all workers."""
        return self._request.app.state.scraper

    @property
    def policy_checks(self) -> Any:
        """The checks of policies at all workers."""
        return self._request.app.state.policy_checks

    def header(self, name: str) -> str:
        return self._request.headers.get(name, "")

    def query(self, name: str) -> str | None:
        return self._request.query_params.get(name)

    def queries(self, name: str) -> list[str]:
        """Return all values of a query parameter that may be repeated."""
        return self._request.query_params.getlist(name)

    def flag(self, name: str, default: bool = False) -> bool:
        text = self.query(name)
        if text is None or text == "":
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidConfigurationError(f"{name} must be true or false, not {text!r}")
        return text.lower() == "true"

    def number(self, name: str) -> int | None:
        text = self.query(name)
        return None if text is None else whole(text, name)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """Numbers separated by commas, decimal or hexadecimal."""
        text = self.query(name)
        return None if text is None else tuple(whole(part, name) for part in text.split(","))

    def timestamp_ms(self) -> int:
        found = self.number("timestamp")
        if found is None or found < 0:
            raise InvalidConfigurationError("timestamp must be given, in milliseconds since 1970")
        return found

    async def body(self, kind: type[T]) -> T | None:
        """Return the decoded JSON body; None for an empty body."""
        if self._body is None:
            self._body = await self._read_body()
        if self._body.strip() in EMPTY_BODIES:
            return None
        try:
            return msgspec.json.decode(self._body, type=kind)
        except msgspec.ValidationError as error:
            raise MalformedBodyError(f"the body has the wrong form: {error}") from error
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise MalformedBodyError(f"the body is not valid JSON: {error}") from error

    async def _read_body(self) -> bytes:
        data = bytearray()
        try:
            async for chunk in self._request.stream():
                data += chunk
                if len(data) > BODY_BYTES_MAX:
                    raise MalformedBodyError(f"the body is larger than {BODY_BYTES_MAX} bytes")
        except ClientDisconnect:
            raise MalformedBodyError("the client left before it had sent the whole body") from None
        return bytes(data)


def whole(text: str, name: str, least: int = -NUMBER_MAX) -> int:
    """Return a number as a caller wrote it, decimal or hexadecimal."""
    try:
        number = int(text, 0) if text.lower().startswith("0x") else int(text)
    except ValueError:
        raise InvalidConfigurationError(f"{name} must be a whole number, not {text!r}") from None
    if not least <= number <= NUMBER_MAX:
        raise InvalidConfigurationError(f"{name} must be from {least} to {NUMBER_MAX}, not {text}")
    return number


CallHandler = Callable[[Call], Awaitable[Any]]


class CallRoute(Route):
    """The route of an endpoint."""

    def __init__(self, endpoint: AdminEndpoint) -> None:
        async def serve(request: Request) -> Response:
            call = Call(request)
            try:
                await call.admit(endpoint)
                answer = await _answer(call, endpoint.handler)
            except Exception as error:
                call.note("refused" if isinstance(error, errors.AuthorizationError) else "failed", error)
                return refusal(error, changing=endpoint.method != "GET")
            call.note("allowed")
            return render(answer)

        super().__init__(endpoint.path, serve, methods=[endpoint.method])


async def _answer(call: Call, handler: CallHandler) -> Any:
    """Return the result of the handler, which is called again while a store changes its owner."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + call.broker.config.lease_s + TAKEOVER_S
    while True:
        try:
            return await handler(call)
        except TAKEOVER_ERRORS:
            # A broker that has failed waits for its calls before it ends, and leads nothing any more.
            if loop.time() >= until_s or not call.repeatable or call.broker.failed.is_set():
                raise
        await asyncio.sleep(RETRY_S)
