"""Damage of the metadata files of a killed broker: no record changes, disappears or comes back.

The environment variable FLIPS sets the number of flipped bits; `make flips` runs 1,000.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from anabranch.errors import MetadataError, MissingDataError
from anabranch.metadata.sqlite.record_log import LOG_FOLDER, RecordLog
from anabranch.metadata.sqlite.record_log_format import LoggedChange, LogScan, RecordState
from anabranch.metadata.sqlite.sqlite_check import (
    DatabaseView,
    WholeCopy,
    check_metadata,
    choose_source,
    prepare,
    repair_metadata,
)
from anabranch.metadata.sqlite.sqlite_rows import Mark, read_mark
from anabranch.metadata.sqlite.sqlite_store import SqliteStore
from anabranch.metadata.store import Stored

pytestmark = pytest.mark.real_time

FLIPS = int(os.environ.get("FLIPS", "50"))
AT_ONCE = 50

DATABASE, WAL = "metadata.db", "metadata.db-wal"


class Killed(NamedTuple):
    """The files of a killed broker, and the records that it had stored."""

    folder: Path
    records: dict[str, Stored]
    next_number: int

    def copy(self, to: Path) -> Path:
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.folder, to)
        return to / DATABASE

    def log(self) -> str:
        (file,) = sorted((self.folder / LOG_FOLDER).iterdir())
        return f"{LOG_FOLDER}/{file.name}"


def started(path: Path) -> SqliteStore:
    """The store of a broker that starts alone."""
    prepare(path)
    return SqliteStore(path, alone=True)


async def fill(store: SqliteStore, rng: random.Random) -> dict[str, Stored]:
    """Create, change and delete records; returns those that are stored."""
    kept: dict[str, Stored] = {}
    for number in range(120):
        path = f"/topics/public/default/{rng.randrange(40)}"
        if path in kept and rng.random() < 0.2:
            await store.delete(path)
            del kept[path]
        else:
            value = rng.randbytes(rng.choice([10, 300, 6000]))
            kept[path] = Stored(value, await store.put(path, value))
        if number % 10 == 0:
            await store.increment("/sequences/incarnation")
    return kept


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return asyncio.run(kill(tmp_path_factory))


async def kill(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """One half of the records is in the file, the other in SQLite's write-ahead log."""
    folder = tmp_path_factory.mktemp("serving")
    rng = random.Random(7)
    store = started(folder / DATABASE)
    await fill(store, rng)
    await store.close()
    store = started(folder / DATABASE)
    names = await store.children("/topics/public/default")
    before = {path: await store.get(path) for path in (f"/topics/public/default/{name}" for name in names)}
    kept = {path: stored for path, stored in before.items() if stored is not None}
    for path in list(kept)[::3]:
        await store.delete(path)
        del kept[path]
    for path in list(kept)[::2]:
        value = rng.randbytes(500)
        kept[path] = Stored(value, await store.put(path, value))
    await store.put("/brokers/0", b"ephemeral", ephemeral=True)
    copy = tmp_path_factory.mktemp("killed") / "data"
    shutil.copytree(folder, copy)
    await store.close()
    assert (copy / WAL).stat().st_size > 10_000
    return Killed(copy, kept, 12)


async def judge(path: Path, killed: Killed) -> None:
    """Every record reads as it was stored, and no number is given twice."""
    store = started(path)
    try:
        names = await store.children("/topics/public/default")
        found = {f"/topics/public/default/{name}" for name in names}
        assert found == killed.records.keys()
        for record, stored in killed.records.items():
            assert await store.get(record) == stored, record
        assert await store.increment("/sequences/incarnation") == killed.next_number
        assert await store.get("/brokers/0") is None
        await store.put("/topics/public/default/new", b"1")
    finally:
        await store.close()


def flip(file: Path, bit: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(bit // 8)
        (byte,) = opened.read(1)
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))


@pytest.mark.parametrize("first", range(0, FLIPS, AT_ONCE))
async def test_no_flipped_bit_changes_or_loses_a_record(killed: Killed, tmp_path: Path, first: int) -> None:
    reported = 0
    for seed in range(first, min(first + AT_ONCE, FLIPS)):
        rng = random.Random(seed)
        path = killed.copy(tmp_path / "data")
        file = path.parent / rng.choice([DATABASE, WAL, killed.log()])
        flip(file, rng.randrange(file.stat().st_size * 8))
        findings = check_metadata(path)
        assert findings or not file.match("*.log"), f"seed {seed}: damage of {file.name} is not reported"
        reported += bool(findings)
        try:
            await judge(path, killed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {file.name}: {error}") from error
        assert not check_metadata(path), f"seed {seed}: the damage is still there"
    assert reported >= 2


def cut_to(share: float) -> Callable[[Path], None]:
    return lambda file: os.truncate(file, int(file.stat().st_size * share))


LAST_BYTES = cut_to(0.999)


@pytest.mark.parametrize("harm", [Path.unlink, cut_to(0), cut_to(0.4), LAST_BYTES])
@pytest.mark.parametrize("kind", ["database", "wal", "log", "database and wal"])
async def test_a_deleted_or_truncated_file_costs_no_record(
    killed: Killed, tmp_path: Path, kind: str, harm: Callable[[Path], None]
) -> None:
    path = killed.copy(tmp_path / "data")
    for file in {"database": [DATABASE], "wal": [WAL], "log": [killed.log()]}.get(kind, [DATABASE, WAL]):
        harm(path.parent / file)
    # The last bytes of the write-ahead log are those of a lease, which is over.
    assert check_metadata(path) or harm is LAST_BYTES
    await judge(path, killed)


async def test_a_deleted_log_folder_is_written_again(killed: Killed, tmp_path: Path) -> None:
    path = killed.copy(tmp_path / "data")
    shutil.rmtree(path.parent / LOG_FOLDER)
    await judge(path, killed)
    path.unlink()
    store = started(path)
    assert await store.get("/topics/public/default/new") == (b"1", 0)
    await store.close()


async def test_an_older_copy_of_the_file_is_brought_up_to_date(killed: Killed, tmp_path: Path) -> None:
    path = killed.copy(tmp_path / "data")
    old = (path.parent / WAL).read_bytes()
    store = started(path)
    await store.put("/topics/later", b"1")
    await store.close()
    shutil.copy(killed.folder / DATABASE, path)
    (path.parent / WAL).write_bytes(old)
    store = started(path)
    assert await store.get("/topics/later") == (b"1", 0)
    await store.close()


async def test_each_record_is_taken_from_its_whole_copy_if_both_are_damaged(
    killed: Killed, tmp_path: Path
) -> None:
    path = killed.copy(tmp_path / "data")
    repair_metadata(path)
    damaged = next(iter(killed.records))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE node SET value = x'00' WHERE path = ?", (damaged,))
    connection.commit()
    connection.close()
    flip(path.parent / killed.log(), 8 * 40)
    assert len(check_metadata(path)) == 2
    store = started(path)
    for record in killed.records.keys() - {damaged}:
        assert await store.get(record) == killed.records[record]
    await store.close()


def test_metadata_that_is_gone_is_not_begun_anew_beside_stores(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="anabranch restore"):
        prepare(tmp_path / DATABASE, may_begin=False)
    assert not (tmp_path / DATABASE).exists()


def test_unreadable_copies_are_not_taken_for_an_empty_store(killed: Killed, tmp_path: Path) -> None:
    path = killed.copy(tmp_path / "data")
    (path.parent / WAL).unlink()
    path.write_bytes(b"no database")
    os.truncate(path.parent / killed.log(), 30)
    with pytest.raises(MissingDataError, match="unreadable"):
        prepare(path, may_begin=False)
    assert path.read_bytes() == b"no database"


async def test_a_broken_file_is_reported_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / DATABASE
    store = SqliteStore(path)
    for number in range(100):
        await store.put(f"/n/{number}", bytes(1000))
    await store.abandon()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 30)
    broken = SqliteStore(path)
    with pytest.raises(MetadataError, match="start them again"):
        await broken.children("/n")
    await broken.close()
    again = started(path)
    assert len(await again.children("/n")) == 100
    await again.close()


def leave_uncommitted(path: Path, change: LoggedChange) -> None:
    """Do as a process that dies between its write to the log and its commit."""
    connection = sqlite3.connect(path)
    mark = read_mark(connection)
    connection.close()
    records = RecordLog.beside(path)
    records.open(mark.file)
    records.append(mark.ends, change.commit, [change])
    records.close()


@pytest.mark.parametrize("restart", [True, False])
async def test_a_change_of_a_process_that_died_before_its_commit_is_applied_once(
    tmp_path: Path, restart: bool
) -> None:
    path = tmp_path / DATABASE
    store = SqliteStore(path)
    await store.put("/a", b"1")
    leave_uncommitted(path, LoggedChange("/a", 2, 1, b"2"))
    if restart:
        await store.close()
        store = started(path)
    heard: list[str] = []
    store.watch("/a", heard.append)
    await store.put("/b", b"1")
    assert await store.get("/a") == (b"2", 1)
    await store.put("/a", b"3", expected=1)
    assert restart or heard[:1] == ["/a"]
    await store.close()
    assert not check_metadata(path)
    store = started(path)
    assert await store.get("/a") == (b"3", 2)
    await store.close()


async def test_a_change_that_is_torn_in_the_log_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / DATABASE
    store = SqliteStore(path)
    await store.put("/a", b"1")
    leave_uncommitted(path, LoggedChange("/a", 2, 1, b"2" * 1000))
    (file,) = (tmp_path / LOG_FOLDER).iterdir()
    os.truncate(file, file.stat().st_size - 5)
    assert await store.put("/a", b"3", expected=0) == 1
    await store.close()
    assert not check_metadata(path)


async def test_a_commit_that_fails_leaves_nothing_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / DATABASE
    store = SqliteStore(path)
    await store.put("/a", b"1")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "sync")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail)
        with pytest.raises(MetadataError, match="sync"):
            await store.put("/a", b"2")
    # After a failed sync the bytes of the file cannot be trusted any more, so the next file begins.
    assert await store.put("/a", b"3", expected=0) == 1
    assert (tmp_path / LOG_FOLDER / "00000002.log").exists()
    await store.close()
    assert not check_metadata(path)


async def test_a_file_without_checksums_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / DATABASE
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE node (path TEXT PRIMARY KEY, value BLOB, version INTEGER, session INTEGER)"
    )
    connection.execute("CREATE TABLE sequence (path TEXT PRIMARY KEY, next INTEGER)")
    connection.execute("INSERT INTO node VALUES ('/a', x'31', 4, NULL), ('/b', x'32', 0, 1)")
    connection.execute("INSERT INTO sequence VALUES ('/s', 9)")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    for _ in range(2):
        store = started(path)
        assert await store.get("/a") == (b"1", 4)
        assert await store.get("/b") is None
        await store.close()
    store = started(path)
    assert await store.increment("/s") == 9
    await store.close()


def test_a_file_of_a_newer_format_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / DATABASE
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE node (path TEXT)")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(MetadataError, match="format 99"):
        prepare(path)
    assert not path.with_name("metadata.db.damaged").exists()


def test_a_log_with_fewer_commits_is_no_source() -> None:
    whole, short = RecordState(5), RecordState(4)
    database = DatabaseView(state=whole, mark=Mark(5, 1, 100))
    assert choose_source(database, LogScan(1, short, 80, True, None)) is WholeCopy.DATABASE
    assert choose_source(database, LogScan(1, whole, 100, True, None)) is WholeCopy.LOG
    assert choose_source(None, None) is WholeCopy.NOTHING
    damaged = DatabaseView(damage="torn", mark=Mark(5, 1, 100))
    assert choose_source(damaged, LogScan(1, short, 80, True, None)) is WholeCopy.BOTH
