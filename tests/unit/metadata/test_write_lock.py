"""The write lock of the SQLite file: a process that holds it without progress is ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch import locks
from anabranch.errors import MetadataError
from anabranch.metadata.sqlite.sqlite_store import SqliteStore, sqlite_file

pytestmark = pytest.mark.real_time

HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(60)
"""


async def test_a_stranger_that_stops_within_a_transaction_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.5)
    path = tmp_path / "metadata.db"
    store = SqliteStore(path, lease_s=0.3, poll_s=0.01, may_end=lambda pid: pid == os.getpid())
    await store.put("/a", b"1")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, path, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"held\n"
    try:
        with pytest.raises(MetadataError, match="locked"):
            await store.put("/a", b"2")
        assert child.returncode is None
    finally:
        child.kill()
        await child.wait()
    assert await store.put("/a", b"2") == 1
    await store.close()


@pytest.mark.parametrize("writes", [True, False])
def test_a_process_that_writes_to_the_record_log_makes_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    now_s = 0.0
    ended: list[int] = []
    monkeypatch.setattr(sqlite_file, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(locks, "kernel_holder", lambda file, kind, at: 7)
    monkeypatch.setattr(locks, "kill_holder", lambda pid, may: ended.append(pid))
    log = tmp_path / "metadata-log" / "00000001.log"
    log.parent.mkdir()
    log.touch()

    class BusyConnection(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            nonlocal now_s
            now_s += 1.0
            if now_s > 6.0:
                return super().execute(sql, *values)
            if writes:
                os.utime(log, ns=(int(now_s * 1e9), int(now_s * 1e9)))
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error

    connection = sqlite3.connect(tmp_path / "metadata.db", factory=BusyConnection, isolation_level=None)
    sqlite_file.WriteLock(tmp_path / "metadata.db", 3.0, lambda pid: True).begin(connection, "BEGIN")
    connection.close()
    assert bool(ended) != writes


async def test_a_process_that_stops_within_a_transaction_blocks_others_briefly(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteStore(path, lease_s=0.3, poll_s=0.01)
    await store.put("/a", b"1")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, path, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"held\n"
    child.send_signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(10):
            assert await store.put("/a", b"2") == 1
            assert await child.wait() == -signal.SIGKILL
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    await store.close()
