"""A session with ZooKeeper on an event loop: timed calls, its state, and the watch of all values.

kazoo's threads reach the loop only through `call_soon_threadsafe`. This module must not know what is stored.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import KazooState
from kazoo.security import CREATOR_ALL_ACL

from anabranch.errors import AlreadyClosedError, InvalidConfigurationError, MetadataError
from anabranch.metadata.zookeeper.zookeeper_client import WatchingClient
from anabranch.metadata.zookeeper.zookeeper_paths import ZookeeperAddress

log = logging.getLogger(__name__)

ANSWERS = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)
"""Refusals that say what is stored; every other error leaves the outcome of a write open."""

Ask = Callable[[WatchingClient], Any]
"""Sends one request and returns kazoo's result of it."""


class ZookeeperTls(NamedTuple):
    """Files of an encrypted connection; without `ca` the machine's own authorities are trusted."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    check_host: bool = True


class ZookeeperOptions(NamedTuple):
    """How a process talks to ZooKeeper.

    `credentials` is `user:password` of the digest scheme: then only sessions with these credentials may read
    or change what Anabranch stores. `call_s` limits each call, including the wait for a connection.
    """

    session_s: float = 10.0
    call_s: float = 10.0
    credentials: str | None = None
    tls: ZookeeperTls = ZookeeperTls()

    def for_kazoo(self, address: ZookeeperAddress) -> dict[str, Any]:
        if self.credentials is not None and ":" not in self.credentials:
            raise InvalidConfigurationError("the credentials for ZooKeeper are not of the form user:password")
        options: dict[str, Any] = {"hosts": ",".join(address.hosts), "timeout": self.session_s}
        if self.credentials is not None:
            options |= {"auth_data": [("digest", self.credentials)], "default_acl": CREATOR_ALL_ACL}
        if address.tls:
            options |= {"use_ssl": True, "verify_certs": True, "check_hostname": self.tls.check_host}
            options |= {"ca": self.tls.ca, "certfile": self.tls.certificate, "keyfile": self.tls.key}
        return options


class SessionEvents(NamedTuple):
    """Callbacks of the owner of a session; they run on the event loop."""

    changed: Callable[[str], None]
    """The znode that was created, changed or deleted."""
    missed: Callable[[], None]
    """Changes may have been missed, because the connection was interrupted."""
    lost: Callable[[], None]
    """The server ended the session, and with it all its ephemeral znodes; a new session begins."""


class ZookeeperSession:
    """Connects on the first call; after an interruption the same session goes on if it can."""

    def __init__(
        self, address: ZookeeperAddress, options: ZookeeperOptions, watched: str, events: SessionEvents
    ) -> None:
        self._address = address
        self._options = options
        self._watched = watched
        self._events = events
        self._client: WatchingClient | None = None
        self._connected = asyncio.Event()
        self._was_connected = False
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands, as far as this process knows; False while it is suspended."""
        return self._connected.is_set() and not self._closed

    @property
    def id(self) -> int | None:
        """The session that owns the ephemeral znodes of this process."""
        known = self._client.client_id if self._client is not None else None
        return None if known is None else int(known[0])

    def left_s(self) -> float:
        """Seconds for which the server keeps the session for certain; 0 or less while that is unknown."""
        if self._client is None or not self.is_connected:
            return 0.0
        return self._client.clock.left_s()

    def start(self) -> WatchingClient:
        if self._closed:
            raise AlreadyClosedError("the metadata store is closed")
        if self._client is None:
            loop = asyncio.get_running_loop()

            def tell(function: Callable[..., None], *arguments: Any) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(function, *arguments)

            self._client = WatchingClient(
                partial(tell, self._changed), **self._options.for_kazoo(self._address)
            )
            self._client.add_listener(partial(tell, self._state_changed))
            self._client.start_async()
        return self._client

    async def call(self, ask: Ask) -> Any:
        """The answer to a request; MetadataError if it is not known whether the server carried it out."""
        client = self.start()
        try:
            async with asyncio.timeout(self._options.call_s):
                await self._connected.wait()
                self.start()
                return await self._answer(ask(client))
        except ANSWERS:
            raise
        except TimeoutError as error:
            raise MetadataError(
                f"{self._address} did not answer within {self._options.call_s:g} s ({client.client_state})"
            ) from error
        except KazooException as error:
            raise MetadataError(f"{self._address}: {type(error).__name__} {error}".rstrip()) from error

    async def commit(self, fill: Callable[[Any], None]) -> list[Any]:
        """Carry out several operations together; raises the error of the one that ZooKeeper refused."""

        def ask(client: WatchingClient) -> Any:
            transaction = client.transaction()
            fill(transaction)
            return transaction.commit_async()

        # kazoo does not raise the error of an operation, but returns it in the place of its result.
        results: list[Any] = await self.call(ask)
        for result in results:
            if isinstance(result, ANSWERS):
                raise result
        for result in results:
            if isinstance(result, Exception) and not isinstance(
                result, RolledBackError | RuntimeInconsistency
            ):
                raise MetadataError(f"{self._address}: {type(result).__name__}") from result
        return results

    async def close(self) -> None:
        """End the session on the server, which removes its ephemeral znodes; waits for `call_s` at most."""
        await self._stop(lambda client: client.stop())

    async def abandon(self) -> None:
        """Stop like a killed process: the session stays until its timeout."""
        await self._stop(lambda client: client.abandon())

    async def _stop(self, end: Callable[[WatchingClient], None]) -> None:
        self._closed = True
        client, self._client = self._client, None
        # Calls that wait for a connection see that the session is closed.
        self._connected.set()
        if client is None:
            return
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()

        def work() -> None:
            try:
                end(client)
                client.close()
            except Exception as error:
                log.warning("the session with %s did not end properly: %s", self._address, error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(stopped.set)

        # A daemon, because kazoo may wait for a server that is gone, and the process must be able to end.
        threading.Thread(target=work, name="zookeeper close", daemon=True).start()
        try:
            async with asyncio.timeout(self._options.call_s):
                await stopped.wait()
        except TimeoutError:
            log.warning("%s did not confirm the end of the session; it ends by its timeout", self._address)

    async def _answer(self, result: Any) -> Any:
        """Wait for a result of kazoo on the event loop."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def settle() -> None:
            if answer.done():
                return
            if result.exception is None:
                answer.set_result(result.value)
            else:
                answer.set_exception(result.exception)

        def ready(_: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle)

        result.rawlink(ready)
        return await answer

    def _changed(self, znode: str) -> None:
        if not self._closed:
            self._events.changed(znode)

    def _state_changed(self, state: str) -> None:
        if self._client is None:
            return
        if state == KazooState.CONNECTED:
            # Sent before any waiting call, so a caller that watches and then reads misses no change.
            self._client.add_watch_async(self._watched).rawlink(self._watch_answered)
            self._connected.set()
            if self._was_connected:
                self._events.missed()
            self._was_connected = True
            return
        self._connected.clear()
        if state == KazooState.LOST:
            log.warning("the session with %s is lost (%s)", self._address, self._client.client_state)
            self._events.lost()
        else:
            log.info("the connection to %s is interrupted", self._address)

    def _watch_answered(self, result: Any) -> None:
        if result.exception is not None and self._connected.is_set():
            log.error("%s refused a watch; Anabranch needs 3.6 or later: %r", self._address, result.exception)
