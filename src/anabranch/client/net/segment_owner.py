"""The broker that serves one segment, as the newest layout names it or as a look-up finds it.

An attempt to reach the segment, or a pause between two attempts, ends at once when a layout names another
broker. This module does not know what is sent to the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from anabranch.client.net.connection import BrokerConnection, address_of
from anabranch.client.net.connection_pool import ConnectionPool


class SegmentOwner:
    """The broker of one segment; `url` is the owner in the layout at the start, None to look it up."""

    def __init__(self, pool: ConnectionPool, topic: str, url: str | None) -> None:
        self._pool = pool
        self._topic = topic
        self.named = self._url = url
        """The owner in the newest layout."""
        self._limit: asyncio.Timeout | None = None
        """The timeout of the attempt or pause under way."""

    def layout_named(self, url: str | None, used: BrokerConnection | None) -> bool:
        """Note the owner in a layout; True when the connection `used` leads to another broker."""
        if url == self.named:
            return False
        self.named = url
        if url is None:
            return False
        self._url = url
        if self._limit is not None:
            limit, self._limit = self._limit, None
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())
        return used is not None and used.address != address_of(url)

    def look_up_again(self) -> None:
        """Look the segment up next time, because its broker did not answer or is gone."""
        self._url = None

    async def connection(self) -> BrokerConnection:
        return await self._pool.connection_for(self._topic, self._url)

    async def attempt(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do `work`; False when it was cancelled because a layout names another broker."""
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
            if self._limit is limit:
                self._limit = None

    async def pause(self, delay_s: float) -> None:
        """Wait for `delay_s`, or until a layout names another broker."""
        await self.attempt(lambda: asyncio.sleep(delay_s))
