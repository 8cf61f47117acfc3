"""Group commit: one sync makes durable everything that logs and cursors queued since the last commit.

While one commit is written, the next one fills up. An idle journal commits at once, together with everything
queued in the same turn of the event loop. Callbacks run on the loop after the sync, in append order within
each log. On a full disk the journal rejects entries, and writes all other changes with the store's reserve.
After any other failed write or sync the journal rejects everything queued and every later change. This module
does not know names or reading, nor when a journal file may be deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from anabranch.errors import AlreadyClosedError, PersistenceError
from anabranch.ledger.cursors import DurableCursor
from anabranch.ledger.disks.disk import Disk, DiskFullError
from anabranch.ledger.disks.slow_sync import SyncWatch
from anabranch.ledger.disks.space import StoreSpace
from anabranch.ledger.format.commits import (
    Change,
    Contents,
    CursorCreated,
    CursorDeleted,
    encode_commit,
)
from anabranch.ledger.format.records import seed
from anabranch.ledger.journal.commit_queue import CommitQueue
from anabranch.ledger.journal.journal_reading import journal_file
from anabranch.ledger.ledgers import Batch, Closed
from anabranch.timings import Timings

_NO_ROOM_S = 0.5
"""The pause between two attempts to write changes when the reserve is used up."""

_STEPS_DELAY_S = 0.01
"""How long acknowledgements wait in order to share the sync of an append."""


class Journal:
    """The journal of one store. `number` names the file that receives the next commit."""

    def __init__(self, disk: Disk, space: StoreSpace, timings: Timings | None = None) -> None:
        self._disk = disk
        self.space = space
        self._timings = timings or Timings()
        self.syncs = SyncWatch()
        self._salt = 0
        self._owner = 0
        self._queue = CommitQueue()
        self._committing: CommitQueue | None = None
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._appended_s = float("-inf")
        """The time at which the last commit with entries was applied."""
        self._stopping = False
        self.number = 0
        self.next_commit = 0
        self.size_bytes = 0
        """The length of the current file."""
        self.failure: PersistenceError | None = None
        self.failed: Callable[[PersistenceError], None] = lambda error: None
        """Called once, with the error that makes the journal refuse every change."""
        self.prepare: Callable[[], Awaitable[None] | None] = lambda: None
        """Called before each commit, once the file of that commit exists. An awaitable that it returns is
        awaited, and may raise OSError."""

    @property
    def committing(self) -> bool:
        """Whether a commit is being written."""
        return self._committing is not None

    def start_at(self, salt: int, number: int, next_commit: int) -> None:
        """Start with journal file `number`, which must be empty or missing."""
        self._salt = salt
        self.next_commit = next_commit
        self._begin_file(number)

    def next_file(self) -> None:
        """Write the next commit to a new file. May only be called between two commits."""
        self._begin_file(self.number + 1)

    def add_batch(self, batch: Batch) -> None:
        """Queue a batch. The log may add entries until the next commit takes it."""
        queue = self._queue
        if not queue.batches:
            queue.began_s = asyncio.get_running_loop().time()
        queue.batches.append(batch)
        self._wake.set()

    def add_change(self, change: Change, applied: Callable[[], None] | None = None) -> None:
        """Queue a change, and call `applied` once it is durable."""
        self.check()
        self._queue.changes.append(change)
        if applied is not None:
            self._queue.applied.append(applied)
        self._wake.set()

    def cursor_created(self, log: int, name: str, ordinal: int, properties: dict[str, str]) -> None:
        self.add_change(CursorCreated(log, name, ordinal, properties))

    def cursor_deleted(self, log: int, name: str) -> None:
        self.add_change(CursorDeleted(log, name))

    def steps_waiting(self, cursor: DurableCursor) -> None:
        if self.failure is not None:
            return
        self._queue.cursors.append(cursor)
        # A commit that starts before the timer fires includes these steps too.
        if self._timer is None and not self._wake.is_set():
            self._timer = asyncio.get_running_loop().call_later(_STEPS_DELAY_S, self._wake.set)

    async def flush(self, *, patient: bool = False) -> None:
        """Return once everything queued before the call is durable; PersistenceError if the commit fails.

        Entries that find no room on the disk are rejected through their callbacks, not by this call. While
        appends follow each other closely, a patient call waits for the sync of the next append, because a
        sync of its own would delay that append.
        """
        self.check()
        queue = self._queue if self._queue else self._committing
        if queue is None:
            return
        waiter = asyncio.get_running_loop().create_future()
        queue.waiters.append(waiter)
        if not (patient and self._append_is_near()):
            self._wake.set()
        await waiter

    def _append_is_near(self) -> bool:
        """Return whether an append will probably arrive before the timer of waiting steps fires."""
        since_s = asyncio.get_running_loop().time() - self._appended_s
        return self._timer is not None and since_s < _STEPS_DELAY_S

    def check(self) -> None:
        """Raise if the journal has failed or is closed."""
        if self.failure is not None:
            raise PersistenceError(str(self.failure)) from self.failure
        if self._stopping:
            raise AlreadyClosedError("the storage is closed")

    def stop(self) -> None:
        """Refuse further changes, and let `run` return once all queued changes are durable."""
        self._stopping = True
        self._wake.set()

    def fail(self, cause: BaseException) -> None:
        """Reject everything queued and every later change."""
        if self.failure is not None:
            return
        self.failure = PersistenceError(f"journal {journal_file(self.number)} failed: {cause}")
        self.failure.__cause__ = cause
        queue, self._queue = self._queue, CommitQueue()
        queue.reject_batches(self.failure)
        queue.reject_waiters(self.failure)
        self._wake.set()
        self.failed(self.failure)

    async def run(self, after_commit: Callable[[], None], room: asyncio.Event) -> None:
        """Commit until stopped or failed, but only while `room` is set.

        `after_commit` runs between commits.
        """
        try:
            while self.failure is None:
                await self._wake.wait()
                await room.wait()
                if self._stopping and not self._queue:
                    return
                await self._commit()
                if self.failure is None:
                    after_commit()
        except (Exception, asyncio.CancelledError) as error:
            self.fail(error)
            raise
        finally:
            self._clear_timer()

    async def _commit(self) -> None:
        # One journal serves all logs of a store, so a commit for 64 busy segments costs one sync instead of
        # 64; the price is that bytes are written twice, here and in the ledger files (docs/decisions.md). The
        # queue is swapped before the write: everything that arrives during the sync belongs to the next
        # commit, so the slower the disk, the larger the batch. There is never more than one commit in flight,
        # because recovery may drop a torn tail only if nothing durable can follow it. Of the 0.51 ms of a
        # single send, 0.16 ms were this sync (docs/benchmarks.md).
        current, self._queue = self._queue, CommitQueue()
        self._committing = current
        self._clear_timer()
        if not self._stopping:
            self._wake.clear()
        try:
            closed = current.close()
            if closed or current.changes:
                # The event loop creates the entries while the disk thread writes the commit.
                asyncio.get_running_loop().call_soon(current.make_entries)
                try:
                    await self._write(current, closed)
                except DiskFullError as error:
                    closed = []
                    await self._write_changes(current, error)
        except (Exception, asyncio.CancelledError) as error:
            self.fail(error)
            assert self.failure is not None
            current.reject_batches(self.failure)
            current.reject_waiters(self.failure)
            if isinstance(error, OSError):
                return
            raise
        self._committing = None
        self._apply(current, closed)

    async def _write(self, current: CommitQueue, closed: list[Closed]) -> None:
        payload: list[bytes] = []
        for _, rows, records in closed:
            payload.append(rows)
            payload += records
        if not self.size_bytes:
            # An empty first commit distinguishes a file that was lost or emptied from one that was never
            # begun.
            await self._append(Contents([], []), [])
        if (preparing := self.prepare()) is not None:
            await preparing
        await self._append(Contents(current.changes, [batch.group for batch in closed]), payload)

    async def _append(self, contents: Contents, payload: list[bytes]) -> None:
        buffers = encode_commit(self._owner, self.next_commit, self.size_bytes, contents, payload)
        loop = asyncio.get_running_loop()
        self.syncs.began(loop.time())
        try:
            await self._disk.append([(journal_file(self.number), buffers)], sync=True)
        finally:
            taken_s = self.syncs.ended(loop.time())
        self._timings.sync.observe(taken_s)
        self.next_commit += 1
        written = sum(map(len, buffers))
        self.size_bytes += written
        self.space.used(written)

    async def _write_changes(self, current: CommitQueue, error: DiskFullError) -> None:
        """Reject the entries of a commit that found no room, and write its changes with the reserve.

        If the reserve is used up, the changes wait for room, because cursors and logs have already applied
        them. The callers that wait for these changes get the error.
        """
        full = self.space.ran_out(error)
        for queue in (current, self._queue):
            queue.reject_batches(full)
        while current.changes:
            try:
                await self._write(current, [])
            except DiskFullError:
                if await self.space.give_up_reserve():
                    continue
                if self._stopping:
                    raise
                for queue in (current, self._queue):
                    queue.reject_waiters(full)
                await asyncio.sleep(_NO_ROOM_S)
            else:
                return

    def _apply(self, current: CommitQueue, closed: list[Closed]) -> None:
        current.apply(closed)
        if closed:
            self._appended_s = now_s = asyncio.get_running_loop().time()
            entries = sum(stored.group.entries for stored in closed)
            self._timings.publish.observe(now_s - current.began_s, entries)

    def _begin_file(self, number: int) -> None:
        self.number = number
        self.size_bytes = 0
        self._owner = seed(self._salt, number)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
