"""The reserve of the metadata: room that is given up when a commit finds none."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from anabranch.errors import MetadataError
from anabranch.metadata.sqlite.metadata_reserve import MetadataReserve, lacks_room
from anabranch.metadata.sqlite.record_log import RecordLog
from anabranch.metadata.sqlite.sqlite_store import SqliteStore, metadata_reserve

pytestmark = pytest.mark.real_time


def test_a_full_disk_is_told_from_other_errors() -> None:
    full = OSError(errno.ENOSPC, "no room")
    wrapped = MetadataError("cannot use it")
    wrapped.__cause__ = full
    assert lacks_room(full)
    assert lacks_room(wrapped)
    assert not lacks_room(OSError(errno.EIO, "broken"))
    assert not lacks_room(sqlite3.IntegrityError("another error"))
    assert not lacks_room(None)


def test_the_reserve_is_held_and_given_up(tmp_path: Path) -> None:
    reserve = MetadataReserve(tmp_path / "metadata.db")
    assert not reserve.give_up()
    reserve.hold()
    file = tmp_path / "metadata-reserve"
    assert file.stat().st_blocks > 0
    assert MetadataReserve(tmp_path / "metadata.db").give_up(), "any process may give it up"
    assert file.stat().st_blocks == 0


def test_a_disk_without_plenty_of_room_gets_no_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_reserve, "PLENTY", 2**60)
    MetadataReserve(tmp_path / "metadata.db").hold()
    assert not (tmp_path / "metadata-reserve").exists()


async def test_a_commit_that_finds_no_room_succeeds_with_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "metadata.db", alone=True)
    for value in (b"0", b"1"):
        # The thread holds the reserve between two commits.
        await store.put("/a", value)
    reserve = tmp_path / "metadata-reserve"
    assert reserve.stat().st_size > 0
    append = RecordLog.append

    def full_while_reserved(self: RecordLog, *args: object) -> int:
        if reserve.stat().st_size:
            raise OSError(errno.ENOSPC, "no room")
        return append(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(RecordLog, "append", full_while_reserved)
    await store.put("/b", b"2")
    found = await store.get("/b")
    assert found is not None
    assert found.value == b"2"
    await store.close()
