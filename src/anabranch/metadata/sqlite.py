"""The one-machine adapter: a SQLite file shared by the processes of one data directory.

This module has the verbs of the port as SQL; `sqlite_thread` runs them in transactions. A session lives as
long as the event loop of its process runs: the loop notes the time, and the thread stores it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from anabranch.errors import AlreadyClosedError, MetadataError, NotFoundError
from anabranch.metadata.sqlite_file import BUSY_TIMEOUT_S, SCHEMA_VERSION, WriteLock, delete_sessions
from anabranch.metadata.sqlite_thread import Answer, ConnectionThread, Request, SqliteOptions, Work
from anabranch.metadata.store import ABSENT, Stored, Watches, check_key, check_prefix

T = TypeVar("T")

BEATS_PER_LEASE = 10


class SqliteStore:
    """A metadata store in one SQLite file.

    `poll_s` is the interval of looking for commits of other processes; None without other processes. An
    ephemeral value is removed `lease_s` after the event loop of its process last ran. A process that is
    `alone` ends all sessions that it finds, and has no lease. `may_end` decides whether a process with this
    id may be killed when it holds the write lock and makes no progress.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease_s: float = 10.0,
        poll_s: float | None = None,
        alone: bool = False,
        may_end: Callable[[int], bool] = lambda pid: True,
    ) -> None:
        self._path = Path(path)
        self._lock = WriteLock(self._path, lease_s, may_end)
        self._options = SqliteOptions(lease_s, poll_s, alone)
        self._beating: asyncio.TimerHandle | None = None
        self._watches = Watches()
        self._thread: ConnectionThread | None = None
        self._closed = False

    async def get(self, path: str) -> Stored | None:
        check_key(path)

        def read(work: Work) -> Stored | None:
            row = work.row("SELECT value, version FROM node WHERE path = ?", path)
            return None if row is None else Stored(row[0], row[1])

        return await self._run(read, writes=False)

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        check_key(path)

        def write(work: Work) -> int:
            version = work.version(path, expected) + 1
            session = work.owner.session(work) if ephemeral else None
            work.connection.execute(
                "INSERT OR REPLACE INTO node (path, value, version, session) VALUES (?, ?, ?, ?)",
                (path, bytes(value), version, session),
            )
            work.note(path)
            return version

        if ephemeral and self._beating is None and not self._options.alone:
            self._start()
            self._beat()
        return await self._run(write)

    async def delete(self, path: str, *, expected: int | None = None) -> None:
        check_key(path)

        def remove(work: Work) -> None:
            if work.version(path, None) == ABSENT:
                raise NotFoundError(f"{path} does not exist")
            work.version(path, expected)
            work.connection.execute("DELETE FROM node WHERE path = ?", (path,))
            work.note(path)

        await self._run(remove)

    async def children(self, path: str) -> list[str]:
        below = check_prefix(path) + "/"

        def read(work: Work) -> list[str]:
            names: dict[str, None] = {}
            at, end = below, below[:-1] + "0"  # "0" follows "/"
            while row := work.row("SELECT min(path) FROM node WHERE path >= ? AND path < ?", at, end):
                if row[0] is None:
                    break
                name, slash, _ = row[0][len(below) :].partition("/")
                names[name] = None
                # Skip all descendants of a child at once, because a namespace may have many records.
                at = f"{below}{name}0" if slash else row[0] + "\x00"
            return sorted(names)

        return await self._run(read, writes=False)

    async def increment(self, path: str) -> int:
        check_key(path)

        def write(work: Work) -> int:
            row = work.row(
                "INSERT INTO sequence (path, next) VALUES (?, 1) "
                "ON CONFLICT (path) DO UPDATE SET next = next + 1 RETURNING next",
                path,
            )
            return int(row[0]) - 1

        return await self._run(write)

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        self._start()
        return self._watches.add(prefix, changed)

    async def close(self) -> None:
        await self._stop(release_session=True)

    async def abandon(self) -> None:
        """Stop like a killed process: the session stays until its lease runs out."""
        await self._stop(release_session=False)

    async def _run(self, work: Callable[[Work], T], *, writes: bool = True) -> T:
        thread = self._start()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        thread.requests.put(Request(work, writes, answer))
        return await answer

    def _start(self) -> ConnectionThread:
        if self._closed:
            raise AlreadyClosedError("the metadata store is closed")
        if self._thread is None:
            loop = asyncio.get_running_loop()

            def deliver(answers: list[Answer], changed: list[str], gap: bool) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._deliver, answers, changed, gap)

            self._thread = ConnectionThread(self._path, self._lock, self._options, deliver)
            self._thread.start()
        return self._thread

    def _beat(self) -> None:
        """Note the time at which the event loop ran, now and in regular intervals."""
        if self._thread is not None:
            self._thread.heard_s = time.monotonic()
            delay_s = self._options.lease_s / BEATS_PER_LEASE
            self._beating = asyncio.get_running_loop().call_later(delay_s, self._beat)

    def _deliver(self, answers: list[Answer], changed: list[str], gap: bool) -> None:
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
    """End every session; the caller must know that no process uses the file."""
    if not Path(path).exists():
        return
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,):
            delete_sessions(connection)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise MetadataError(f"cannot use {path}: {error}") from error
    finally:
        connection.close()
