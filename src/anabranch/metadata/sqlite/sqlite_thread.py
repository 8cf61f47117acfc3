"""The thread that owns the connection to a SQLite file, and with it the session and its lease.

The thread commits all waiting requests in one transaction, so that concurrent writers share an fsync, and
answers after the commit. Each change is also a row of a log: other processes detect a commit by SQLite's data
version and read the changed keys. A process that holds SQLite's write lock without progress would stop all
others, so it is killed. The thread must not know what the requests do, and reaches the event loop only
through `deliver`.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from anabranch.errors import AnabranchError, MetadataError
from anabranch.metadata.sqlite.log_renewal import LogRenewer
from anabranch.metadata.sqlite.metadata_reserve import MetadataReserve
from anabranch.metadata.sqlite.record_log import RecordLog
from anabranch.metadata.sqlite.sqlite_file import BUSY_RETRY_S, SCHEMA_VERSION, WriteLock, delete_sessions
from anabranch.metadata.sqlite.sqlite_store import sqlite_check, sqlite_file
from anabranch.metadata.sqlite.sqlite_work import Work

BATCH_MAX = 256
BATCH_BYTES_MAX = 4 * 1024 * 1024
CHANGES_KEPT = 4096

CHECKS_PER_LEASE = 5
STALL = 0.6
"""After a stall of this part of a lease, assume that the whole machine stalled; expire no lease yet."""


class SqliteOptions(NamedTuple):
    """The lease of a session, and whether other processes use the file."""

    lease_s: float
    poll_s: float | None
    """Interval of looking for commits of other processes; None without other processes."""
    alone: bool


class Request(NamedTuple):
    work: Callable[[Work], Any]
    writes: bool
    answer: asyncio.Future[Any] | None
    size_bytes: int = 0


class Answer(NamedTuple):
    future: asyncio.Future[Any] | None
    result: Any
    error: Exception | None


class ConnectionThread(threading.Thread):
    """Owns the connection, the session and the clock of its lease."""

    def __init__(
        self,
        path: Path,
        lock: WriteLock,
        options: SqliteOptions,
        deliver: Callable[[list[Answer], list[str], bool], None],
    ) -> None:
        super().__init__(name=f"metadata {path.name}", daemon=True)
        self.requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.release_session = True
        self.stopped: asyncio.Future[None] | None = None
        self.heard_s = time.monotonic()
        """Time at which the event loop last ran."""
        self._path = path
        self._lock = lock
        self._lease_s = options.lease_s
        self._poll_s = options.poll_s
        self._alone = options.alone
        self._deliver = deliver
        self.records = RecordLog.beside(path)
        self._reserve = MetadataReserve(path)
        self._renewer = LogRenewer(
            path, self.records, lambda work: self.requests.put(Request(work, True, None))
        )
        self._boot = sqlite_file.boot_id()
        self._session: int | None = None
        self._others = False
        self._check_at_s = 0.0
        self._checked_s = time.monotonic()
        self._expire_from_s = 0.0
        self._seen_change = 0
        self._seen_version = 0

    def run(self) -> None:
        try:
            connection = self._open()
        except (sqlite3.Error, OSError, MetadataError) as error:
            self._refuse(error)
        else:
            while self._turn(connection):
                pass
            self._renewer.stop()
            connection.close()
            self.records.close()
        if self.stopped is not None:
            self._deliver([Answer(self.stopped, None, None)], [], False)

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=BUSY_RETRY_S, isolation_level=None)
        # Processes that open a new file at once may find it locked, and SQLite does not wait for this lock.
        self._lock.begin(connection, "PRAGMA journal_mode = WAL")
        # The record log is synced before each commit, and commits that SQLite lost are replayed from it.
        connection.execute("PRAGMA synchronous = NORMAL")
        self._lock.begin(connection, "BEGIN IMMEDIATE")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found == 0:
            sqlite_check.begin(connection, self.records)
        elif self._alone and found == SCHEMA_VERSION:
            delete_sessions(connection)
        connection.execute("COMMIT")
        if found not in (0, SCHEMA_VERSION):
            connection.close()
            raise MetadataError(f"{self._path} has format {found}; this version reads {SCHEMA_VERSION}")
        (self._seen_change,) = connection.execute("SELECT coalesce(max(id), 0) FROM change").fetchone()
        (self._seen_version,) = connection.execute("PRAGMA data_version").fetchone()
        return connection

    def _refuse(self, error: Exception) -> None:
        """Answer every request with the error for which the file cannot be used."""
        while (request := self.requests.get()) is not None:
            kind = type(error) if isinstance(error, MetadataError) else MetadataError
            reason = kind(f"cannot use {self._path}: {error}{sqlite_file.remedy(error)}")
            reason.__cause__ = error
            self._deliver([Answer(request.answer, None, reason)], [], False)

    def _turn(self, connection: sqlite3.Connection) -> bool:
        """Handle the requests until the next check of leases and changes; False when the store is closed."""
        batch, going_on = self._take()
        if batch:
            self._commit(connection, batch)
        if not going_on:
            if self.release_session and self._session is not None:
                self._transact(connection, lambda work: work.remove_sessions("id = ?", self._session))
            return False
        now_s = time.monotonic()
        if now_s >= self._check_at_s:
            self._check_at_s = now_s + self._lease_s / CHECKS_PER_LEASE
            if not self._alone and self._transact(connection, self._renew):
                self._checked_s = time.monotonic()
        if self._poll_s is not None:
            self._notice(connection)
        return True

    def _take(self) -> tuple[list[Request], bool]:
        batch: list[Request] = []
        size_bytes = 0
        timeout_s = self._poll_s
        if not self._alone and (self._session is not None or self._others):
            until_check_s = max(0.0, self._check_at_s - time.monotonic())
            timeout_s = until_check_s if timeout_s is None else min(timeout_s, until_check_s)
        try:
            request = self.requests.get(timeout=timeout_s)
            while request is not None:
                batch.append(request)
                size_bytes += request.size_bytes
                if len(batch) == BATCH_MAX or size_bytes >= BATCH_BYTES_MAX:
                    return batch, True
                request = self.requests.get_nowait()
        except queue.Empty:
            return batch, True
        return batch, False

    def _commit(self, connection: sqlite3.Connection, batch: list[Request]) -> None:
        work = Work(connection, self)
        writes = any(request.writes for request in batch)
        try:
            try:
                answers = self._carry_out(work, batch, writes)
            except (sqlite3.Error, OSError) as error:
                if not self._reserve.make_room(connection, error):
                    raise
                work = Work(connection, self)
                answers = self._carry_out(work, batch, writes)
        except (sqlite3.Error, OSError, MetadataError) as error:
            reason = f"{self._path}: {error}{sqlite_file.remedy(error)}"
            failed = [Answer(request.answer, None, MetadataError(reason)) for request in batch]
            self._deliver(failed, [], False)
        else:
            self._deliver(answers, work.changed, False)
            if writes:
                self._renewer.tend(work.mark)
                self._reserve.hold()

    def _carry_out(self, work: Work, batch: list[Request], writes: bool) -> list[Answer]:
        """Commit the requests in one transaction, or roll it back and raise."""
        answers: list[Answer] = []
        try:
            self._lock.begin(work.connection, "BEGIN IMMEDIATE" if writes else "BEGIN")
            if writes:
                work.catch_up(self.records)
            for request in batch:
                try:
                    answers.append(Answer(request.answer, request.work(work), None))
                except AnabranchError as error:
                    answers.append(Answer(request.answer, None, error))
            self._end(work.connection, work)
        except (sqlite3.Error, OSError, MetadataError):
            work.undo_log(self.records)
            # A file of the log that this transaction began is not in use, and another process may replace it.
            self.records.close()
            _roll_back(work.connection)
            raise
        return answers

    def _transact(self, connection: sqlite3.Connection, work_on: Callable[[Work], None]) -> bool:
        """Run housekeeping, which changes no record of the log; a failure is retried at the next check."""
        try:
            self._lock.begin(connection, "BEGIN IMMEDIATE")
            work = Work(connection, self)
            work_on(work)
            self._end(connection, work)
        except sqlite3.Error as error:
            _roll_back(connection)
            self._reserve.make_room(connection, error)
            return False
        else:
            self._deliver([], work.changed, False)
            return True

    def _end(self, connection: sqlite3.Connection, work: Work) -> None:
        if work.changed:
            (newest,) = connection.execute("SELECT max(id) FROM change").fetchone()
            if newest % (CHANGES_KEPT // 4) < len(work.changed):
                connection.execute("DELETE FROM change WHERE id <= ?", (newest - CHANGES_KEPT,))
        work.log_changes(self.records)
        connection.execute("COMMIT")
        if work.session is not None:
            # The number of a session that is rolled back is given to another process.
            self._session, self._check_at_s = work.session, 0.0
        if work.changed and newest == self._seen_change + len(work.changed):
            self._seen_change = newest

    def session(self, work: Work) -> int:
        """The session of this process; a new one for its first ephemeral value or after its lease ran out."""
        known = self._session if work.session is None else work.session
        if known is None or work.row("SELECT 1 FROM session WHERE id = ?", known) is None:
            cursor = work.connection.execute(
                "INSERT INTO session (boot, heard_s) VALUES (?, ?)", (self._boot, time.monotonic())
            )
            known = work.session = cursor.lastrowid
        assert known is not None
        return known

    def _renew(self, work: Work) -> None:
        """Renew the lease of this session, and end sessions whose lease ran out."""
        now_s = time.monotonic()
        if self._session is not None:
            work.connection.execute(
                "UPDATE session SET heard_s = ? WHERE id = ?", (self.heard_s, self._session)
            )
        if now_s > self._checked_s + self._lease_s * STALL:
            # The stall of this process may have kept other processes from renewing their leases too.
            self._expire_from_s = now_s + self._lease_s / 2
        # All processes share the monotonic clock until the machine reboots.
        if now_s >= self._expire_from_s:
            work.remove_sessions(
                "id IS NOT ? AND (boot != ? OR heard_s < ?)", self._session, self._boot, now_s - self._lease_s
            )
        self._others = work.row("SELECT 1 FROM session WHERE id IS NOT ?", self._session) is not None

    def _notice(self, connection: sqlite3.Connection) -> None:
        """Deliver the changes that other processes committed since the last check."""
        try:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            if version == self._seen_version:
                return
            (oldest,) = connection.execute("SELECT coalesce(min(id), 0) FROM change").fetchone()
            rows = connection.execute(
                "SELECT id, path FROM change WHERE id > ? ORDER BY id", (self._seen_change,)
            ).fetchall()
        except sqlite3.Error:
            return
        self._seen_version = version
        if rows:
            gap = oldest > self._seen_change + 1
            self._seen_change = rows[-1][0]
            self._deliver([], [path for _, path in rows], gap)


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
