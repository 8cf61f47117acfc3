"""A check of a stopped store finds damaged entries and changes no file; a repair keeps the rest."""

from __future__ import annotations

import random

import pytest

from anabranch.errors import ConflictError
from anabranch.ledger.disks.overlay_disk import OverlayDisk
from anabranch.ledger.recovery.store_check import check_store, repair_store
from tests.fakes.disk import DictDisk
from tests.harness.damaged_store import DamageJudge, make_history
from tests.harness.storage import NAME, OTHER, FixedClock, contents, crashed, flip, make, opened, put


async def prepared() -> DictDisk:
    """Two logs; one entry of the first is in the journal only."""
    disk = DictDisk()
    async with opened(disk) as storage:
        await put(await storage.create(NAME), b"one", b"two", b"three")
        await put(await storage.create(OTHER), b"four")
    storage = make(disk)
    await storage.open()
    await put(await storage.create(NAME), b"five")
    return await crashed(disk, storage)


async def test_a_check_of_a_sound_store_finds_nothing_and_changes_nothing() -> None:
    disk = await prepared()
    before = dict(disk.files)
    report = await check_store(disk, FixedClock())
    assert (report.logs, report.entries, report.findings, report.lost_entries) == (2, 5, (), 0)
    assert report.store_id
    assert disk.files == before
    assert not disk.locked


async def test_a_check_names_each_damaged_entry_and_reads_those_behind_it() -> None:
    disk = await prepared()
    (file,) = (file for file in disk.files if file.startswith("ledgers/segment") and file.endswith("1.data"))
    disk.files[file] = flip(disk.files[file], 36)
    before = dict(disk.files)
    report = await check_store(disk, FixedClock())
    assert [(finding.log, finding.lost_entries) for finding in report.findings] == [(NAME, 1)]
    assert "1:1" in str(report.findings[0])
    assert disk.files == before


async def test_a_repair_leaves_a_store_that_starts_without_a_journal() -> None:
    disk = await prepared()
    assert (await repair_store(disk, FixedClock())).findings == ()
    assert not [file for file in disk.files if file.startswith("journal/")]
    async with opened(disk) as storage:
        assert await contents(await storage.create(NAME)) == [b"one", b"two", b"three", b"five"]


async def test_a_store_in_use_is_not_checked() -> None:
    disk = await prepared()
    async with opened(disk):
        with pytest.raises(ConflictError):
            await check_store(disk, FixedClock())


async def test_an_overlay_shows_its_own_changes_over_the_files_below() -> None:
    below = DictDisk({"a": b"0123456789", "b": b"x"})
    disk = OverlayDisk(below)
    await disk.lock()
    await disk.truncate("a", 6)
    await disk.append([("a", [b"AB", b"CD"]), ("c", [b"new"])], sync=True)
    assert await disk.read("a", 4, 4) == b"45AB"
    assert await disk.read("a", 7, 100) == b"BCD"
    await disk.truncate("a", 8)
    await disk.replace("b", b"other")
    assert await disk.sizes() == {"a": 8, "b": 5, "c": 3}
    await disk.delete(["c"])
    with pytest.raises(FileNotFoundError):
        await disk.read("c", 0, 1)
    assert below.files == {"a": b"0123456789", "b": b"x"}


@pytest.mark.parametrize("seed", range(4))
async def test_a_repair_without_any_catalog_keeps_every_entry_and_puts_no_cursor_ahead(seed: int) -> None:
    history = await make_history(seed)
    disk = DictDisk(history.files)
    del disk.files["catalog"], disk.files["catalog.copy"]
    checked = await check_store(DictDisk(disk.files), FixedClock())
    assert checked.findings[0].file == "catalog"
    assert (await repair_store(disk, FixedClock())).findings == checked.findings
    judge = DamageJudge(history, cut=True)
    await judge.judge(lambda: disk, random.Random(seed))
    assert judge.lost == 0


async def test_a_repair_without_catalog_and_one_ledger_loses_that_ledger_only() -> None:
    disk = DictDisk()
    async with opened(disk, ledger_bytes_max=1) as storage:
        await put(await storage.create(NAME), b"0", b"1", b"2")
    for file in ("catalog", "catalog.copy", *(file for file in disk.files if "00000002" in file)):
        del disk.files[file]
    report = await repair_store(disk, FixedClock())
    assert report.entries == 3
    assert report.lost_entries == 1
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        assert [entry.data for entry in await log.read(2, 1, 100)] == [b"2"]
        assert [entry.data for entry in await log.read(0, 1, 100)] == [b"0"]
