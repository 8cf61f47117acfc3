"""Rows that are damaged while a process serves are healed from the record log."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from anabranch.errors import DamagedRecordError
from anabranch.metadata.sqlite.record_log import LOG_FOLDER
from anabranch.metadata.sqlite.record_log_format import HEAD_BYTES
from anabranch.metadata.sqlite.sqlite_check import check_metadata
from anabranch.metadata.sqlite.sqlite_store import SqliteStore

pytestmark = pytest.mark.real_time


async def test_a_record_that_is_damaged_while_serving_is_healed_from_the_log(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteStore(path)
    for name in ("/a", "/b", "/c"):
        await store.put(name, b"1")
    await store.put("/b", b"x" * 100_000)
    number = await store.increment("/n")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE node SET value = value || x'00'")
    connection.execute("UPDATE sequence SET next = 0")
    connection.commit()
    connection.close()
    assert await store.get("/a") == (b"1", 0)
    assert await store.get("/b") == (b"x" * 100_000, 1)
    assert await store.put("/c", b"2", expected=0) == 1
    assert await store.increment("/n") == number + 1
    await store.close()
    assert not check_metadata(path)


@pytest.mark.parametrize("place", ["newest change", "last frame", "begin"])
async def test_no_older_value_replaces_a_record_that_is_damaged_in_both_copies(
    tmp_path: Path, place: str
) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteStore(path)
    await store.put("/a", b"older")
    await store.increment("/n")
    await store.put("/a", b"newest")
    if place == "newest change":
        await store.put("/b", b"1")
    (file,) = (tmp_path / LOG_FOLDER).iterdir()
    data = bytearray(file.read_bytes())
    at = HEAD_BYTES + 8 if place == "begin" else data.index(b"newest")
    data[at] ^= 1
    file.write_bytes(data)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE node SET value = 'harmed' WHERE path = '/a'")
    connection.execute("UPDATE sequence SET next = 0")
    connection.commit()
    for attempt in (store.get("/a"), store.put("/a", b"2"), store.delete("/a"), store.increment("/n")):
        with pytest.raises(DamagedRecordError, match="anabranch store check"):
            await attempt
    assert connection.execute("SELECT value FROM node WHERE path = '/a'").fetchall() == [("harmed",)]
    connection.close()
    await store.put("/c", b"1")
    await store.close()
