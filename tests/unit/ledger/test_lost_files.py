"""Damaged, lost and cut files of a store: the rest stays, the damage is reported, no place is used twice."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from anabranch.errors import CorruptDataError, DamagedEntriesError
from anabranch.ledger.storage import SegmentLog
from tests.fakes.disk import DictDisk
from tests.harness.storage import (
    JOURNAL,
    NAME,
    OTHER,
    contents,
    crashed,
    flip,
    make,
    opened,
    put,
    three_commits,
)


async def readable(log: SegmentLog) -> list[int]:
    """Ordinals that can be read."""
    found = []
    for ordinal in range(log.extent.first_ordinal, log.extent.next_ordinal):
        with contextlib.suppress(DamagedEntriesError):
            found.append((await log.read(ordinal, 1, 1000))[0].ordinal)
    return found


@pytest.mark.parametrize("commit", [1, 2])
async def test_damage_to_a_commit_is_reported_and_costs_one_entry_at_most(commit: int) -> None:
    disk, ends = await three_commits()
    journal = disk.files[JOURNAL]
    losses = []
    for at in range(ends[commit - 1], ends[commit]):
        damaged = DictDisk(disk.files)
        damaged.files[JOURNAL] = flip(journal, at, at % 8)
        async with opened(damaged) as storage:
            assert storage.findings, at
            losses.append(sum(finding.lost_entries for finding in storage.findings))
            log = storage.get(NAME)
            assert log is not None
            assert log.extent.next_ordinal == 6
            assert len(await readable(log)) == 6 - losses[-1]
        assert not damaged.locked
    assert set(losses) == {0, 1}


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_missing_journal_file_is_reported_and_no_place_of_it_is_used_again(number: int) -> None:
    disk, _ = await three_commits()
    told = []
    for _ in range(2):
        storage = make(disk)
        await storage.open()
        told += await put(await storage.create(NAME), b"x")
        disk = await crashed(disk, storage)
    del disk.files[f"journal/0000000{number}.log"]
    async with opened(disk) as storage:
        (finding, *_) = storage.findings
        assert (finding.file, "missing" in finding.what) == (f"journal/0000000{number}.log", True)
        (new,) = await put(await storage.create(NAME), b"new")
        assert new.position.ledger > told[-1].position.ledger
        assert new.index > told[-1].index
    async with opened(disk) as storage:
        assert storage.findings == []


async def test_a_lost_copy_of_the_catalog_or_the_bounds_costs_nothing() -> None:
    disk, _ = await three_commits()
    for file in ("catalog", "catalog.copy", "bounds", "bounds.copy"):
        whole = disk.files[file]
        for damaged in (None, b"", whole[:-1], *(flip(whole, at, at % 8) for at in range(len(whole)))):
            left = DictDisk(disk.files)
            if damaged is None:
                del left.files[file]
            else:
                left.files[file] = damaged
            async with opened(left) as storage:
                assert [finding.file for finding in storage.findings] == [file]
                assert len(await contents(await storage.create(NAME))) == 6
            async with opened(left) as storage:
                assert storage.findings == []


async def test_without_any_catalog_a_store_does_not_open() -> None:
    disk, _ = await three_commits()
    del disk.files["catalog"], disk.files["catalog.copy"]
    before = dict(disk.files)
    with pytest.raises(CorruptDataError, match="no copy of the catalog"):
        await make(disk).open()
    assert disk.files == before


async def test_without_any_bounds_a_store_jumps_over_all_ids_it_may_have_used() -> None:
    disk, _ = await three_commits()
    del disk.files["bounds"], disk.files["bounds.copy"]
    async with opened(disk) as storage:
        assert len(storage.findings) == 3
        (new,) = await put(await storage.create(NAME), b"new")
        assert new.position.ledger > 2**20


async def test_ids_follow_the_clock_so_a_new_store_in_an_old_place_repeats_none() -> None:
    places = []
    for now_ms in (1_700_000_000_000, 1_700_000_100_000):
        disk = DictDisk()
        storage = make(disk, now_ms=now_ms)
        await storage.open()
        places += [place.position for place in await put(await storage.create(NAME), b"x")]
        await storage.close()
    # A backup of the second store, restored later.
    storage = make(disk, now_ms=1_700_000_200_000)
    await storage.open()
    places += [place.position for place in await put(await storage.create(NAME), b"y")]
    assert [position.ledger for position in places] == [1_700_000_000, 1_700_000_100, 1_700_000_200]
    await storage.close()


async def test_a_journal_cut_at_the_end_of_a_commit_shows_in_the_ledger_files() -> None:
    disk = DictDisk()
    storage = make(disk, behind_bytes=1)
    await storage.open()
    log = await storage.create(NAME)
    end = 0
    for number in range(6):
        end = len(disk.files.get(JOURNAL, b"")) if number == 3 else end
        await put(log, b"%d" % number)
    other = await put(await storage.create(OTHER), b"log and ledger are in the lost part")
    await asyncio.sleep(1)
    left = await crashed(disk, storage)
    left.files[JOURNAL] = left.files[JOURNAL][:end]
    async with opened(left) as storage:
        log = await storage.create(NAME)
        assert await contents(log) == [b"%d" % number for number in range(6)]
        assert await contents(await storage.create(OTHER)) == [b"log and ledger are in the lost part"]
        assert any("the ledger files hold them" in finding.what for finding in storage.findings)
        (new,) = await put(log, b"new")
        assert new.position.ledger > other[0].position.ledger
        assert new.index > 6
    async with opened(left) as storage:
        assert storage.findings == []
        assert (await contents(await storage.create(NAME)))[6:] == [b"new"]


async def test_acknowledgements_of_lost_entries_do_not_count_for_new_ones() -> None:
    disk, ends = await three_commits()
    storage = make(disk)
    await storage.open()
    log = await storage.create(NAME)
    cursor = log.cursors.open("s", 0)
    cursor.acknowledge([0, 5])
    await cursor.flush()
    left = await crashed(disk, storage)
    # The entries from ordinal 2 on are lost, also in the ledger files; the acknowledgement is not.
    left.files = {file: data for file, data in left.files.items() if not file.startswith("ledgers/")}
    left.files[JOURNAL] = left.files[JOURNAL][: ends[0]]
    async with opened(left) as storage:
        assert any("commits before it are missing" in finding.what for finding in storage.findings)
        log = await storage.create(NAME)
        (new,) = await put(log, b"new")
        assert new.ordinal == 2
        acks = log.cursors["s"].acks
        assert [ordinal for ordinal in range(10) if ordinal in acks] == [0]


async def test_a_sector_of_zeros_in_the_newest_commit_is_a_torn_write_and_no_damage() -> None:
    disk = DictDisk()
    storage = make(disk)
    await storage.open()
    log = await storage.create(NAME)
    await put(log, b"kept")
    end = len(disk.files[JOURNAL])
    await put(log, b"x" * 3000)
    left = await crashed(disk, storage)
    journal = left.files[JOURNAL]
    sector = end // 512 * 512 + 1024
    for bad, entries, reported in (
        (journal[:sector] + bytes(512) + journal[sector + 512 :], 1, False),
        (flip(journal, sector), 2, True),
    ):
        async with opened(DictDisk({**left.files, JOURNAL: bad})) as storage:
            log = await storage.create(NAME)
            assert log.extent.next_ordinal == entries
            assert bool(storage.findings) == reported


async def behind_the_journal() -> DictDisk:
    """Two entries that journal and ledger files hold, as a kill leaves them."""
    disk = DictDisk()
    storage = make(disk, behind_bytes=1)
    await storage.open()
    await put(await storage.create(NAME), b"first", b"second")
    await asyncio.sleep(1)
    return await crashed(disk, storage)


async def test_an_entry_that_is_damaged_in_the_journal_is_taken_from_the_ledger_file() -> None:
    disk = await behind_the_journal()
    disk.files[JOURNAL] = flip(disk.files[JOURNAL], disk.files[JOURNAL].index(b"second"))
    async with opened(disk) as storage:
        assert [finding.lost_entries for finding in storage.findings] == [0]
        assert await contents(await storage.create(NAME)) == [b"first", b"second"]


async def test_the_repair_of_a_lost_journal_survives_a_crash() -> None:
    disk = await behind_the_journal()
    del disk.files[JOURNAL]
    for number in range(2):
        storage = make(disk)
        await storage.open()
        assert bool(storage.findings) == (number == 0)
        log = storage.get(NAME)
        assert log is not None
        await put(log, b"later %d" % number)
        disk = await crashed(disk, storage)
    async with opened(disk) as storage:
        found = await contents(await storage.create(NAME))
        assert found == [b"first", b"second", b"later 0", b"later 1"]
