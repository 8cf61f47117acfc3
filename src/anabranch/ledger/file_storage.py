"""Segment storage on a disk: one journal, ledger files behind it, and a catalog of all other state.

    LOCK                            locked by the one process that may write here
    catalog, catalog.copy           logs, ledgers, cursors, producers as of the start of a journal file
    bounds, bounds.copy             the ledger ids and the journal file that may be in use
    journal/00000012.log            commits since then
    ledgers/<name>/00000007.data    records of one ledger, and .index its place in the log and its rows

A commit is durable when the sync of the journal returns. When the journal has grown long enough, the storage
makes a checkpoint: it syncs the ledger files, replaces the catalog, and deletes the older journal files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from anabranch.clock import Clock
from anabranch.errors import AlreadyClosedError, PersistenceError
from anabranch.ledger.cache import Cache
from anabranch.ledger.disks.disk import Disk, DiskFullError
from anabranch.ledger.disks.space import StoreSpace
from anabranch.ledger.file_log import FileLog, SharedParts
from anabranch.ledger.findings import Finding
from anabranch.ledger.format.catalog import Catalog
from anabranch.ledger.format.commits import LogCreated, LogDeleted
from anabranch.ledger.journal.journal import Journal
from anabranch.ledger.journal.journal_reading import journal_file
from anabranch.ledger.journal.used_numbers import UsedNumbers
from anabranch.ledger.ledger_files import LedgerReader, WriteBehind
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.recovery.recovery import Recovery
from anabranch.ledger.recovery.replaying import Recovered
from anabranch.ledger.recovery.store_files import StoreFiles
from anabranch.ledger.stored_log import LedgerFiles, StoredLog
from anabranch.model.log_names.side_logs import is_side_log
from anabranch.timings import Timings

_log = logging.getLogger(__name__)


class FileStorage:
    """The segment storage of one process on one disk."""

    def __init__(
        self,
        disk: Disk,
        *,
        clock: Clock,
        limits: StorageLimits | None = None,
        timings: Timings | None = None,
        rebuild: bool = False,
    ) -> None:
        """With `rebuild`, `open` rebuilds a lost catalog (subscriptions are lost) instead of refusing."""
        limits = limits or StorageLimits()
        self._disk = disk
        self._rebuild = rebuild
        self._catalogs = StoreFiles(disk).catalog
        self._numbers = UsedNumbers(disk)
        self._clock, self._limits = clock, limits
        cache = Cache(limits.cache_bytes)
        self._behind = WriteBehind(disk, cache)
        self.space = StoreSpace(disk, limits.reserve_bytes, lambda: self._behind.owed_bytes)
        self.space.changed = self._space_changed
        self._behind.written, self._behind.deleted = self.space.used, self.space.look_soon
        self._journal = Journal(disk, self.space, timings)
        self._files = LedgerFiles(self._behind, cache, LedgerReader(disk))
        self._shared = SharedParts(
            self._journal, self._files, limits.ledger_bytes_max, int(limits.ledger_age_max_s * 1000)
        )
        self._logs: dict[str, FileLog] = {}
        self._next_log, self._salt, self._serial = 1, 0, 0
        self.findings: list[Finding] = []
        """Damage that the last `open` found. Each finding was logged as a warning."""
        self._journals: dict[int, int] = {}
        self._catalog: Catalog | None = None
        self._catalog_bytes, self._checkpoint_wanted = 0, False
        self._checkpointed, self._files_due, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None
        self._commits_done = self._closed = self._hasty = False

    @property
    def full(self) -> str | None:
        return self.space.full

    def watch_failure(self, failed: Callable[[PersistenceError], None]) -> None:
        self._journal.failed = failed

    @property
    def store_id(self) -> int:
        return self._salt

    async def open(self, name: str = "", fence: str | None = None) -> None:
        try:
            await self._disk.lock(name, fence)
            await self.space.find_reserve()
            make = partial(Recovery, self._disk, self._behind, self._make_log, rebuild=self._rebuild)
            self._take_over(await self.space.with_reserve(lambda: make().run(self._clock.wall_ms())))
            if self._catalog is not None:
                try:
                    await self._finish_checkpoint()
                except DiskFullError as error:
                    await self._wait_for_room(error)
            await self.space.look()
        except (Exception, asyncio.CancelledError):
            await self._disk.close()
            raise
        self._task = asyncio.create_task(self._run(), name="ledger storage")
        # Entries from the journal may be due; writing their files must not delay the start.
        self._files_due.set()
        self._after_commit()

    def _take_over(self, state: Recovered) -> None:
        self._salt, self._serial = state.salt, state.serial
        self._numbers.start_at(state.bounds)
        self._next_log, self._shared.next_ledger = state.next_log, state.next_ledger
        self._journals = state.journals
        self._logs = {log.name: FileLog(log, self._shared) for log in state.logs.values()}
        self._journal.start_at(state.salt, state.next_journal, state.next_commit)
        self._journal.prepare = lambda: self._numbers.prepare(self._journal.number, self._shared.next_ledger)
        self.findings = state.findings
        for finding in state.findings:
            _log.warning("store %x was damaged: %s", self._salt, finding)
        if state.findings:
            # A second recovery would find the same damage, and could have another result if commits were
            # lost.
            self._begin_checkpoint()

    def _make_log(self, id_: int, name: str) -> StoredLog:
        return StoredLog(id_, name, self._files, self._journal)

    async def checkpoint(self) -> None:
        self._check_open()
        self._checkpointed.clear()
        if self._catalog is None:
            self._checkpoint_wanted = True
            if not self._journal.committing:
                self._after_commit()
        await self._checkpointed.wait()

    async def close(self, *, hastily: bool = False) -> None:
        if self._closed:
            return
        self._closed, self._hasty = True, hastily or self._behind.stop_if_long()
        self._journal.stop()
        self._room.set()
        try:
            if self._task is not None:
                await self._task
                if self._journal.failure is None and self._journals and not self._hasty:
                    # Then the next start has nothing to replay.
                    self._begin_checkpoint()
                    try:
                        await self._finish_checkpoint()
                        await self._numbers.close(self._shared.next_ledger)
                    except DiskFullError as error:
                        _log.warning("no room to checkpoint; the next start replays the journal: %s", error)
        finally:
            await self._disk.close()

    def names(self) -> Sequence[str]:
        return sorted(name for name in self._logs if not is_side_log(name))

    def side_names(self) -> Sequence[str]:
        return sorted(filter(is_side_log, self._logs))

    def get(self, name: str) -> FileLog | None:
        return self._logs.get(name)

    async def create(self, name: str) -> FileLog:
        self._check_open()
        log = self._logs.get(name)
        if log is None:
            log = FileLog(self._make_log(self._next_log, name), self._shared)
            self._journal.add_change(LogCreated(self._next_log, name))
            self._next_log += 1
            self._logs[name] = log
        await self._journal.flush()
        return log

    async def delete(self, name: str) -> None:
        self._check_open()
        log = self._logs.get(name)
        if log is None:
            # Another caller may be deleting the log. Wait until that deletion is durable.
            await self._journal.flush()
            return
        del self._logs[name]
        # A caller that is cancelled, or gets the error of a full disk, does not undo the change.
        self._journal.add_change(LogDeleted(log.stored.id), partial(self._behind.drop, log.log_deleted()))
        await self._journal.flush()
        await self._behind.delete_dropped()

    def _check_open(self) -> None:
        if self._task is None:
            raise AlreadyClosedError("the storage is not open")
        self._journal.check()

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write_files(), name="ledger files")
                looking = tasks.create_task(self.space.run(), name="room on the disk")
                deleting = tasks.create_task(self._behind.run_deletes(), name="deletes of ledger files")
                await self._journal.run(self._after_commit, self._room)
                looking.cancel()
                deleting.cancel()
                self._commits_done = True
                self._files_due.set()
        finally:
            self._checkpointed.set()

    def _after_commit(self) -> None:
        """Start writing the ledger files, or a checkpoint, if either is due. Runs between two commits."""
        journal = self._journal
        if journal.size_bytes:
            self._journals[journal.number] = journal.size_bytes
        long = sum(self._journals.values())
        low = self.space.is_low(long)
        due = self._checkpoint_wanted or low or long >= self._limits.journal_bytes_max
        if due and self._catalog is None:
            self._begin_checkpoint()
        if self._catalog is not None or self._behind.waiting_bytes >= self._limits.behind_bytes:
            self._files_due.set()
        if self.space.full is None and (
            self._behind.waiting_bytes >= 16 * self._limits.behind_bytes
            or long >= 4 * self._limits.journal_bytes_max
            # It is better to wait for the room that a checkpoint frees than to refuse entries.
            or (low and self._catalog is not None)
        ):
            self._room.clear()

    def _space_changed(self) -> None:
        """React to a disk that became full or has room again: a checkpoint may free room, or is due."""
        if self.space.full is not None:
            # Only changes are committed now, and they must not wait for ledger files that have no room.
            self._room.set()
            stored = sum(self._journals.values())
            self._checkpoint_wanted |= self.space.has_use_for(stored, self._catalog_bytes)
        if self._task is not None and not self._journal.committing:
            self._after_commit()

    async def _write_files(self) -> None:
        """Write the ledger files and finish checkpoints while commits continue."""
        while not self._commits_done:
            await self._files_due.wait()
            self._files_due.clear()
            if self._commits_done and self._hasty:
                return
            try:
                if self._catalog is not None:
                    await self._finish_checkpoint()
                else:
                    await self._behind.flush()
            except DiskFullError as error:
                await self._wait_for_room(error)
            except OSError as error:
                self._journal.fail(error)
                self._room.set()
                return
            self._room.set()

    async def _wait_for_room(self, error: DiskFullError) -> None:
        """Abandon the checkpoint for now.

        The journal keeps everything until there is room for another one.
        """
        self.space.ran_out(error)
        if self._catalog is not None and await self.space.give_up_reserve():
            self.space.look_soon()
        self._catalog = None
        self._checkpointed.set()

    def _begin_checkpoint(self) -> None:
        """Capture the catalog's state between two commits, and start a new journal file."""
        self._checkpoint_wanted = False
        if self._journal.size_bytes:
            self._journal.next_file()
        self._serial += 1
        self._catalog = Catalog(
            self._salt,
            self._serial,
            self._journal.number,
            self._journal.next_commit,
            self._next_log,
            self._shared.next_ledger,
            [log.stored.record() for log in self._logs.values()],
        )

    async def _finish_checkpoint(self) -> None:
        """Sync the ledger files, replace both catalogs, then delete the journal files they make obsolete."""
        catalog = self._catalog
        assert catalog is not None
        await self._behind.flush()
        await self._behind.sync()
        self._catalog_bytes = await self._catalogs.save(catalog)
        old = sorted(number for number in self._journals if number < catalog.journal)
        for number in old:
            del self._journals[number]
        self._catalog = None
        await self._behind.delete([journal_file(number) for number in old])
        self._checkpointed.set()
