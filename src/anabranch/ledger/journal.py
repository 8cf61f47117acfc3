"""Group commit: what all logs and cursors queued since the last commit becomes durable by one sync.

While one commit is on its way to the disk the next one fills up; an idle journal starts at once, with all
that the event loop brings in the same turn. Callbacks run on the loop after the sync, per log in append
order. After a failed write or sync nothing of this journal can be trusted: everything queued fails, and so
does all that comes later. Knows nothing of names, reading, or when a journal file is no longer needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.errors import AlreadyClosedError, PersistenceError
from anabranch.ledger.cursors import DurableCursor
from anabranch.ledger.disk import Disk
from anabranch.ledger.format.records import (
    Change,
    Contents,
    CursorChanged,
    CursorCreated,
    CursorDeleted,
    encode_commit,
    seed,
)
from anabranch.ledger.ledgers import Batch, Closed

FOLDER = "journal"

_STEPS_DELAY_S = 0.01
"""How long acknowledgements wait for an append to share its sync, as nobody waits for them."""


def journal_file(number: int) -> str:
    return f"{FOLDER}/{number:08d}.log"


class _Queue:
    """What the next commit will hold."""

    __slots__ = ("applied", "batches", "changes", "cursors", "waiters")

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.changes: list[Change] = []
        self.applied: list[Callable[[], None]] = []
        self.cursors: list[DurableCursor] = []
        self.waiters: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        return bool(self.batches or self.changes or self.cursors or self.waiters)


class Journal:
    """One per process; `number` names the file that the next commit goes to."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._salt = 0
        self._owner = 0
        self._queue = _Queue()
        self._flying: _Queue | None = None
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self.number = 0
        self.next_commit = 0
        self.size_bytes = 0
        """Length of the current file."""
        self.failure: PersistenceError | None = None
        self.failed: Callable[[PersistenceError], None] = lambda error: None
        """Told once, when nothing can be made durable any more."""

    @property
    def committing(self) -> bool:
        """Whether a commit is on its way to the disk."""
        return self._flying is not None

    def start_at(self, salt: int, number: int, next_commit: int) -> None:
        """Write to journal file `number`, which must not exist yet."""
        self._salt = salt
        self.next_commit = next_commit
        self._begin_file(number)

    def next_file(self) -> None:
        """Let the next commit begin a new file; only between two commits."""
        self._begin_file(self.number + 1)

    def add_batch(self, batch: Batch) -> None:
        """Queue a batch; it may be filled until the next commit takes it."""
        self._queue.batches.append(batch)
        self._wake.set()

    def add_change(self, change: Change, applied: Callable[[], None] | None = None) -> None:
        """Queue a change; `applied` is called once it is durable."""
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
        # Whatever wakes the journal first takes the steps along.
        if self._timer is None and not self._wake.is_set():
            self._timer = asyncio.get_running_loop().call_later(_STEPS_DELAY_S, self._wake.set)

    async def flush(self) -> None:
        """Return when everything queued before the call is durable; PersistenceError when it will not be."""
        self.check()
        queue = self._queue if self._queue else self._flying
        if queue is None:
            return
        waiter = asyncio.get_running_loop().create_future()
        queue.waiters.append(waiter)
        self._wake.set()
        await waiter

    def check(self) -> None:
        """Raise when nothing can be made durable any more."""
        if self.failure is not None:
            raise PersistenceError(str(self.failure)) from self.failure
        if self._stopping:
            raise AlreadyClosedError("the storage is closed")

    def stop(self) -> None:
        """Let `run` return once what is queued is durable; refuse the rest."""
        self._stopping = True
        self._wake.set()

    def fail(self, cause: BaseException) -> None:
        """End all trust: fail what is queued and what comes."""
        if self.failure is not None:
            return
        self.failure = PersistenceError(f"journal {journal_file(self.number)} failed: {cause}")
        self.failure.__cause__ = cause
        queue, self._queue = self._queue, _Queue()
        self._reject(queue)
        self._wake.set()
        self.failed(self.failure)

    async def run(self, after_commit: Callable[[], None], room: asyncio.Event) -> None:
        """Commit until stopped or failed.

        `after_commit` is called between two commits; while `room` is clear no commit begins, because what
        was committed before must be dealt with first.
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
        flying, self._queue = self._queue, _Queue()
        self._flying = flying
        self._clear_timer()
        if not self._stopping:
            self._wake.clear()
        try:
            for batch in flying.batches:
                batch.owner.batch_taken()
            for cursor in flying.cursors:
                if steps := cursor.take_steps():
                    flying.changes.append(CursorChanged(cursor.log, cursor.name, steps))
            closed = [batch.close() for batch in flying.batches]
            if closed or flying.changes:
                await self._write(flying, closed)
        except (Exception, asyncio.CancelledError) as error:
            self.fail(error)
            self._reject(flying)
            if isinstance(error, OSError):
                return
            raise
        self._flying = None
        self._apply(flying, closed)

    async def _write(self, flying: _Queue, closed: list[Closed]) -> None:
        payload: list[bytes] = []
        for _, rows, records in closed:
            payload.append(rows)
            payload += records
        contents = Contents(flying.changes, [batch.group for batch in closed])
        buffers = encode_commit(self._owner, self.next_commit, self.size_bytes, contents, payload)
        await self._disk.append([(journal_file(self.number), buffers)], sync=True)
        self.next_commit += 1
        self.size_bytes += sum(map(len, buffers))

    def _apply(self, flying: _Queue, closed: list[Closed]) -> None:
        moved: dict[int, Batch] = {}
        for batch, stored in zip(flying.batches, closed, strict=True):
            batch.owner.committed(batch, stored)
            moved[batch.log] = batch
        for applied in flying.applied:
            applied()
        for batch in moved.values():
            batch.owner.notify()
        for waiter in flying.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _reject(self, queue: _Queue) -> None:
        assert self.failure is not None
        for batch in queue.batches:
            batch.owner.rejected(batch, self.failure)
        for waiter in queue.waiters:
            if not waiter.done():
                waiter.set_exception(PersistenceError(str(self.failure)))

    def _begin_file(self, number: int) -> None:
        self.number = number
        self.size_bytes = 0
        self._owner = seed(self._salt, number)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
