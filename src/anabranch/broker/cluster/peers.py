"""Calls to other brokers of the cluster: one connection to each, made when it is first needed.

A call is answered or fails within its time; an error that the called broker raised is raised here as its own
class. The pushes of a session arrive as long as the connection lives, and None when it ends. This module must
not know what is called, nor which broker owns what.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from anabranch.aio import AttemptCancelled, SharedAttempts
from anabranch.broker.cluster.cluster_secret import ClusterSecret, PeerMachine
from anabranch.broker.cluster.endpoint import PeerTls
from anabranch.broker.cluster.peer_link import PeerLink
from anabranch.broker.cluster.remote_calls import Port, VerbCall
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    AuthenticationError,
    ConnectError,
    OperationTimeoutError,
    UnreachableError,
)
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.transport.dialing import dial
from anabranch.transport.tls import TLS_SCHEME

_logger = logging.getLogger(__name__)

CALL_S: Final = 30.0
CONNECT_S: Final = 5.0
KEEP_ALIVE_S: Final = 5.0


class Target(NamedTuple):
    """A port that other brokers may call at this broker."""

    port: Port[Any]
    find: Callable[[str], Awaitable[object]]
    """Returns the object that serves the port, found by the rest of the target's name."""

    @classmethod
    def of(cls, port: Port[Any], served: object) -> Target:
        """Return a target whose name has only one word."""

        async def find(rest: str) -> object:
            return served

        return cls(port, find)


Targets = Mapping[str, Target]
"""Targets by the first word of their names."""


class RemoteSession:
    """A session at another broker, on the connection of the call that opened it."""

    def __init__(self, link: PeerLink, target: str, number: int) -> None:
        self._link = link
        self._target = target
        self._number = number

    @property
    def is_open(self) -> bool:
        """Whether the same process of the called broker is still connected."""
        return self._link.is_open

    async def call(self, call: VerbCall, *, timeout_s: float = CALL_S) -> Any:
        """Return the result of a verb on the connection of the session. Raises as `Peers.call` does."""
        async with _answered_within(timeout_s, self._link.url, self._target, call):
            return await self._link.call(self._target, call)

    def notify(self, call: VerbCall) -> None:
        """Send a call ahead of all later calls on the connection; errors are ignored."""
        with suppress(AnabranchError):
            self._link.post(self._target, call)

    def end_pushes(self) -> None:
        self._link.end_pushes(self._number)


class Peers:
    """The connections of this broker to others."""

    def __init__(self, secret: ClusterSecret, tls: PeerTls | None = None) -> None:
        self._secret = secret
        self._tls = tls
        self._links: dict[str, PeerLink] = {}
        self._dialing: SharedAttempts[str, PeerLink] = SharedAttempts()
        self._closed = False

    def url_of(self, broker: BrokerRecord) -> str:
        """The address at which this broker calls another."""
        return broker.peer_url(tls=self._tls is not None and self._tls.preferred)

    async def call(self, url: str, target: str, call: VerbCall, *, timeout_s: float = CALL_S) -> Any:
        """Return the result of a verb. Raises the other broker's error, or that it could not be reached."""
        async with _answered_within(timeout_s, url, target, call):
            link = await self._link(url)
            return await link.call(target, call)

    async def open_session(
        self, url: str, target: str, call: VerbCall, *, timeout_s: float = CALL_S
    ) -> tuple[Any, RemoteSession]:
        """Return the result of a verb that opens a session, and the session, ended if the caller gives up."""
        async with _answered_within(timeout_s, url, target, call):
            link = await self._link(url)
            async with link.slot(target):
                number, answer = link.post(target, call)
                session = RemoteSession(link, target, number)
                try:
                    return await asyncio.shield(answer), session
                except BaseException:
                    session.end_pushes()
                    answer.add_done_callback(lambda late: _end_late(late, session, call))
                    raise

    def keep(self, urls: Collection[str]) -> None:
        """Hang up on all brokers except these. The others are dead, and calls to them must fail at once."""
        for url, link in list(self._links.items()):
            if url not in urls:
                link.hang_up()
        for url in [url for url in self._dialing if url not in urls]:
            self._dialing.cancel(url)

    async def close(self) -> None:
        """End all connections; calls under way fail."""
        self._closed = True
        for link in list(self._links.values()):
            link.hang_up()
        await self._dialing.stop()

    async def _link(self, url: str) -> PeerLink:
        if self._closed:
            raise AlreadyClosedError("the broker is stopping")
        found = self._links.get(url)
        if found is not None:
            return found
        try:
            return await self._dialing.join(url, lambda: self._dial(url))
        except AttemptCancelled:
            if self._closed:
                raise AlreadyClosedError("the broker is stopping") from None
            raise ConnectError(f"the broker at {url} is gone") from None

    async def _dial(self, url: str) -> PeerLink:
        parts = urlsplit(url)
        if parts.hostname is None or parts.port is None:
            raise ConnectError(f"{url} is not the address of a broker")
        link = PeerLink(url, self._forget)
        loop = asyncio.get_running_loop()
        machine = PeerMachine(self._secret.dial(), now=loop.time(), keep_alive_s=KEEP_ALIVE_S)
        tls = self._tls.context() if self._tls is not None and parts.scheme == TLS_SCHEME else None
        try:
            await dial(parts.hostname, parts.port, lambda: machine, link, timeout_s=CONNECT_S, tls=tls)
        except AuthenticationError:
            raise ConnectError(f"this broker and {url} do not share a secret") from None
        except OperationTimeoutError as error:
            # Nothing was asked yet, so the caller may ask again, as after a refused connection.
            raise UnreachableError(str(error)) from None
        if not link.is_open or self._closed:
            link.hang_up()
            raise ConnectError(f"{url} closed the connection at once")
        self._links[url] = link
        _logger.info("connected to the broker at %s", url)
        return link

    def _forget(self, link: PeerLink) -> None:
        if self._links.get(link.url) is link:
            del self._links[link.url]


@asynccontextmanager
async def _answered_within(timeout_s: float, url: str, target: str, call: VerbCall) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        if isinstance(error, AnabranchError):
            raise
        raise OperationTimeoutError(
            f"{url} did not answer {call.verb.name} of {target} in {timeout_s:g} s"
        ) from None


def _end_late(late: asyncio.Future[Any], session: RemoteSession, call: VerbCall) -> None:
    if not late.cancelled() and late.exception() is None:
        session.notify(call.verb.loss_of(late.result()))
