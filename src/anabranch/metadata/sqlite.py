"""The one-machine adapter: a SQLite file shared by the processes of one data directory.

One thread owns the connection. It commits everything that waits in one transaction, so that concurrent
writers share an fsync, and answers after the commit. Each change is also a row of a log: other processes
notice a commit by SQLite's data version and read which keys it touched.

A session lives as long as the event loop of its process does: the loop notes the time, the thread writes it
down. A process that stands still while it has SQLite's write lock would stop all others; it is ended.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from anabranch import locks
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    MetadataError,
    NotFoundError,
    VersionConflictError,
)
from anabranch.metadata.port import ABSENT, Change, Stored
from anabranch.metadata.watches import Watches, check_key, check_prefix

T = TypeVar("T")

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE node (path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, session INTEGER)
    WITHOUT ROWID;
CREATE INDEX node_by_session ON node (session) WHERE session IS NOT NULL;
CREATE TABLE sequence (path TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE session (id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, heard_s REAL NOT NULL);
CREATE TABLE change (id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL);
"""
BATCH_MAX = 256
CHANGES_KEPT = 4096
BUSY_TIMEOUT_S = 5.0
BUSY_LOOK_S = 0.1
WRITE_LOCK_AT = 120
"""Which byte of the -shm file a writer locks; part of SQLite's file format."""

BEATS_PER_LEASE = 10
LOOKS_PER_LEASE = 5
STALL = 0.6
"""Part of a lease after which a process that could not look must think that the others were held up, too."""


class _Request(NamedTuple):
    work: Callable[[_Work], Any]
    writes: bool
    answer: asyncio.Future[Any]


class _Answer(NamedTuple):
    future: asyncio.Future[Any]
    result: Any
    error: Exception | None


class _Work:
    """The open transaction as the operations of one batch see it; belongs to the thread."""

    def __init__(self, connection: sqlite3.Connection, owner: _Thread) -> None:
        self.connection = connection
        self.owner = owner
        self.changed: list[str] = []

    def row(self, sql: str, *values: object) -> Any:
        return self.connection.execute(sql, values).fetchone()

    def note(self, path: str) -> None:
        self.connection.execute("INSERT INTO change (path) VALUES (?)", (path,))
        self.changed.append(path)

    def version(self, path: str, expected: int | None) -> int:
        """The version at `path`; a differing `expected` is refused before anything was written."""
        row = self.row("SELECT version FROM node WHERE path = ?", path)
        version: int = ABSENT if row is None else row[0]
        if expected is not None and expected != version:
            raise VersionConflictError(f"{path} has version {version}, not {expected}")
        return version

    def remove_sessions(self, where: str, *values: object) -> None:
        ids = [row[0] for row in self.connection.execute(f"SELECT id FROM session WHERE {where}", values)]
        for number in ids:
            for (path,) in self.connection.execute(
                "SELECT path FROM node WHERE session = ?", (number,)
            ).fetchall():
                self.connection.execute("DELETE FROM node WHERE path = ?", (path,))
                self.note(path)
            self.connection.execute("DELETE FROM session WHERE id = ?", (number,))


class _Thread(threading.Thread):
    """Owns the connection, the session and the clock of its lease."""

    def __init__(
        self,
        path: Path,
        lease_s: float,
        poll_s: float | None,
        alone: bool,
        deliver: Callable[[list[_Answer], list[str], bool], None],
    ) -> None:
        super().__init__(name=f"metadata {path.name}", daemon=True)
        self.requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self.release_session = True
        self.stopped: asyncio.Future[None] | None = None
        self.heard_s = time.monotonic()
        """When the event loop was last seen running."""
        self._path = path
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._alone = alone
        self._deliver = deliver
        self._boot = _boot_id()
        self._session: int | None = None
        self._others = False
        self._look_at_s = 0.0
        self._looked_s = time.monotonic()
        self._judge_from_s = 0.0
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
            connection.close()
        if self.stopped is not None:
            self._deliver([_Answer(self.stopped, None, None)], [], False)

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=BUSY_LOOK_S, isolation_level=None)
        # Several that open a new file at once may find it locked here, and SQLite does not wait for this one.
        self._begin(connection, "PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        self._begin(connection, "BEGIN IMMEDIATE")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found == 0:
            for statement in SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif self._alone and found == SCHEMA_VERSION:
            _end_sessions(connection)
        connection.execute("COMMIT")
        if found not in (0, SCHEMA_VERSION):
            connection.close()
            raise MetadataError(f"{self._path} has format {found}; this version reads {SCHEMA_VERSION}")
        (self._seen_change,) = connection.execute("SELECT coalesce(max(id), 0) FROM change").fetchone()
        (self._seen_version,) = connection.execute("PRAGMA data_version").fetchone()
        return connection

    def _refuse(self, error: Exception) -> None:
        """The file cannot be used: every request gets the reason."""
        while (request := self.requests.get()) is not None:
            reason = MetadataError(f"cannot use {self._path}: {error}")
            reason.__cause__ = error
            self._deliver([_Answer(request.answer, None, reason)], [], False)

    def _turn(self, connection: sqlite3.Connection) -> bool:
        """Wait for work or for the next look around; False when the store is closed."""
        batch, going_on = self._take()
        if batch:
            self._commit(connection, batch)
        if not going_on:
            if self.release_session and self._session is not None:
                self._transact(connection, lambda work: work.remove_sessions("id = ?", self._session))
            return False
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + self._lease_s / LOOKS_PER_LEASE
            if not self._alone and self._transact(connection, self._renew):
                self._looked_s = time.monotonic()
        if self._poll_s is not None:
            self._notice(connection)
        return True

    def _take(self) -> tuple[list[_Request], bool]:
        batch: list[_Request] = []
        timeout_s = self._poll_s
        if not self._alone and (self._session is not None or self._others):
            until_look_s = max(0.0, self._look_at_s - time.monotonic())
            timeout_s = until_look_s if timeout_s is None else min(timeout_s, until_look_s)
        try:
            request = self.requests.get(timeout=timeout_s)
            while request is not None:
                batch.append(request)
                if len(batch) == BATCH_MAX:
                    return batch, True
                request = self.requests.get_nowait()
        except queue.Empty:
            return batch, True
        return batch, False

    def _commit(self, connection: sqlite3.Connection, batch: list[_Request]) -> None:
        answers: list[_Answer] = []
        try:
            self._begin(connection, "BEGIN IMMEDIATE" if any(r.writes for r in batch) else "BEGIN")
            work = _Work(connection, self)
            for request in batch:
                try:
                    answers.append(_Answer(request.answer, request.work(work), None))
                except AnabranchError as error:
                    answers.append(_Answer(request.answer, None, error))
            self._end(connection, work)
        except sqlite3.Error as error:
            _roll_back(connection)
            failed = [_Answer(r.answer, None, MetadataError(f"{self._path}: {error}")) for r in batch]
            self._deliver(failed, [], False)
        else:
            self._deliver(answers, work.changed, False)

    def _transact(self, connection: sqlite3.Connection, work_on: Callable[[_Work], None]) -> bool:
        """Housekeeping; what fails is tried again at the next look, and need not survive a power loss."""
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
            self._begin(connection, "BEGIN IMMEDIATE")
            work = _Work(connection, self)
            work_on(work)
            self._end(connection, work)
        except sqlite3.Error:
            _roll_back(connection)
            return False
        else:
            self._deliver([], work.changed, False)
            return True
        finally:
            connection.execute("PRAGMA synchronous = FULL")

    def _begin(self, connection: sqlite3.Connection, sql: str) -> None:
        """Begin a transaction; who holds the write lock for a lease and neither writes nor waits is ended."""
        began_s = since_s = time.monotonic()
        seen: tuple[int | None, int] = (None, 0)
        while True:
            try:
                connection.execute(sql)
                return
            except sqlite3.OperationalError as error:
                now_s = time.monotonic()
                busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or now_s >= began_s + self._lease_s + BUSY_TIMEOUT_S:
                    raise
            found = (self._writer(), self._written())
            if found != seen:
                seen, since_s = found, now_s
            elif seen[0] is not None and now_s >= since_s + self._lease_s:
                self._end_writer(*seen)

    def _end_writer(self, pid: int | None, written: int) -> None:
        def stands_still() -> bool:
            return (self._writer(), self._written()) == (pid, written) and not locks.waits_for_disk(pid or 0)

        with suppress(OSError, AttributeError):
            locks.kill_holder(pid or 0, stands_still)

    def _writer(self) -> int | None:
        """The process that has the write lock."""
        return locks.kernel_holder(self._path.with_name(f"{self._path.name}-shm"), "POSIX", WRITE_LOCK_AT)

    def _written(self) -> int:
        """Changes when somebody writes."""
        try:
            return self._path.with_name(f"{self._path.name}-wal").stat().st_mtime_ns
        except OSError:
            return 0

    def _end(self, connection: sqlite3.Connection, work: _Work) -> None:
        if work.changed:
            (newest,) = connection.execute("SELECT max(id) FROM change").fetchone()
            if newest % (CHANGES_KEPT // 4) < len(work.changed):
                connection.execute("DELETE FROM change WHERE id <= ?", (newest - CHANGES_KEPT,))
        connection.execute("COMMIT")
        if work.changed and newest == self._seen_change + len(work.changed):
            self._seen_change = newest

    def session(self, work: _Work) -> int:
        """This process's session, started with its first ephemeral value or anew after its lease ran out."""
        if self._session is None or work.row("SELECT 1 FROM session WHERE id = ?", self._session) is None:
            cursor = work.connection.execute(
                "INSERT INTO session (boot, heard_s) VALUES (?, ?)", (self._boot, time.monotonic())
            )
            self._session = cursor.lastrowid
            self._look_at_s = 0.0
        assert self._session is not None
        return self._session

    def _renew(self, work: _Work) -> None:
        """Say that this session lives, and end those that were not heard of for their lease."""
        now_s = time.monotonic()
        if self._session is not None:
            work.connection.execute(
                "UPDATE session SET heard_s = ? WHERE id = ?", (self.heard_s, self._session)
            )
        if now_s > self._looked_s + self._lease_s * STALL:
            # Whatever kept this process from looking may have kept the others from speaking.
            self._judge_from_s = now_s + self._lease_s / 2
        # The monotonic clock is one for all processes until the machine starts again.
        if now_s >= self._judge_from_s:
            work.remove_sessions(
                "id IS NOT ? AND (boot != ? OR heard_s < ?)", self._session, self._boot, now_s - self._lease_s
            )
        self._others = work.row("SELECT 1 FROM session WHERE id IS NOT ?", self._session) is not None

    def _notice(self, connection: sqlite3.Connection) -> None:
        """Pass on what other processes committed since the last look."""
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


class SqliteStore:
    """A metadata store in one SQLite file.

    `poll_s` is how often commits of other processes are looked for (None: there are none). An ephemeral value
    goes away `lease_s` after the event loop of its process was last seen running. A process that knows that
    it is `alone` ends all sessions that it finds, and keeps no lease.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease_s: float = 10.0,
        poll_s: float | None = None,
        alone: bool = False,
    ) -> None:
        self._path = Path(path)
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._alone = alone
        self._beating: asyncio.TimerHandle | None = None
        self._watches = Watches()
        self._thread: _Thread | None = None
        self._closed = False

    async def get(self, path: str) -> Stored | None:
        check_key(path)

        def read(work: _Work) -> Stored | None:
            row = work.row("SELECT value, version FROM node WHERE path = ?", path)
            return None if row is None else Stored(row[0], row[1])

        return await self._run(read, writes=False)

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        check_key(path)

        def write(work: _Work) -> int:
            version = work.version(path, expected) + 1
            session = work.owner.session(work) if ephemeral else None
            work.connection.execute(
                "INSERT OR REPLACE INTO node (path, value, version, session) VALUES (?, ?, ?, ?)",
                (path, bytes(value), version, session),
            )
            work.note(path)
            return version

        if ephemeral and self._beating is None and not self._alone:
            self._start()
            self._beat()
        return await self._run(write)

    async def delete(self, path: str, *, expected: int | None = None) -> None:
        check_key(path)

        def remove(work: _Work) -> None:
            if work.version(path, None) == ABSENT:
                raise NotFoundError(f"{path} does not exist")
            work.version(path, expected)
            work.connection.execute("DELETE FROM node WHERE path = ?", (path,))
            work.note(path)

        await self._run(remove)

    async def children(self, path: str) -> list[str]:
        below = check_prefix(path) + "/"

        def read(work: _Work) -> list[str]:
            names: dict[str, None] = {}
            at, end = below, below[:-1] + "0"  # "0" follows "/"
            while row := work.row("SELECT min(path) FROM node WHERE path >= ? AND path < ?", at, end):
                if row[0] is None:
                    break
                name, slash, _ = row[0][len(below) :].partition("/")
                names[name] = None
                # Step over all descendants of a child at once: a namespace may hold many records each.
                at = f"{below}{name}0" if slash else row[0] + "\x00"
            return sorted(names)

        return await self._run(read, writes=False)

    async def increment(self, path: str) -> int:
        check_key(path)

        def write(work: _Work) -> int:
            row = work.row(
                "INSERT INTO sequence (path, next) VALUES (?, 1) "
                "ON CONFLICT (path) DO UPDATE SET next = next + 1 RETURNING next",
                path,
            )
            return int(row[0]) - 1

        return await self._run(write)

    def watch(self, prefix: str, changed: Callable[[Change], None]) -> Callable[[], None]:
        self._start()
        return self._watches.add(prefix, changed)

    async def close(self) -> None:
        await self._stop(release_session=True)

    async def abandon(self) -> None:
        """Stop as a killed process would: the session is left to run out."""
        await self._stop(release_session=False)

    async def _run(self, work: Callable[[_Work], T], *, writes: bool = True) -> T:
        thread = self._start()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        thread.requests.put(_Request(work, writes, answer))
        return await answer

    def _start(self) -> _Thread:
        if self._closed:
            raise AlreadyClosedError("the metadata store is closed")
        if self._thread is None:
            loop = asyncio.get_running_loop()

            def deliver(answers: list[_Answer], changed: list[str], gap: bool) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._deliver, answers, changed, gap)

            self._thread = _Thread(self._path, self._lease_s, self._poll_s, self._alone, deliver)
            self._thread.start()
        return self._thread

    def _beat(self) -> None:
        """Show that the event loop runs, now and from now on."""
        if self._thread is not None:
            self._thread.heard_s = time.monotonic()
            delay_s = self._lease_s / BEATS_PER_LEASE
            self._beating = asyncio.get_running_loop().call_later(delay_s, self._beat)

    def _deliver(self, answers: list[_Answer], changed: list[str], gap: bool) -> None:
        for future, result, error in answers:
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if gap:
            self._watches.announce_gap()
        self._watches.announce(changed)

    async def _stop(self, *, release_session: bool) -> None:
        self._closed = True
        self._watches.clear()
        if self._beating is not None:
            self._beating.cancel()
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.release_session = release_session
            thread.stopped = asyncio.get_running_loop().create_future()
            thread.requests.put(None)
            await thread.stopped
            thread.join()


def end_sessions(path: str | os.PathLike[str]) -> None:
    """End every session; only for who knows that no process uses the file."""
    if not Path(path).exists():
        return
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,):
            _end_sessions(connection)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise MetadataError(f"cannot use {path}: {error}") from error
    finally:
        connection.close()


def _end_sessions(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM node WHERE session IS NOT NULL")
    connection.execute("DELETE FROM session")


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
