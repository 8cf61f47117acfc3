"""The record log goes on in its next file."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anabranch.errors import DamagedRecordError
from anabranch.metadata.sqlite.log_renewal import LogRenewer
from anabranch.metadata.sqlite.record_log import LOG_FOLDER, LogDraft, RecordLog
from anabranch.metadata.sqlite.record_log_format import LoggedChange
from anabranch.metadata.sqlite.sqlite_check import check_metadata, prepare
from anabranch.metadata.sqlite.sqlite_store import SqliteStore, log_renewal, sqlite_thread
from anabranch.metadata.sqlite.sqlite_work import Work

pytestmark = pytest.mark.real_time


async def test_the_log_is_renewed_while_other_processes_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_renewal, "LOG_BYTES_MIN", 20_000)
    path = tmp_path / "metadata.db"
    stores = [SqliteStore(path), SqliteStore(path)]
    for number in range(300):
        await stores[number % 2].put(f"/n/{number % 7}", b"%d" % number * 100)
    names = await stores[0].children("/n")
    values = {name: await stores[0].get(f"/n/{name}") for name in names}
    for store in stores:
        await store.close()
    files = sorted((tmp_path / LOG_FOLDER).iterdir())
    assert {file.suffix for file in files} == {".log"}, "no draft is left"
    assert files[-1].name > "00000003.log"
    assert sum(file.stat().st_size for file in files) < 200_000
    assert not check_metadata(path)
    path.unlink()
    store = SqliteStore(path)
    assert {name: await store.get(f"/n/{name}") for name in names} == values
    await store.close()


async def put_until(store: SqliteStore, done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():
            await store.put("/a", bytes(1000))
    await store.put("/a", b"last")


def drafts(folder: Path) -> list[Path]:
    return list((folder / LOG_FOLDER).glob("*.new"))


async def test_a_renewal_whose_transaction_failed_is_done_by_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_renewal, "LOG_BYTES_MIN", 20_000)
    lost: list[Callable[[Work], None]] = []

    def renewer(
        path: Path, records: RecordLog, submit: Callable[[Callable[[Work], None]], None]
    ) -> LogRenewer:
        """The first request is lost, as with a transaction that fails at its begin."""
        return LogRenewer(path, records, lambda work: submit(work) if lost else lost.append(work))

    monkeypatch.setattr(sqlite_thread, "LogRenewer", renewer)
    store = SqliteStore(tmp_path / "metadata.db")
    await put_until(store, (tmp_path / LOG_FOLDER / "00000002.log").exists)
    assert lost
    assert not drafts(tmp_path)
    await store.close()
    assert not check_metadata(tmp_path / "metadata.db")


async def test_a_draft_that_cannot_be_written_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_renewal, "LOG_BYTES_MIN", 20_000)
    draft = RecordLog.draft
    failed: list[int] = []

    def fail_once(self: RecordLog, number: int, commit: int, changes: Iterator[LoggedChange]) -> LogDraft:
        if number == 2 and not failed:
            failed.append(number)
            raise OSError(errno.ENOSPC, "no room")
        return draft(self, number, commit, changes)

    monkeypatch.setattr(RecordLog, "draft", fail_once)
    store = SqliteStore(tmp_path / "metadata.db")
    await put_until(store, (tmp_path / LOG_FOLDER / "00000002.log").exists)
    assert failed
    await store.close()


async def test_a_draft_that_stays_unused_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_renewal, "LOG_BYTES_MIN", 20_000)
    failed: list[LogDraft] = []

    def fail(self: RecordLog, draft: LogDraft, frames: object) -> LogDraft:
        failed.append(draft)
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(RecordLog, "extend", fail)
    store = SqliteStore(tmp_path / "metadata.db")
    await put_until(store, lambda: bool(failed))
    assert not failed[0].path.exists()
    await store.close()


def test_a_draft_that_meets_a_damaged_record_takes_no_room(tmp_path: Path) -> None:
    def changes() -> Iterator[LoggedChange]:
        yield LoggedChange("/a", 1, 0, b"1")
        raise DamagedRecordError("/b is damaged")

    with pytest.raises(DamagedRecordError):
        RecordLog.beside(tmp_path / "metadata.db").draft(1, 1, changes())
    assert not drafts(tmp_path)


async def test_a_start_on_a_full_disk_keeps_a_long_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteStore(path)
    for number in range(20):
        await store.put("/a", b"%d" % number * 1000)
    await store.close()
    monkeypatch.setattr(log_renewal, "LOG_BYTES_MIN", 0)

    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        prepare(path)
    assert "the record log goes on in its old file" in caplog.text
    assert [file.name for file in (tmp_path / LOG_FOLDER).iterdir()] == ["00000001.log"]
    assert not check_metadata(path)
    store = SqliteStore(path)
    assert await store.get("/a") == (b"19" * 1000, 19)
    await store.close()
    prepare(path)
    assert [file.name for file in (tmp_path / LOG_FOLDER).iterdir()] == ["00000002.log"]
    assert not check_metadata(path)
