"""The parts of a client that its producers share, such as the limit on messages that wait to be stored."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.clock import Clock


class Memory:
    """Counts bytes of pending messages; callers wait in line while the count is above the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.full = False
        """Whether a new caller must wait: the count is above the limit, or other callers wait already."""
        self._line: deque[asyncio.Future[None]] = deque()

    def charge(self, size: int) -> None:
        """Count bytes of accepted messages; never waits."""
        self.used += size
        if self.used > self.limit:
            self.full = True

    async def wait(self) -> None:
        """Return when it is this caller's turn; first come, first served."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        self.full = True
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._line:
                self._line.remove(turn)
            else:
                # This caller had its turn and does not use it.
                self._next()
            raise
        self._next()

    def release(self, size: int) -> None:
        """Uncount bytes of messages that have an outcome."""
        self.used -= size
        if self.full:
            self._next()

    def _next(self) -> None:
        """Give the turn to the next caller in line, if there is room."""
        while self._line and self.used <= self.limit:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        self.full = self.used > self.limit or bool(self._line)


class PublishContext(NamedTuple):
    """The parts of a client that its producers share."""

    pool: ConnectionPool
    memory: Memory
    clock: Clock
