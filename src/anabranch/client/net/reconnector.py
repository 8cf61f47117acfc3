"""The shell around `Reconnection`: makes attempts, pauses between them and waits while attached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

from anabranch.client.decide.reconnection import ReconnectEvent, Reconnection, ReconnectPhase
from anabranch.client.net.connection_pool import RECONNECT
from anabranch.client.options import log
from anabranch.errors import AnabranchError


class Reconnector:
    """Keeps one consumer, registration or watch attached until it ends.

    `attach` makes one attempt. `failed` is called with the error of an attempt; True ends the attachment.
    """

    def __init__(
        self,
        name: str,
        rng: Random,
        attach: Callable[[], Awaitable[None]],
        failed: Callable[[Exception], bool],
    ) -> None:
        self.life = Reconnection()
        self.name = name
        self._rng = rng
        self._attach = attach
        self._failed = failed
        self._changed = asyncio.Event()

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
                    async with asyncio.timeout(RECONNECT.delay(life.failures - 1, self._rng)):
                        await self._changed.wait()
                life.handle(ReconnectEvent.RETRIED)
            else:
                life.handle(await self._attempt())

    async def _attempt(self) -> ReconnectEvent:
        try:
            await self._attach()
        except (AnabranchError, TimeoutError) as error:
            log.debug("%s: %s", self.name, error)
            return ReconnectEvent.ENDED if self._failed(error) else ReconnectEvent.FAILED
        return ReconnectEvent.ATTACHED
