"""The shell around `Reconnection`: makes attempts, pauses between them and waits while attached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from anabranch.aio import Backoff
from anabranch.client.decide.reconnection import ReconnectEvent, Reconnection, ReconnectPhase

RECONNECT = Backoff(0.1, 1.0)
"""Waits of watches and registrations between attempts. They never give up, and the longest wait bounds the
delay after a takeover."""


async def pause(delay_s: float, changed: asyncio.Event) -> None:
    """Wait for `delay_s`, or until `changed` is set."""
    try:
        async with asyncio.timeout(delay_s):
            await changed.wait()
    except TimeoutError:
        pass


class Reconnector:
    """Keeps one consumer, registration or watch attached until it ends.

    `attempt` attaches once and returns how that went.
    """

    def __init__(
        self,
        attempt: Callable[[], Awaitable[ReconnectEvent]],
        rng: Random,
        backoff: Backoff = RECONNECT,
        pause: Callable[[float, asyncio.Event], Awaitable[None]] = pause,
    ) -> None:
        self.life = Reconnection()
        self._attempt = attempt
        self._rng = rng
        self._backoff = backoff
        self._pause = pause
        self._changed = asyncio.Event()

    def handle(self, event: ReconnectEvent) -> None:
        """Pass on an event that did not come from `attempt`."""
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
                await self._pause(self._backoff.delay(life.failures - 1, self._rng), self._changed)
                life.handle(ReconnectEvent.RETRIED)
            else:
                life.handle(await self._attempt())
