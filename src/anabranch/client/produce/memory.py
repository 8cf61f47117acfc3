"""The limit on bytes of messages that wait to be stored, and what else the producers of a client share."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.clock import Clock
from anabranch.errors import AlreadyClosedError, SendTimeoutError
from anabranch.speedups import RoomGate


class Memory(RoomGate):
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


class RoomWaits:
    """The callers of one producer that wait for room."""

    def __init__(self, memory: Memory, timeout_s: float) -> None:
        """A `timeout_s` of 0 lets callers wait for ever."""
        self._memory = memory
        self._timeout_s = timeout_s
        self._limits: dict[asyncio.Timeout, None] = {}
        self._closed = False

    async def wait(self) -> None:
        """Return when it is this caller's turn; raises SendTimeoutError, or AlreadyClosedError."""
        limit = asyncio.timeout(self._timeout_s or None)
        try:
            async with limit:
                self._limits[limit] = None
                try:
                    await self._memory.wait()
                finally:
                    del self._limits[limit]
        except TimeoutError:
            if not self._closed:
                raise SendTimeoutError(
                    f"{self._memory.used} bytes of other messages left no room within {self._timeout_s:g} s; "
                    "the message was not sent"
                ) from None
        if self._closed:
            raise AlreadyClosedError("the producer is closed")

    def close(self) -> None:
        """End all waits."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)


class PublishContext(NamedTuple):
    """The parts of a client that its producers share."""

    pool: ConnectionPool
    memory: Memory
    clock: Clock
