"""Attempts to reach a broker and the pauses between them: for attachments, and for the owner of a segment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

from anabranch.client.decide.connecting.reconnection import ReconnectEvent, Reconnection, ReconnectPhase
from anabranch.client.net.connection import Address, BrokerConnection, address_of
from anabranch.client.net.connection_pool import ConnectionPool, pause_s
from anabranch.client.net.trouble import SegmentTrouble
from anabranch.client.options import log
from anabranch.errors import AnabranchError


class Reconnector:
    """The shell around `Reconnection`: keeps one consumer, registration or watch attached until it ends.

    `attach` makes one attempt. `failed` is called with the error of an attempt; True ends the attachment.
    `owner` returns the address of the broker, for the log.
    """

    def __init__(
        self,
        name: str,
        rng: Random,
        attach: Callable[[], Awaitable[None]],
        failed: Callable[[Exception], bool],
        owner: Callable[[], str] = lambda: "its broker",
    ) -> None:
        self.life = Reconnection()
        self.name = name
        self._rng = rng
        self._attach = attach
        self._failed = failed
        self._changed = asyncio.Event()
        self._problem: Exception | None = None
        """Why the last attempt failed."""
        self.trouble = SegmentTrouble(name, owner)

    def handle(self, event: ReconnectEvent) -> None:
        """Pass on an event that is not the result of an attempt."""
        if self.life.handle(event):
            self._changed.set()

    async def run(self) -> None:
        """Return when the attachment has ended."""
        life = self.life
        while not life.ended:
            self._changed.clear()
            if life.phase is ReconnectPhase.ATTACHED:
                await self._changed.wait()
            elif life.phase is ReconnectPhase.WAITING:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s(self._problem, life.failures, self._rng)):
                        await self._changed.wait()
                life.handle(ReconnectEvent.RETRIED)
            else:
                life.handle(await self._attempt())

    async def _attempt(self) -> ReconnectEvent:
        self.trouble.begin()
        try:
            await self._attach()
        except (AnabranchError, TimeoutError) as error:
            log.debug("%s: %s", self.name, error)
            self._problem = error
            if self._failed(error):
                return ReconnectEvent.ENDED
            self.trouble.refused(error)
            return ReconnectEvent.FAILED
        if not self.life.refusals:
            self.trouble.accepted()
        return ReconnectEvent.ATTACHED


class SegmentOwner:
    """The broker of one segment; `url` is the owner in the layout at the start, None to look it up."""

    def __init__(self, pool: ConnectionPool, topic: str, url: str | None) -> None:
        self._pool = pool
        self._topic = topic
        self.named = self._url = url
        """The owner in the newest layout."""
        self._limit: asyncio.Timeout | None = None
        """The timeout of the attempt or pause under way."""
        self._address: Address | None = None

    def __str__(self) -> str:
        return "its broker" if self._address is None else f"{self._address[0]}:{self._address[1]}"

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
        connection = await self._pool.connection_for(self._topic, self._url)
        self._address = connection.address
        return connection

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
