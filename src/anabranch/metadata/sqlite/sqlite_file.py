"""The SQLite file: its tables, and its write lock, which no process may hold without progress."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from anabranch import locks
from anabranch.metadata.sqlite.record_log import RecordLog

BUSY_TIMEOUT_S = 5.0
BUSY_RETRY_S = 0.1
WRITE_LOCK_AT = 120
"""The byte of the -shm file that a writer locks; part of SQLite's file format."""
SCHEMA_VERSION = 2
SCHEMA = """
CREATE TABLE node (path TEXT PRIMARY KEY, version INTEGER NOT NULL, session INTEGER, written INTEGER NOT NULL,
    checksum INTEGER NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX node_by_session ON node (session) WHERE session IS NOT NULL;
CREATE TABLE sequence (path TEXT PRIMARY KEY, next INTEGER NOT NULL, written INTEGER NOT NULL,
    checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE session (id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, heard_s REAL NOT NULL);
CREATE TABLE change (id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL);
CREATE TABLE mark (id INTEGER PRIMARY KEY, commits INTEGER NOT NULL, file INTEGER NOT NULL,
    ends INTEGER NOT NULL, checksum INTEGER NOT NULL);
"""
"""`written` is the commit that wrote a row last; `mark` counts commits and says where the record log ends."""


class WriteLock:
    """The write lock of one SQLite file, shared by the processes that have the file open."""

    def __init__(self, path: Path, lease_s: float, may_end: Callable[[int], bool]) -> None:
        self._path = path
        self._lease_s = lease_s
        self._may_end = may_end

    def begin(self, connection: sqlite3.Connection, sql: str) -> None:
        """Begin a transaction; kill a process that holds the write lock for a lease without progress."""
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
        def makes_no_progress() -> bool:
            return (self._writer(), self._written()) == (pid, written) and not locks.waits_for_disk(pid or 0)

        with suppress(OSError, AttributeError):
            locks.kill_holder(pid or 0, lambda: self._may_end(pid or 0) and makes_no_progress())

    def _writer(self) -> int | None:
        """The process that holds the write lock."""
        return locks.kernel_holder(self._path.with_name(f"{self._path.name}-shm"), "POSIX", WRITE_LOCK_AT)

    def _written(self) -> int:
        """A value that changes with every write of any process, also with writes to the record log."""
        newest = 0
        for file in (self._path.with_name(f"{self._path.name}-wal"), *RecordLog.beside(self._path).files()):
            with suppress(OSError):
                newest = max(newest, file.stat().st_mtime_ns)
        return newest


def delete_sessions(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM node WHERE session IS NOT NULL")
    connection.execute("DELETE FROM session")


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def remedy(error: Exception) -> str:
    """The words to add to an error of a damaged file; none for other errors."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return "; stop all brokers and start them again, which rebuilds the file from the record log"
    return ""
