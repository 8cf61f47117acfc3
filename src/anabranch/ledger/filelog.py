"""One log over ledger files: append through the journal, read from memory or by large blocks.

Knows nothing of how the journal reaches the disk, nor of other logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.errors import CorruptDataError, PersistenceError, TopicNotFoundError, TopicTerminatedError
from anabranch.ledger.behind import WriteBehind
from anabranch.ledger.cache import Cache, CachedTail, ReadAhead
from anabranch.ledger.cursors import DurableCursors
from anabranch.ledger.disk import Disk
from anabranch.ledger.format.extent import LedgerExtent
from anabranch.ledger.format.records import (
    HEAD_BYTES,
    OFFSET_MAX,
    CursorRecord,
    Group,
    LogInherited,
    LogRecord,
    LogSealed,
    LogTrimmed,
    Rows,
    piece_records,
    pieces_of,
    record_head,
)
from anabranch.ledger.journal import Journal
from anabranch.ledger.ledgers import Batch, Closed, Ledger
from anabranch.ledger.reading import read_entries
from anabranch.ledger.storage import AppendDone, Entry, StoredSequences
from anabranch.model.acks import AckSet
from anabranch.model.ids import Position
from anabranch.model.inheritance import Pieces
from anabranch.model.names import TopicName

PRODUCERS_MAX = 10_000
"""Producer names whose sequence a log remembers; the one longest unused goes first."""


@dataclass(slots=True)
class Shared:
    """What all logs of one storage use together."""

    disk: Disk
    journal: Journal
    behind: WriteBehind
    cache: Cache
    ahead: ReadAhead
    ledger_bytes_max: int
    ledger_age_max_ms: int
    next_ledger: int = 0

    def take_ledger_id(self) -> int:
        taken = self.next_ledger
        self.next_ledger += 1
        return taken


class FileLog:
    """The log of the ledger port; made by the storage only."""

    def __init__(self, id_: int, name: str, shared: Shared) -> None:
        self.id = id_
        self._name = name
        self._shared = shared
        self._folder = TopicName.parse(name).storage_name
        self._tail = CachedTail(shared.cache)
        self.extent = LedgerExtent()
        self._roll_bytes = shared.ledger_bytes_max
        self._roll_ms = min(shared.ledger_age_max_ms, OFFSET_MAX)
        self._batch: Batch | None = None
        self._writing: Ledger | None = None
        self._sealing = False
        self._sealed = False
        self._deleted = False
        self._producers: dict[str, int] = {}
        self._inherited: Pieces = ()
        self.cursors = DurableCursors(id_, name, shared.journal)
        self._watchers: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def sealed(self) -> bool:
        return self._sealed

    @property
    def sequences(self) -> StoredSequences:
        return StoredSequences(self._producers, self._inherited)

    # Appending. This is the hot path: a few list operations an entry, no task and no future.

    def append(
        self,
        data: bytes,
        count: int,
        timestamp_ms: int,
        done: AppendDone,
        producer: str | None = None,
        sequence: int = -1,
    ) -> None:
        if not 0 < count <= OFFSET_MAX:
            raise ValueError(f"an entry holds between 1 and {OFFSET_MAX} messages, not {count}")
        size = HEAD_BYTES + len(data)
        batch = self._batch
        if batch is None:
            batch = self._begin_batch(size, count, timestamp_ms)
        ledger = batch.ledger
        end = ledger.queued_bytes + size
        messages = ledger.queued_messages + count
        elapsed_ms = timestamp_ms - ledger.base_ms
        if elapsed_ms < ledger.queued_ms:
            elapsed_ms = ledger.queued_ms
        number = ledger.queued_entries
        if number and (end > self._roll_bytes or messages > OFFSET_MAX or elapsed_ms > self._roll_ms):
            batch = self._begin_batch(size, count, timestamp_ms)
            ledger = batch.ledger
            number, end, messages, elapsed_ms = 0, size, count, 0
        index = ledger.first_index + ledger.queued_messages
        ledger.queued_entries = number + 1
        ledger.queued_bytes = end
        ledger.queued_messages = messages
        ledger.queued_ms = elapsed_ms
        rows = batch.rows
        rows.ends.append(end)
        rows.indexes.append(messages)
        rows.times.append(elapsed_ms)
        batch.pieces += (record_head(ledger.owner, number, count, index, timestamp_ms, data), data)
        batch.indexes.append(index)
        batch.counts.append(count)
        batch.stamps_ms.append(timestamp_ms)
        batch.done.append(done)
        if producer is not None:
            batch.producers[producer] = sequence

    def _begin_batch(self, size: int, count: int, timestamp_ms: int) -> Batch:
        self._check_writable()
        ledger = self._writing
        if ledger is None or not ledger.has_room(size, count, timestamp_ms, self._roll_bytes, self._roll_ms):
            ledger = self._writing = self._begin_ledger(timestamp_ms)
        batch = self._batch = Batch(self.id, self, ledger)
        self._shared.journal.add_batch(batch)
        return batch

    def _begin_ledger(self, timestamp_ms: int) -> Ledger:
        before = self._writing
        if before is None:
            ordinal, index = self.extent.next_ordinal, self.extent.next_index
        else:
            ordinal = before.first_ordinal + before.queued_entries
            index = before.first_index + before.queued_messages
        return self._make_ledger(self._shared.take_ledger_id(), ordinal, index, timestamp_ms)

    def _check_writable(self) -> None:
        if self._deleted:
            raise TopicNotFoundError(f"{self._name} was deleted")
        if self._sealing:
            raise TopicTerminatedError(f"{self._name} is sealed")
        self._shared.journal.check()

    def batch_taken(self) -> None:
        self._batch = None

    def committed(self, batch: Batch, closed: Closed) -> None:
        entries = batch.entries()
        if not self._deleted:
            self._store(batch.ledger, batch.rows, closed)
            self._tail.extend(entries, closed.group.size_bytes)
            self._shared.cache.shrink()
        for done, entry in zip(batch.done, entries, strict=True):
            try:
                done(entry, None)
            except Exception as error:
                self._report(error)

    def rejected(self, batch: Batch, error: PersistenceError) -> None:
        self._batch = None
        for done in batch.done:
            try:
                done(None, PersistenceError(str(error)))
            except Exception as failure:
                self._report(failure)

    def notify(self) -> None:
        for advanced in list(self._watchers):
            try:
                advanced()
            except Exception as error:
                self._report(error)

    def _report(self, error: Exception) -> None:
        """A caller's callback failed; that must not keep the others from being told."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"callback on {self._name} failed", "exception": error}
        )

    def _store(self, ledger: Ledger, rows: Rows, closed: Closed) -> None:
        extent = self.extent
        group, encoded_rows, records = closed
        if not extent.ledgers or extent.ledgers[-1] is not ledger:
            extent.add(ledger)
        ledger.extend(rows, encoded_rows, records)
        self._shared.behind.add(ledger, group.size_bytes)
        extent.advance()
        extent.last_timestamp_ms = group.last_ms
        for producer, sequence in group.producers.items():
            self._producers.pop(producer, None)
            self._producers[producer] = sequence
        while len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]

    # Reading.

    def watch(self, advanced: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(advanced)

        def undo() -> None:
            if advanced in self._watchers:
                self._watchers.remove(advanced)

        return undo

    def read_cached(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        ordinal = max(ordinal, self.extent.first_ordinal)
        if ordinal >= self.extent.next_ordinal:
            return []
        return self._tail.read(ordinal, max_entries, max_bytes)

    async def read(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        while True:
            found = self.read_cached(ordinal, max_entries, max_bytes)
            if found is not None:
                return found
            ledger, number = self.extent.locate(max(ordinal, self.extent.first_ordinal))
            try:
                return await read_entries(
                    self._shared.disk, self._shared.ahead, self._name, ledger, number, max_entries, max_bytes
                )
            except OSError as error:
                # A ledger may be trimmed away while it is read; the first one that is left answers then.
                if not ledger.dropped:
                    raise PersistenceError(f"{self._name}: {ledger.data_file} cannot be read") from error

    # The end of a log, and of its beginning.

    async def flush(self) -> None:
        await self._shared.journal.flush()

    async def seal(self) -> None:
        if not self._sealing:
            self._check_writable()
            self._shared.journal.add_change(LogSealed(self.id), self.seal_applied)
            self._sealing = True
            # An open batch stays queued and is stored; nothing can join it any more.
            self._batch = None
        await self._shared.journal.flush()

    async def inherit(self, pieces: Pieces) -> None:
        if self._deleted:
            raise TopicNotFoundError(f"{self._name} was deleted")
        self._shared.journal.add_change(
            LogInherited(self.id, piece_records(pieces)), lambda: self.inherit_applied(pieces)
        )
        await self._shared.journal.flush()

    async def trim(self, ordinal: int) -> None:
        bound = self._trim_bound(ordinal)
        if bound <= self.extent.first_ordinal or self._deleted:
            return
        dropped: list[Ledger] = []
        self._shared.journal.add_change(
            LogTrimmed(self.id, bound), lambda: dropped.extend(self.drop_below(bound))
        )
        await self._shared.journal.flush()
        await self._shared.behind.drop(dropped)

    def _trim_bound(self, ordinal: int) -> int:
        """Where the last whole ledger below `ordinal` ends; the one being written stays."""
        bound = self.extent.first_ordinal
        for ledger in self.extent.below(ordinal):
            if ledger is not self._writing:
                bound = ledger.end_ordinal
        return bound

    def drop_below(self, ordinal: int) -> list[Ledger]:
        """Forget whole ledgers below `ordinal`; their files are the caller's to delete."""
        dropped = self.extent.drop_below(ordinal)
        for ledger in dropped:
            ledger.dropped = True
        self._shared.ahead.forget([ledger.id for ledger in dropped])
        return dropped

    def forget(self) -> list[Ledger]:
        """The log is deleted: nothing can be done with it any more. Returns what it leaves behind."""
        self._deleted = True
        self._batch = None
        self.cursors.log_deleted()
        dropped = self.drop_below(self.extent.next_ordinal)
        self._tail.drop()
        return dropped

    # Recovery.

    def record(self) -> LogRecord:
        """All that is durable of the log, without its entries; acknowledgements may be ahead of that."""
        extent = self.extent
        return LogRecord(
            self.id,
            self._name,
            self._sealed,
            extent.first_ordinal,
            extent.first_index,
            extent.end.ledger,
            extent.end.entry,
            extent.last_timestamp_ms,
            [ledger.record() for ledger in extent.ledgers],
            [
                CursorRecord(name, cursor.acks.encode(), dict(cursor.properties))
                for name, cursor in self.cursors.items()
            ],
            dict(self._producers),
            piece_records(self._inherited),
        )

    def restore(self, record: LogRecord) -> list[Ledger]:
        """Become what the record says; returns the ledgers, whose rows the caller has to fill in."""
        extent = self.extent
        extent.first_ordinal = extent.next_ordinal = record.first_ordinal
        extent.first_index = extent.next_index = record.first_index
        extent.end = Position(record.end_ledger, record.end_entry)
        extent.last_timestamp_ms = record.last_ms
        self._sealed = record.sealed
        self._producers = dict(record.producers)
        self._inherited = pieces_of(record.inherited)
        for cursor in record.cursors:
            self.cursors.restore(cursor.name, AckSet.decode(cursor.acks), cursor.properties)
        for kept in record.ledgers:
            extent.add(self._make_ledger(kept.id, kept.first_ordinal, kept.first_index, kept.base_ms))
        return extent.ledgers

    def replay_group(self, group: Group, encoded_rows: bytes, records: bytes) -> None:
        """Take entries that a commit of an earlier process holds."""
        extent = self.extent
        ledger = extent.ledgers[-1] if extent.ledgers else None
        if ledger is None or ledger.id != group.ledger:
            ledger = self._make_ledger(group.ledger, group.first_ordinal, group.first_index, group.base_ms)
        if group.first_entry != ledger.entries or ledger.end_ordinal != extent.next_ordinal:
            raise CorruptDataError(
                f"{self._name}: the journal continues at {group.ledger}:{group.first_entry}, "
                f"which is not where the log ends"
            )
        self._store(ledger, Rows.decode(encoded_rows), Closed(group, encoded_rows, [records]))

    def seal_applied(self) -> None:
        """The seal is durable."""
        self._sealed = True
        self.notify()

    def inherit_applied(self, pieces: Pieces) -> None:
        """What is inherited is durable."""
        self._inherited = pieces

    def restored(self) -> None:
        """The rows of all ledgers are filled in."""
        if self.extent.ledgers:
            self.extent.advance()

    def recovered(self) -> None:
        """Everything was restored and replayed; appends begin a new ledger."""
        self._sealing = self._sealed

    def _make_ledger(self, id_: int, first_ordinal: int, first_index: int, base_ms: int) -> Ledger:
        return Ledger(
            id_,
            self.id,
            self._folder,
            self._tail,
            first_ordinal=first_ordinal,
            first_index=first_index,
            base_ms=base_ms,
        )
