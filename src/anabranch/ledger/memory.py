"""Segment storage in memory: the reference implementation of the port, for tests and simulations.

It uses plain lists, so that its results are obviously right. A commit takes one turn of the event loop.
Committed entries survive `close` and `open`; queued ones are lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from anabranch.errors import AlreadyClosedError, PersistenceError, TopicNotFoundError, TopicTerminatedError
from anabranch.ledger.cursors import DurableCursor, LogCursors
from anabranch.ledger.findings import Finding
from anabranch.ledger.memory_extent import MemoryExtent
from anabranch.ledger.storage import AppendDone, Entry, StoredSequences, Watchers, report_failure
from anabranch.model.ids import Position
from anabranch.model.inheritance import Pieces
from anabranch.model.log_names.side_logs import folder_of_log, is_side_log


class MemoryStorage:
    """Logs that live as long as this object."""

    full: str | None = None
    findings: Sequence[Finding] = ()
    store_id = 0

    def __init__(self, *, ledger_entries_max: int = 100_000, ledger_age_max_s: float = 86_400.0) -> None:
        """A ledger ends after `ledger_entries_max` entries, because a trim drops only whole ledgers."""
        self._ledger_entries_max = ledger_entries_max
        self._ledger_age_max_ms = int(ledger_age_max_s * 1000)
        self._logs: dict[str, MemoryLog] = {}
        self.ledger_ids = itertools.count(1)
        self.log_ids = itertools.count(1)
        self._open = False
        self._queue: list[Callable[[], None]] = []
        self._waiters: list[asyncio.Future[None]] = []

    def watch_failure(self, failed: Callable[[PersistenceError], None]) -> None:
        """Do nothing: memory does not fail, so `failed` is never called."""

    async def open(self, name: str = "", fence: str | None = None) -> None:
        self._open = True
        for log in self._logs.values():
            log.reopen()

    async def checkpoint(self) -> None:
        """Do nothing: opening is always quick."""

    async def close(self, *, hastily: bool = False) -> None:
        if self._open:
            await self.flush()
        self._open = False

    def names(self) -> Sequence[str]:
        return sorted(name for name in self._logs if not is_side_log(name))

    def side_names(self) -> Sequence[str]:
        return sorted(filter(is_side_log, self._logs))

    def get(self, name: str) -> MemoryLog | None:
        return self._logs.get(name)

    async def create(self, name: str) -> MemoryLog:
        self.check_open()
        log = self._logs.get(name)
        if log is None:
            folder_of_log(name)
            log = self._logs[name] = self._new_log(name, self._ledger_entries_max, self._ledger_age_max_ms)
        await self.flush()
        return log

    def _new_log(self, name: str, ledger_entries_max: int, ledger_age_max_ms: int) -> MemoryLog:
        return MemoryLog(name, self, ledger_entries_max, ledger_age_max_ms)

    async def delete(self, name: str) -> None:
        self.check_open()
        log = self._logs.pop(name, None)
        if log is not None:
            log.log_deleted()
        await self.flush()

    def check_open(self) -> None:
        if not self._open:
            raise AlreadyClosedError("the storage is closed")

    def queue(self, applied: Callable[[], None]) -> None:
        """Call `applied` when the next commit is done."""
        if not self._queue and not self._waiters:
            asyncio.get_running_loop().call_soon(self._commit)
        self._queue.append(applied)

    def cursor_created(self, log: int, name: str, ordinal: int, properties: dict[str, str]) -> None:
        self.check_open()

    def cursor_deleted(self, log: int, name: str) -> None:
        self.check_open()

    def steps_waiting(self, cursor: DurableCursor) -> None:
        self.queue(lambda: cursor.take_steps().clear())

    async def flush(self, *, patient: bool = False) -> None:
        if self._queue:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _commit(self) -> None:
        queue, self._queue = self._queue, []
        waiters, self._waiters = self._waiters, []
        for applied in queue:
            applied()
        for log in list(self._logs.values()):
            log.notify_if_moved()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class MemoryLog:
    """One log in memory."""

    full: str | None = None
    slow: str | None = None

    def __init__(
        self, name: str, storage: MemoryStorage, ledger_entries_max: int, ledger_age_max_ms: int
    ) -> None:
        self.name = name
        self.id = next(storage.log_ids)
        self._storage = storage
        self._ledger_entries_max = ledger_entries_max
        self._ledger_age_max_ms = ledger_age_max_ms
        self._ledger_since_ms = 0
        self.extent = MemoryExtent()
        self._queued_ordinal = 0
        self._queued_index = 0
        self._queued_entry = 0
        self._ledger: int | None = None
        self._sealing = False
        self.sealed = False
        self._deleted = False
        self._moved = False
        self._producers: dict[str, int] = {}
        self._inherited: Pieces = ()
        self.cursors = LogCursors(0, name, storage)
        self._watchers = Watchers(name)

    @property
    def sequences(self) -> StoredSequences:
        return StoredSequences(self._producers, self._inherited)

    def reopen(self) -> None:
        """Behave as after a restart: queued entries are lost, and the next append begins a new ledger."""
        self._ledger = None
        self._queued_ordinal = self.extent.next_ordinal
        self._queued_index = self.extent.next_index
        self._sealing = self.sealed

    def append(
        self,
        data: bytes,
        count: int,
        timestamp_ms: int,
        done: AppendDone,
        producer: str | None = None,
        sequence: int = -1,
    ) -> None:
        self._check_writable()
        if count < 1:
            raise ValueError(f"an entry holds at least one message, not {count}")
        full = self._queued_entry == self._ledger_entries_max
        if self._ledger is None or full or timestamp_ms - self._ledger_since_ms > self._ledger_age_max_ms:
            self._ledger = next(self._storage.ledger_ids)
            self._ledger_since_ms = timestamp_ms
            self._queued_entry = 0
        position, data = Position(self._ledger, self._queued_entry), self._stored_form(data, timestamp_ms)
        entry = Entry(position, self._queued_ordinal, self._queued_index, count, timestamp_ms, data)
        self._queued_entry += 1
        self._queued_ordinal += 1
        self._queued_index += count
        self._storage.queue(lambda: self._committed(entry, done, producer, sequence))

    def _stored_form(self, data: bytes, timestamp_ms: int) -> bytes:
        """Return the entry as it is stored: unchanged, unless a test overrides this."""
        return data

    def _check_writable(self) -> None:
        if self._deleted:
            raise TopicNotFoundError(f"{self.name} was deleted")
        if self._sealing:
            raise TopicTerminatedError(f"{self.name} is sealed")
        self._storage.check_open()

    def _committed(self, entry: Entry, done: AppendDone, producer: str | None, sequence: int) -> None:
        if not self._deleted:
            self.extent.add(entry)
            self._moved = True
            if producer is not None:
                self._producers[producer] = sequence
        try:
            done(entry, None)
        except Exception as error:
            report_failure(self.name, error)

    def notify_if_moved(self) -> None:
        if self._moved:
            self._moved = False
            self._watchers.notify()

    def watch(self, advanced: Callable[[], None]) -> Callable[[], None]:
        return self._watchers.add(advanced)

    async def read(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        return self.read_cached(ordinal, max_entries, max_bytes)

    def read_cached(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        start = max(ordinal - self.extent.first_ordinal, 0)
        found: list[Entry] = []
        for entry in self.extent.entries[start : start + max_entries]:
            max_bytes -= len(entry.data)
            if max_bytes < 0 and found:
                break
            found.append(entry)
        return found

    async def read_each(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        return self.read_each_cached(ordinals, max_bytes)

    def read_each_cached(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        found: list[Entry] = []
        for ordinal in ordinals:
            if self.extent.first_ordinal <= ordinal < self.extent.next_ordinal:
                entry = self.extent.entries[ordinal - self.extent.first_ordinal]
                max_bytes -= len(entry.data)
                if max_bytes < 0 and found:
                    break
                found.append(entry)
        return found

    def release(self) -> None:
        """Do nothing: there is no disk behind this memory."""

    async def flush(self) -> None:
        self._storage.check_open()
        await self._storage.flush()

    async def seal(self) -> None:
        if not self._sealing:
            self._check_writable()
            self._sealing = True
            self._storage.queue(self._seal_applied)
        await self._storage.flush()

    def _seal_applied(self) -> None:
        self.sealed = True
        self._moved = True

    async def inherit(self, pieces: Pieces) -> None:
        if self._deleted:
            raise TopicNotFoundError(f"{self.name} was deleted")
        self._storage.check_open()

        def applied() -> None:
            self._inherited = pieces

        self._storage.queue(applied)
        await self._storage.flush()

    async def trim(self, ordinal: int) -> None:
        entries, dropped = self.extent.entries, 0
        for at, entry in enumerate(entries):
            if entry.ordinal >= ordinal or entry.position.ledger == self._ledger:
                break
            following = entries[at + 1] if at + 1 < len(entries) else None
            if following is None or following.position.ledger != entry.position.ledger:
                dropped = at + 1
        if dropped:
            self.extent.drop(dropped)
        await self._storage.flush()

    def log_deleted(self) -> None:
        self._deleted = True
        self.cursors.log_deleted()
        if self.extent.entries:
            self.extent.drop(len(self.extent.entries))
