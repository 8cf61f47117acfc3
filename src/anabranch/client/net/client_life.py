"""The life of a client: the event loop it belongs to, the objects it handed out, and its end."""

from __future__ import annotations

import asyncio
import os
from typing import Protocol, Self
from weakref import WeakKeyDictionary

from anabranch.client.figures import described
from anabranch.client.net.closing import Closable, Closing, Deadline, close_all
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import Seconds, log, optional_seconds
from anabranch.errors import AlreadyClosedError, InvalidConfigurationError


class BulkReader(Protocol):
    """An object of bulk readers, which leaves without waiting for a broker."""

    async def close(self) -> None: ...


class ClientLife:
    """The connections of one client, and the objects to close before them."""

    def __init__(self, service_url: str, pool: ConnectionPool) -> None:
        self.service_url = service_url
        self.closed = False
        self.operation_timeout_s = pool.operation_timeout_s
        self._pool = pool
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the first call."""
        # Weak, so that a long-lived client does not keep every producer and consumer it ever made.
        self._producers: WeakKeyDictionary[Closable, None] = WeakKeyDictionary()
        self.consumers: WeakKeyDictionary[Closable, None] = WeakKeyDictionary()
        self._readers: WeakKeyDictionary[BulkReader, None] = WeakKeyDictionary()
        self._closing = Closing()

    async def __aenter__(self) -> Self:
        return self

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and self._loop is not None:
            log.warning("the client of %s was not closed", self.service_url)

    def __repr__(self) -> str:
        return described(self, "closed" if self.closed else "open", url=self.service_url)

    def _connections(self) -> ConnectionPool:
        if self.closed:
            raise AlreadyClosedError("the client is closed")
        self._check()
        self._loop = asyncio.get_running_loop()
        return self._pool

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise InvalidConfigurationError("this client was made before a fork; make one in the new process")
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise InvalidConfigurationError("this client belongs to another event loop; make one per loop")

    async def close(self, timeout: Seconds | None = None) -> None:
        """Complete pending sends and acknowledgements, close all producers, then all consumers.

        The client is closed after `timeout` in any case, by default after the operation timeout. Messages
        that were not stored raise in their futures, or are logged. A cancelled call closes at once.
        """
        limit = optional_seconds("timeout", timeout)
        await self._close_within(self._pool.operation_timeout_s if limit is None else limit)

    async def shutdown(self) -> None:
        """Close at once: pending sends fail, pending acknowledgements may be lost."""
        await self._close_within(0.0)

    async def _close_within(self, limit_s: float) -> None:
        if not self.closed or self._loop is asyncio.get_running_loop():
            self._check()
            await self._closing.run(Deadline(limit_s), self._close)

    async def _close(self, deadline: Deadline) -> None:
        self.closed = True
        try:
            await close_all(self._producers, deadline)
            await close_all(self.consumers, deadline)
        except (Exception, asyncio.CancelledError):
            await close_all((*self._producers, *self.consumers), Deadline(0.0))
            await self._leave(deadline)
            raise
        await self._leave(deadline)

    async def _leave(self, deadline: Deadline) -> None:
        for reader in list(self._readers):
            await reader.close()
        await self._pool.close(deadline)
