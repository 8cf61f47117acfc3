"""Entries of one segment that wait for their receipts, sent or not, in the order of their sequence ids.

Every entry leaves here with an outcome, or is taken back to be routed again. Knows no connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from anabranch.client.decide.batcher import FAILED, STORED, Outgoing
from anabranch.client.produce.futures import complete
from anabranch.client.produce.memory import Memory
from anabranch.errors import SendTimeoutError

CLOCK_MARGIN_S = 1e-6
"""A timer may fire this early; without the margin it would be set again for the same instant."""


class PendingEntries:
    """Entries without an outcome; `sent` goes before `unsent`."""

    __slots__ = ("_failed", "_loop", "_memory", "_segment_id", "sent", "unsent")

    def __init__(
        self,
        segment_id: int,
        memory: Memory,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[Outgoing], None],
    ) -> None:
        self.sent: deque[Outgoing] = deque()
        self.unsent: deque[Outgoing] = deque()
        self._segment_id = segment_id
        self._memory = memory
        self._loop = loop
        self._failed = failed

    def __bool__(self) -> bool:
        return bool(self.sent or self.unsent)

    def all(self) -> list[Outgoing]:
        return [*self.sent, *self.unsent]

    def add(self, batch: Outgoing) -> None:
        """Take an entry that is ready to be sent."""
        self._memory.charge(batch.size)
        self.unsent.append(batch)

    def requeue(self) -> None:
        """Count all sent entries as unsent again."""
        self.unsent.extendleft(reversed(self.sent))
        self.sent.clear()

    def store(self, batch: Outgoing, ledger: int, entry: int) -> None:
        """Complete an entry that the segment has stored; the caller has removed it from the queue."""
        batch.state = STORED
        batch.place = (self._segment_id, ledger, entry)
        self._finish(batch)

    def store_up_to(self, sequence_id: int) -> None:
        """Complete the entries that an earlier registration sent and the segment has stored, up to this id.

        The position of such an entry is unknown.
        """
        unsent = self.unsent
        while unsent and unsent[0].tried and unsent[0].sequence <= sequence_id:
            self.store(unsent.popleft(), -1, -1)

    def any_tried(self) -> bool:
        """Whether an entry may be stored without the producer's knowing."""
        return any(batch.tried for batch in self.unsent)

    def fail(self, batch: Outgoing, error: Exception) -> None:
        """Complete an entry with an error; the caller has removed it from the queue."""
        batch.state = FAILED
        batch.error = error
        self._failed(batch)
        self._finish(batch)

    def fail_all(self, error: Exception) -> None:
        waiting = self.all()
        self.sent.clear()
        self.unsent.clear()
        for batch in waiting:
            self.fail(batch, error)

    def expire(self, now: float, timeout_s: float) -> None:
        """Fail the entries whose first message was added more than `timeout_s` ago."""
        for waiting in (self.sent, self.unsent):
            while waiting and waiting[0].begun_at + timeout_s <= now + CLOCK_MARGIN_S:
                error = SendTimeoutError(f"not stored within {timeout_s:g} s; it may still be stored")
                self.fail(waiting.popleft(), error)

    def oldest_at(self) -> float | None:
        """When the first message of the oldest entry was added; None without entries."""
        waiting = self.sent or self.unsent
        return waiting[0].begun_at if waiting else None

    def take_back(self) -> list[Outgoing]:
        """Remove and return all entries, in order, to be routed to other segments."""
        taken = list(self.unsent)
        self.unsent.clear()
        for batch in taken:
            self._memory.release(batch.size)
        return taken

    def _finish(self, batch: Outgoing) -> None:
        self._memory.release(batch.size)
        # The bytes are not needed any more, and a caller may keep the futures for long.
        batch.entry = b""
        complete(batch, self._loop)
