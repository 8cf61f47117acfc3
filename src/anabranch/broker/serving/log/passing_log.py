"""The log of a live topic: always empty, because each entry is passed on once and forgotten.

It has the port of a stored log, so that producers, quotas and reports treat a live topic as any other topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from anabranch.errors import NotAllowedError
from anabranch.ledger.cursors import DurableCursor, LogCursors
from anabranch.ledger.memory_extent import MemoryExtent
from anabranch.ledger.storage import AppendDone, Entry, StoredSequences, Watchers, report_failure
from anabranch.model.ids import Position
from anabranch.model.inheritance import Pieces

NO_PLACE: Final = Position(0, 0)
"""The id in the receipts of live messages, as Pulsar's brokers answer."""


class PassingLog:
    """Collects the entries of one turn of the event loop, answers them, and shows them to its watchers.

    The collected entries count as unanswered bytes of their connections, which bounds them.
    """

    full: str | None = None
    slow: str | None = None
    sealed = False
    id = 0

    def __init__(self, name: str, ledger: int) -> None:
        """`ledger` is higher than at each earlier time that the topic was loaded."""
        self.name = name
        self.ledger = ledger
        self.extent = MemoryExtent()
        self.cursors = LogCursors(0, name, _NoJournal())
        self.sequences = StoredSequences({}, ())
        self.entries_in = 0
        self.passing: Sequence[Entry] = ()
        """The entries to take now; only while watchers are notified."""
        self._messages_in = 0
        self._queued: list[tuple[Entry, AppendDone]] = []
        self._watchers = Watchers(name)

    def append(
        self,
        data: bytes,
        count: int,
        timestamp_ms: int,
        done: AppendDone,
        producer: str | None = None,
        sequence: int = -1,
    ) -> None:
        if not self._queued:
            asyncio.get_running_loop().call_soon(self._pass_on)
        entry = Entry(NO_PLACE, self.entries_in, self._messages_in, count, timestamp_ms, data)
        self._queued.append((entry, done))
        self.entries_in += 1
        self._messages_in += count
        self.extent.last_timestamp_ms = timestamp_ms

    def _pass_on(self) -> None:
        queued, self._queued = self._queued, []
        for entry, done in queued:
            try:
                done(entry, None)
            except Exception as error:
                report_failure(self.name, error)
        self.passing = [entry for entry, _ in queued]
        self._watchers.notify()
        self.passing = ()

    def watch(self, advanced: Callable[[], None]) -> Callable[[], None]:
        return self._watchers.add(advanced)

    async def read(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        return ()

    def read_cached(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        return ()

    async def read_each(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        return ()

    def read_each_cached(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        return ()

    def release(self) -> None:
        """Nothing to do: the log has no entries."""

    async def flush(self) -> None:
        """Return when everything queued before the call is answered and passed on."""
        if self._queued:
            await asyncio.sleep(0)

    async def seal(self) -> None:
        raise NotAllowedError(f"{self.name} stores no message, so it has no end; only persistent topics end")

    async def trim(self, ordinal: int) -> None:
        """Nothing to do: the log has no entries."""

    async def inherit(self, pieces: Pieces) -> None:
        raise NotAllowedError(f"{self.name} stores no message, so it follows no other log")


class _NoJournal:
    """Keeps no cursors: the subscriptions of a live topic have none."""

    def cursor_created(self, log: int, name: str, ordinal: int, properties: dict[str, str]) -> None:
        raise NotAllowedError(f"subscription {name} is of a live topic, which has no cursors")

    def cursor_deleted(self, log: int, name: str) -> None:
        """No cursor exists."""

    def steps_waiting(self, cursor: DurableCursor) -> None:
        """No cursor exists."""

    async def flush(self, *, patient: bool = False) -> None:
        """Nothing waits."""
