"""Where one segment is served: the broker that the layout named last, until it turns out to be another.

Brokers come and go while a segment stays what it is. Whoever uses it makes attempts here; an attempt, or a
pause between two, ends at once when the layout names another broker. Knows nothing of what is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from anabranch.aio import Backoff
from anabranch.client.net.connections import BrokerConnection, ConnectionPool, address_of

ATTACH = Backoff(0.1, 1.0)
"""Waits between attempts to reach a segment; where no layout tells of a takeover, the longest is what it may
cost."""


class SegmentOwner:
    """The broker of one segment; `url` is what the layout says when it begins."""

    def __init__(self, pool: ConnectionPool, topic: str, url: str | None) -> None:
        self._pool = pool
        self._topic = topic
        self._told = self._url = url
        self._limit: asyncio.Timeout | None = None
        """Of the attempt or pause under way."""

    def told(self, url: str | None, used: BrokerConnection | None) -> bool:
        """Hear what a layout says now; True when the connection in `used` leads to another broker."""
        if url == self._told:
            return False
        self._told = url
        if url is None:
            return False
        self._url = url
        if self._limit is not None:
            limit, self._limit = self._limit, None
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())
        return used is not None and used.address != address_of(url)

    def doubt(self) -> None:
        """The broker did not answer, or is gone: look the segment up next time."""
        self._url = None

    async def connection(self) -> BrokerConnection:
        """The connection to the broker."""
        return await self._pool.connection_for(self._topic, self._url)

    async def attempt(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do `work`; False when it was given up because the layout names another broker."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limit = limit
                await work()
            return True
        except TimeoutError:
            if limit.expired():
                return False
            raise
        finally:
            self._done(limit)

    async def pause(self, delay_s: float, changed: asyncio.Event | None = None) -> None:
        """Wait, but not longer than until the layout names another broker or `changed` is set."""
        limit = asyncio.timeout(delay_s)
        try:
            async with limit:
                self._limit = limit
                await (changed or asyncio.Event()).wait()
        except TimeoutError:
            pass
        finally:
            self._done(limit)

    def _done(self, limit: asyncio.Timeout) -> None:
        if self._limit is limit:
            self._limit = None
