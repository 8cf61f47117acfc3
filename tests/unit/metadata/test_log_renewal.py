"""The record log goes on in its next file."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.metadata import log_renewal
from anabranch.metadata.record_log import LOG_FOLDER
from anabranch.metadata.sqlite import SqliteStore
from anabranch.metadata.sqlite_check import check_metadata

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
