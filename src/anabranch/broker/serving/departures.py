"""Lets a caller wait until the consumers of a subscription have left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Departures:
    """Wakes a caller whenever a consumer leaves."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: asyncio.Event | None = None

    def note(self) -> None:
        """Take note that a consumer left."""
        if self._left is not None:
            self._left.set()

    async def wait_until(self, is_free: Callable[[], bool], within_s: float) -> None:
        """Wait until `is_free` holds, at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not is_free():
                    self._left = self._left or asyncio.Event()
                    self._left.clear()
                    await self._left.wait()
