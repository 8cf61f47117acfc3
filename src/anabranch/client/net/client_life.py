"""The life of a client: the event loop it belongs to, the objects it handed out, and how they are closed.

This module must not know what those objects do: producers and consumers are things that close by a deadline.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol
from weakref import WeakKeyDictionary

from anabranch.client.net.closing import Closable, Closing, Deadline, close_all
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import Seconds, log, optional_seconds
from anabranch.errors import AlreadyClosedError, InvalidConfigurationError


class BulkReader(Protocol):
    """A reader of whole entries, which closes without waiting for a broker."""

    async def close(self) -> None: ...


EndRuns = Callable[[Iterable[Closable], Deadline], Awaitable[None]]
"""Ends the handlers that consumers run, before anything that the handlers may use is closed."""


async def _no_runs(consumers: Iterable[Closable], deadline: Deadline) -> None:
    """Do nothing, for a client that opens no consumers."""


class ClientLife:
    """The connections of one client, and the objects to close before them."""

    def __init__(self, service_url: str, pool: ConnectionPool, end_runs: EndRuns = _no_runs) -> None:
        self.closed = False
        self.pool = pool
        self._url = service_url
        self._end_runs = end_runs
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the first call; None before it."""
        # Weak, so that a long-lived client does not keep every producer and consumer it ever made.
        self.producers: WeakKeyDictionary[Closable, None] = WeakKeyDictionary()
        self.consumers: WeakKeyDictionary[Closable, None] = WeakKeyDictionary()
        self.readers: WeakKeyDictionary[BulkReader, None] = WeakKeyDictionary()
        self._closing = Closing()

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and self._loop is not None:
            log.warning("the client of %s was not closed", self._url)

    def connections(self) -> ConnectionPool:
        """Return the connections for a call that begins now; raises if this client cannot be used here."""
        if self.closed:
            raise AlreadyClosedError("the client is closed")
        self._check()
        self._loop = asyncio.get_running_loop()
        return self.pool

    def _check(self) -> None:
        # Parent and child would write to the same sockets, and their commands would mix.
        if os.getpid() != self._process:
            raise InvalidConfigurationError("this client was made before a fork; make one in the new process")
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise InvalidConfigurationError("this client belongs to another event loop; make one per loop")

    async def close(self, timeout: Seconds | None = None) -> None:
        """Close within `timeout`, by default the operation timeout; see `AsyncClient.close`."""
        limit = optional_seconds("timeout", timeout)
        await self._close_within(self.pool.operation_timeout_s if limit is None else limit)

    async def shutdown(self) -> None:
        """Close at once; see `AsyncClient.shutdown`."""
        await self._close_within(0.0)

    async def _close_within(self, limit_s: float) -> None:
        if not self.closed or self._loop is asyncio.get_running_loop():
            self._check()
            await self._closing.run(Deadline(limit_s), self._close)

    async def _close(self, deadline: Deadline) -> None:
        # Handlers that are still running may send and acknowledge, so the client stays open until they end.
        try:
            await self._end_runs(self.consumers, deadline)
        finally:
            await self._close_all(deadline)

    async def _close_all(self, deadline: Deadline) -> None:
        self.closed = True
        try:
            await close_all(self.producers, deadline)
            await close_all(self.consumers, deadline)
        except (Exception, asyncio.CancelledError):
            await close_all((*self.producers, *self.consumers), Deadline(0.0))
            await self._leave(deadline)
            raise
        await self._leave(deadline)

    async def _leave(self, deadline: Deadline) -> None:
        for reader in list(self.readers):
            await reader.close()
        await self.pool.close(deadline)
