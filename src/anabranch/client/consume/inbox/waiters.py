"""Callers that wait for a message, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque


class Waiters:
    """A wake-up is never lost: a caller that is cancelled after it was woken wakes the next."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self) -> None:
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(arrived)
        try:
            await arrived
        except asyncio.CancelledError:
            # This caller was woken for a message and cannot take it, so the next caller is woken.
            if arrived.done() and not arrived.cancelled():
                self.wake()
            raise
        finally:
            if arrived in self._waiting:
                self._waiting.remove(arrived)

    def wake(self) -> None:
        """Wake the first caller."""
        while self._waiting:
            arrived = self._waiting.popleft()
            if not arrived.done():
                arrived.set_result(None)
                return

    def wake_all(self) -> None:
        while self._waiting:
            self.wake()
