"""One log over ledger files. Appends go through the journal; reads come from memory or in large blocks.

This module does not know how the journal reaches the disk, nor any other log.

This module knows nothing of how the journal reaches the disk, nor of other logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.errors import ServerError, TopicNotFoundError, TopicTerminatedError
from anabranch.ledger.format.commits import LogInherited, LogSealed, LogTrimmed, piece_records
from anabranch.ledger.format.records import HEAD_BYTES, OFFSET_MAX, record_head
from anabranch.ledger.journal.journal import Journal
from anabranch.ledger.ledgers import Batch, Closed, Ledger, LedgerStart
from anabranch.ledger.log_reads import LogReads
from anabranch.ledger.storage import AppendDone, Entry, StoredSequences, Watchers, report_failure
from anabranch.ledger.stored_log import LedgerFiles, StoredLog
from anabranch.model.inheritance import Pieces


@dataclass(slots=True)
class SharedParts:
    """The objects, limits and ids shared by all logs of one storage."""

    journal: Journal
    files: LedgerFiles
    ledger_bytes_max: int
    ledger_age_max_ms: int
    next_ledger: int = 0


class FileLog:
    """A log as the ledger port describes it. Only the storage creates one."""

    __slots__ = (
        "_batch",
        "_deleted",
        "_journal",
        "_reads",
        "_roll_bytes",
        "_roll_ms",
        "_sealing",
        "_shared",
        "_watchers",
        "_writing",
        "cursors",
        "extent",
        "name",
        "stored",
    )

    def __init__(self, stored: StoredLog, shared: SharedParts) -> None:
        self.stored = stored
        self.extent = stored.extent
        self.cursors = stored.cursors
        self.name = stored.name
        self._shared = shared
        self._journal = shared.journal
        self._reads = LogReads(stored, shared.files.reader)
        self._roll_bytes = shared.ledger_bytes_max
        self._roll_ms = min(shared.ledger_age_max_ms, OFFSET_MAX)
        self._batch: Batch | None = None
        self._writing: Ledger | None = None
        self._sealing = stored.sealed
        self._deleted = False
        self._watchers = Watchers(stored.name)

    @property
    def id(self) -> int:
        return self.stored.id

    @property
    def sealed(self) -> bool:
        return self.stored.sealed

    @property
    def sequences(self) -> StoredSequences:
        return self.stored.sequences

    # `append` is the hot path: it costs a few list operations per entry, and creates no task and no future.
    # The callbacks of all entries of a commit run in one turn of the event loop, after the shared sync.

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

    @property
    def full(self) -> str | None:
        return self._journal.space.full

    @property
    def slow(self) -> str | None:
        return self._journal.syncs.slow

    def _begin_batch(self, size: int, count: int, timestamp_ms: int) -> Batch:
        self._check_writable()
        self._journal.space.check()
        ledger = self._writing
        if ledger is None or not ledger.has_room(size, count, timestamp_ms, self._roll_bytes, self._roll_ms):
            ledger = self._writing = self._begin_ledger(timestamp_ms)
        batch = self._batch = Batch(self.stored.id, self, ledger)
        self._journal.add_batch(batch)
        return batch

    def _begin_ledger(self, timestamp_ms: int) -> Ledger:
        before = self._writing
        if before is None:
            ordinal = self.extent.next_ordinal
            index = max(self.extent.next_index, self.extent.index_floor)
        else:
            ordinal = before.first_ordinal + before.queued_entries
            index = before.first_index + before.queued_messages
        start = LedgerStart(self._shared.next_ledger, ordinal, index, timestamp_ms)
        self._shared.next_ledger += 1
        return self.stored.begin_ledger(start)

    def _check_writable(self) -> None:
        self._check_exists()
        if self._sealing:
            raise TopicTerminatedError(f"{self.name} is sealed")
        self._journal.check()

    def _check_exists(self) -> None:
        if self._deleted:
            raise TopicNotFoundError(f"{self.name} was deleted")

    def batch_taken(self) -> None:
        self._batch = None

    def committed(self, batch: Batch, closed: Closed) -> None:
        entries = batch.entries()
        if not self._deleted:
            self.stored.store(batch.ledger, batch.rows, closed)
            self.stored.cache(entries, closed.group.size_bytes)

    def answer(self, batch: Batch) -> None:
        for done, entry in zip(batch.done, batch.entries(), strict=True):
            try:
                done(entry, None)
            except Exception as error:
                report_failure(self.name, error)

    def rejected(self, batch: Batch, error: ServerError) -> None:
        self._batch = None
        # The positions of rejected entries are never reused: the next entry begins a new ledger.
        self._writing = None
        for done in batch.done:
            try:
                done(None, type(error)(str(error)))
            except Exception as failure:
                report_failure(self.name, failure)

    def notify(self) -> None:
        self._watchers.notify()

    def watch(self, advanced: Callable[[], None]) -> Callable[[], None]:
        return self._watchers.add(advanced)

    def read_cached(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        return self._reads.read_cached(ordinal, max_entries, max_bytes)

    async def read(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        return await self._reads.read(ordinal, max_entries, max_bytes)

    def read_each_cached(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry] | None:
        return self._reads.read_each_cached(ordinals, max_bytes)

    async def read_each(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        return await self._reads.read_each(ordinals, max_bytes)

    def release(self) -> None:
        self.stored.tail.drop()

    async def flush(self) -> None:
        await self._journal.flush()

    async def seal(self) -> None:
        if not self._sealing:
            self._check_writable()
            self._journal.add_change(LogSealed(self.stored.id), self._seal_applied)
            self._sealing = True
            # An open batch stays queued and will be stored, but accepts no more entries.
            self._batch = None
        await self._journal.flush()

    def _seal_applied(self) -> None:
        self.stored.sealed = True
        self.notify()

    async def inherit(self, pieces: Pieces) -> None:
        self._check_exists()

        def applied() -> None:
            self.stored.inherited = pieces

        self._journal.add_change(LogInherited(self.stored.id, piece_records(pieces)), applied)
        await self._journal.flush()

    async def trim(self, ordinal: int) -> None:
        bound = self._trim_bound(ordinal)
        if bound <= self.extent.first_ordinal or self._deleted:
            return
        behind = self._shared.files.behind
        # A caller that is cancelled, or gets the error of a full disk, does not undo the change.
        self._journal.add_change(
            LogTrimmed(self.stored.id, bound), lambda: behind.drop(self.stored.drop_below(bound))
        )
        await self._journal.flush()
        await behind.delete_dropped()

    def _trim_bound(self, ordinal: int) -> int:
        """Return the end of the last whole ledger below `ordinal`, excluding the one that takes appends."""
        bound = self.extent.first_ordinal
        for ledger in self.extent.below(ordinal):
            if ledger is not self._writing:
                bound = ledger.end_ordinal
        return bound

    def log_deleted(self) -> list[Ledger]:
        """Refuse further changes. The caller drops the returned ledgers once the deletion is durable."""
        self._deleted = True
        self._batch = None
        return self.stored.drop_all()
