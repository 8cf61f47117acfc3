"""Features of the SQLite adapter alone: a file, a thread, a log of changes."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.errors import MetadataError
from anabranch.metadata import sqlite, sqlite_file, sqlite_rows, sqlite_thread
from anabranch.metadata.sqlite import SqliteStore
from anabranch.metadata.sqlite_check import prepare
from anabranch.server.node import POLL_S

pytestmark = pytest.mark.real_time


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


async def test_values_sequences_and_versions_survive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metadata.db"
    store = SqliteStore(path)
    await store.put("/a", b"1")
    await store.put("/a", b"2")
    await store.increment("/s")
    await store.abandon()
    again = SqliteStore(path)
    assert await again.get("/a") == (b"2", 1)
    assert await again.increment("/s") == 1
    await again.close()


async def test_the_file_is_a_write_ahead_log_and_no_thread_stays(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "metadata.db")
    await store.put("/a", b"1")
    assert rows(tmp_path / "metadata.db", "PRAGMA journal_mode") == [("wal",)]
    await store.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("metadata")]


async def test_a_new_file_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    maker = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
    maker.execute("BEGIN EXCLUSIVE")
    store = SqliteStore(tmp_path / "metadata.db")
    looking = asyncio.create_task(store.get("/a"))
    await asyncio.sleep(2 * sqlite_file.BUSY_RETRY_S)
    maker.execute("ROLLBACK")
    maker.close()
    assert await looking is None
    await store.close()


async def test_a_file_that_is_no_database_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"this is not a database, and long enough to be looked at" * 20)
    store = SqliteStore(path)
    for _ in range(2):
        with pytest.raises(MetadataError, match=r"metadata\.db"):
            await store.get("/a")
    await store.close()


async def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    store = SqliteStore(path)
    with pytest.raises(MetadataError, match="format 99"):
        await store.get("/a")
    await store.close()


async def test_writes_that_wait_together_share_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[str] = []

    class Traced(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            executed.append(sql)
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Traced))
    store = SqliteStore(tmp_path / "metadata.db")
    await store.get("/a")
    before = executed.count("COMMIT")
    await asyncio.gather(*(store.put(f"/n/{n}", b"") for n in range(100)))
    assert 1 <= executed.count("COMMIT") - before < 100
    await store.close()


async def test_large_values_are_read_and_written_beside_the_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[int, str] = {}
    read_row = sqlite_rows.read_row

    def traced(connection: sqlite3.Connection, path: str) -> Any:
        row = read_row(connection, path)
        if row is not None:
            threads[len(row.value)] = threading.current_thread().name
        return row

    monkeypatch.setattr(sqlite, "read_row", traced)
    store = SqliteStore(tmp_path / "metadata.db")
    await asyncio.gather(*(store.put(f"/large/{n}", bytes(1_000_000)) for n in range(20)))
    await store.put("/small", b"1")
    found = await asyncio.gather(*(store.get(f"/large/{n % 20}") for n in range(100)))
    assert {stored.version for stored in found if stored is not None} == {0}
    await store.get("/small")
    assert threads[1] == "metadata metadata.db"
    assert threads[1_000_000].startswith("metadata reads")
    await store.close()


async def test_the_log_of_changes_stays_bounded_and_a_late_reader_is_told_to_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_thread, "CHANGES_KEPT", 16)
    path = tmp_path / "metadata.db"
    # The reader sleeps through more changes than the log keeps.
    writer, reader = SqliteStore(path), SqliteStore(path, poll_s=1.0)
    await reader.get("/a")
    heard: asyncio.Queue[str] = asyncio.Queue()
    reader.watch("/t", lambda path: heard.put_nowait(path))
    for n in range(100):
        await writer.put(f"/u/{n}", b"")
    async with asyncio.timeout(5):
        assert await heard.get() == "/t"
    ((kept,),) = rows(path, "SELECT count(*) FROM change")
    assert isinstance(kept, int)
    assert kept <= 16 + 4
    await writer.close()
    await reader.close()


async def test_a_session_that_ran_out_is_started_anew(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    paused, other = SqliteStore(path, lease_s=3600), SqliteStore(path, lease_s=3600)
    await paused.put("/lock/a", b"1", ephemeral=True)
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM session")
    connection.execute("DELETE FROM node")
    connection.commit()
    connection.close()
    await paused.put("/lock/b", b"2", ephemeral=True)
    assert await other.get("/lock/b") == (b"2", 0)
    await paused.close()
    assert await other.get("/lock/b") is None
    await other.close()


async def test_a_session_of_an_earlier_boot_is_over(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    old = SqliteStore(path)
    await old.put("/lock/a", b"1", ephemeral=True)
    await old.abandon()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE session SET boot = 'earlier', heard_s = 1e12")
    connection.commit()
    connection.close()
    store = SqliteStore(path)
    for _ in range(3):
        found = await store.get("/lock/a")
    assert found is None
    await store.close()


async def test_the_session_of_a_process_whose_event_loop_hangs_is_over(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    held, over = threading.Event(), threading.Event()

    async def hang() -> None:
        hanging = SqliteStore(path, lease_s=1.0, poll_s=0.01)
        await hanging.put("/lock/a", b"1", ephemeral=True)
        held.set()
        over.wait()
        await hanging.close()

    other_loop = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(hang())))
    await asyncio.to_thread(held.wait)
    other = SqliteStore(path, lease_s=1.0, poll_s=0.01)
    gone = asyncio.Event()
    other.watch("/lock/a", lambda change: gone.set())
    await other.put("/lock/b", b"2", ephemeral=True)
    try:
        async with asyncio.timeout(5):
            await gone.wait()
        assert await other.get("/lock/a") is None
        assert await other.get("/lock/b") is not None
    finally:
        over.set()
        await other_loop
    await other.close()


async def test_a_process_that_could_not_look_for_long_lets_the_others_renew_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    for module in (sqlite, sqlite_thread):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    path = tmp_path / "metadata.db"
    silent, store = SqliteStore(path, lease_s=30), SqliteStore(path, lease_s=30)
    await silent.put("/lock/a", b"1", ephemeral=True)
    await silent.abandon()
    await store.put("/lock/b", b"2", ephemeral=True)
    await store.get("/lock/b")
    for passed_s, is_there in ((100.0, True), (110.0, True), (116.5, False)):
        now_s = 1000.0 + passed_s
        for _ in range(3):
            found = await store.get("/lock/a")
        assert (found is not None) == is_there, passed_s
    await store.close()


class FullDisk(sqlite3.Connection):
    """Refuses commits while the disk is full."""

    full = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.full:
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, *values)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FullDisk]]:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FullDisk))
    yield FullDisk
    FullDisk.full = False


async def test_after_a_commit_that_failed_no_change_of_others_is_missed(
    tmp_path: Path, disk: type[FullDisk]
) -> None:
    path = tmp_path / "metadata.db"
    store, other = SqliteStore(path, poll_s=0.001), SqliteStore(path)
    await store.put("/a", b"1")
    disk.full = True
    with pytest.raises(MetadataError, match="full"):
        await store.put("/a", b"2")
    disk.full = False
    heard = asyncio.Event()
    store.watch("/b", lambda path: heard.set())
    await other.put("/b", b"1")
    async with asyncio.timeout(5):
        await heard.wait()
    assert await store.get("/a") == (b"1", 0), "the change that failed does not come back"
    await store.close()
    await other.close()


async def test_a_session_that_was_not_committed_does_not_end_the_session_of_another_process(
    tmp_path: Path, disk: type[FullDisk]
) -> None:
    path = tmp_path / "metadata.db"
    failing, other = (SqliteStore(path, lease_s=3600) for _ in range(2))
    await failing.get("/lock/a")
    disk.full = True
    with pytest.raises(MetadataError, match="full"):
        await failing.put("/lock/a", b"1", ephemeral=True)
    disk.full = False
    await other.put("/lock/b", b"2", ephemeral=True)
    await failing.close()
    assert await other.get("/lock/b") == (b"2", 0)
    await other.close()


async def test_a_session_outlives_a_time_in_which_the_full_disk_took_no_renewal(
    tmp_path: Path, disk: type[FullDisk]
) -> None:
    path = tmp_path / "metadata.db"
    stores = [SqliteStore(path, lease_s=0.5, poll_s=0.01) for _ in range(2)]
    for number, store in enumerate(stores):
        await store.put(f"/lock/{number}", b"", ephemeral=True)
    disk.full = True
    await asyncio.sleep(1.0)
    disk.full = False
    await asyncio.sleep(0.5)
    assert await stores[0].children("/lock") == ["0", "1"]
    for store in stores:
        await store.close()


@pytest.mark.parametrize("how", ["store", "function"])
async def test_a_process_that_is_alone_ends_the_sessions_it_finds(tmp_path: Path, how: str) -> None:
    path = tmp_path / "metadata.db"
    old = SqliteStore(path, lease_s=3600)
    await old.put("/lock/a", b"1", ephemeral=True)
    await old.put("/b", b"2")
    await old.abandon()
    if how == "function":
        prepare(path)
    store = SqliteStore(path, lease_s=3600, alone=how == "store")
    assert await store.get("/lock/a") is None
    assert await store.get("/b") == (b"2", 0)
    await store.put("/lock/c", b"3", ephemeral=True)
    await store.close()


WRITE = """
import asyncio, sys, time
from pathlib import Path
from anabranch.metadata.sqlite import SqliteStore

async def write():
    store = SqliteStore(Path(sys.argv[1]))
    for number in range(40):
        await asyncio.sleep(0.031)
        await store.put(f"/t/{number}", b"")
        print(time.monotonic(), flush=True)
    await store.close()

asyncio.run(write())
"""


async def test_a_watch_hears_of_another_process_within_20_ms(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteStore(path, poll_s=POLL_S)
    await store.get("/t")
    heard_s: dict[str, float] = {}
    store.watch("/t", lambda path: heard_s.update({path: time.monotonic()}))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITE, path, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    await asyncio.sleep(0.1)
    await store.close()
    written_s = [float(line) for line in out.splitlines()]
    waits_s = [heard_s[f"/t/{number}"] - at_s for number, at_s in enumerate(written_s)]
    # Of a machine that does other work, too, only the usual case can be asked for; that the longest wait for
    # a look leaves as much time again is asked for apart.
    assert POLL_S <= 0.01
    assert len(waits_s) == 40
    assert statistics.median(waits_s) < 0.02
