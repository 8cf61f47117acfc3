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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from anabranch.errors import AlreadyClosedError, DamagedRecordError, MetadataError
from anabranch.metadata.sqlite.sqlite_file import BUSY_TIMEOUT_S, WriteLock
from anabranch.metadata.sqlite.sqlite_rows import RecordRow, read_row
from anabranch.metadata.sqlite.sqlite_thread import Answer, ConnectionThread, Request, SqliteOptions
from anabranch.metadata.sqlite.sqlite_work import Work
from anabranch.metadata.store import Stored, Watches, check_key, check_prefix

T = TypeVar("T")

BEATS_PER_LEASE = 10
PATHS_AT_ONCE = 256
LARGE_BYTES = 64 * 1024
"""Larger values are read on another thread."""


class SqliteStore:
    """A metadata store in one SQLite file.

    `poll_s` is the interval of looking for commits of other processes; None without other processes. An
    ephemeral value is removed `lease_s` after the event loop of its process last ran. A process that is
    `alone` ends all sessions that it finds, and has no lease. `may_end` decides whether a process with this
    id may be killed when it holds the write lock and makes no progress. The first process of a data directory
    calls `sqlite_check.prepare` before.
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
        self.url = f"sqlite:{self._path.absolute()}"
        self._lock = WriteLock(self._path, lease_s, may_end)
        self._large = _LargeReads(self._path)
        self._options = SqliteOptions(lease_s, poll_s, alone)
        self._beating: asyncio.TimerHandle | None = None
        self._watches = Watches()
        self._thread: ConnectionThread | None = None
        self._closed = False

    async def get(self, path: str) -> Stored | None:
        check_key(path)

        def is_large(work: Work) -> bool:
            row = work.row("SELECT length(value) FROM node WHERE path = ?", path)
            return row is not None and row[0] > LARGE_BYTES

        def read(work: Work) -> Stored | Literal[False] | None:
            return False if is_large(work) else _stored(read_row(work.connection, path))

        try:
            found = await self._run(read, writes=False)
            return await self._large.read(path) if found is False else found
        except DamagedRecordError:
            return await self._run(lambda work: _stored(work.read(path)))

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        check_key(path)

        def write(work: Work) -> int:
            session = work.owner.session(work) if ephemeral else None
            return work.put(path, bytes(value), expected, session)

        if ephemeral and self._beating is None and not self._options.alone:
            self._start()
            self._beat()
        return await self._run(write, size_bytes=len(value))

    async def delete(self, path: str, *, expected: int | None = None) -> None:
        check_key(path)
        await self._run(lambda work: work.delete(path, expected))

    async def children(self, path: str) -> list[str]:
        below = check_prefix(path) + "/"

        def read(work: Work) -> list[str]:
            names: dict[str, None] = {}
            at = below
            while found := _paths(work, below, at, PATHS_AT_ONCE):
                names.update((path[len(below) :].partition("/")[0], None) for path in found)
                name, slash, _ = found[-1][len(below) :].partition("/")
                # Skip all descendants of a child at once, because a namespace may have many records.
                at = f"{below}{name}/\U0010ffff" if slash else found[-1]
            return sorted(names)

        return await self._run(read, writes=False)

    async def page(self, path: str, after: str, limit: int) -> list[tuple[str, Stored]]:
        below = check_prefix(path) + "/"

        def read(work: Work, heals: bool) -> list[tuple[str, Stored]]:
            rows = {
                key: work.read(key) if heals else read_row(work.connection, key)
                for key in _paths(work, below, max(below, after), limit)
            }
            return [(key, Stored(row.value, row.version)) for key, row in rows.items() if row is not None]

        try:
            return await self._run(lambda work: read(work, False), writes=False)
        except DamagedRecordError:
            return await self._run(lambda work: read(work, True))

    async def increment(self, path: str) -> int:
        check_key(path)
        return await self._run(lambda work: work.increment(path))

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        self._start()
        return self._watches.add(prefix, changed)

    async def close(self) -> None:
        await self._stop(release_session=True)

    async def abandon(self) -> None:
        """Stop like a killed process: the session stays until its lease runs out."""
        await self._stop(release_session=False)

    async def _run(self, work: Callable[[Work], T], *, writes: bool = True, size_bytes: int = 0) -> T:
        thread = self._start()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        thread.requests.put(Request(work, writes, answer, size_bytes))
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
            if future is None or future.done():
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
            await self._large.close()


def _paths(work: Work, below: str, after: str, limit: int) -> list[str]:
    """The first paths below a prefix that sort behind `after`."""
    rows = work.connection.execute(
        "SELECT path FROM node WHERE path > ? AND path < ? ORDER BY path LIMIT ?",
        (after, below[:-1] + "0", limit),  # "0" follows "/"
    )
    return [path for (path,) in rows]


def _stored(row: RecordRow | None) -> Stored | None:
    return None if row is None else Stored(row.value, row.version)


class _LargeReads:
    """Reads large values on a thread of its own, so that commits and leases do not wait for them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, "metadata reads")
        self._connection: sqlite3.Connection | None = None

    async def read(self, path: str) -> Stored | None:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, path)

    def _read(self, path: str) -> Stored | None:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
                self._connection.execute("PRAGMA query_only = 1")
            return _stored(read_row(self._connection, path))
        except sqlite3.Error as error:
            raise MetadataError(f"{self._path}: {error}") from error

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()
