"""Backup and restore of a directory that no broker serves."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from anabranch.data.backup import back_up
from anabranch.data.directory import METADATA_FILE, STORES
from anabranch.data.restore import DRAFT, restore
from anabranch.errors import ConflictError
from anabranch.metadata.sqlite.sqlite_store import SqliteStore

CATALOG = f"{STORES}/0/catalog"


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    store = SqliteStore(root / METADATA_FILE)
    await store.put("/record", b"value")
    await store.close()
    (root / CATALOG).parent.mkdir(parents=True)
    (root / CATALOG).write_bytes(b"a catalog")
    return root


@pytest.mark.real_time
async def test_restored_directory_has_records_and_files_and_stays_the_same_folder(
    data: Path, tmp_path: Path
) -> None:
    await asyncio.to_thread(back_up, data, tmp_path / "backup")
    copy = tmp_path / "copy"
    copy.mkdir()
    volume = copy.stat().st_ino
    restore(tmp_path / "backup", copy)
    assert copy.stat().st_ino == volume, "a mounted volume cannot be replaced"
    assert (copy / CATALOG).read_bytes() == b"a catalog"
    assert not (copy / DRAFT).exists()
    store = SqliteStore(copy / METADATA_FILE)
    record = await store.get("/record")
    await store.close()
    assert record is not None
    assert record.value == b"value"


@pytest.mark.real_time
async def test_interrupted_restore_begins_again(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backup")
    (tmp_path / "copy" / DRAFT).mkdir(parents=True)
    (tmp_path / "copy" / DRAFT / "part").write_text("")
    restore(tmp_path / "backup", tmp_path / "copy")
    assert (tmp_path / "copy" / CATALOG).exists()


@pytest.mark.real_time
async def test_backup_gives_up_on_a_store_that_never_stands_still(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_and_replace(source: Path, *args: object, **options: object) -> None:
        link(source, *args, **options)  # type: ignore[arg-type]
        source.unlink()
        source.write_bytes(b"the next catalog")

    monkeypatch.setattr(os, "link", link_and_replace)
    with pytest.raises(ConflictError, match="back up again later"):
        back_up(data, tmp_path / "backup")
