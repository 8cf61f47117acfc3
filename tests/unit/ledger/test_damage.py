"""Flipped bits in ledger files cost the entry they hit, and only that one."""

from __future__ import annotations

import pytest

from anabranch.errors import CorruptDataError, DamagedEntriesError
from anabranch.ledger.storage import SegmentLog
from tests.fakes.disk import DictDisk
from tests.harness.storage import NAME, contents, flip, make, opened, put

FOLDER = "ledgers/segment~public~default~orders~0000-ffff-0"
DATA, INDEX = f"{FOLDER}/00000001.data", f"{FOLDER}/00000001.index"
RECORD_BYTES = 32 + 10


async def prepared() -> DictDisk:
    """Four entries in one ledger, cleanly closed."""
    disk = DictDisk()
    async with opened(disk) as storage:
        await put(await storage.create(NAME), *[b"payload %02d" % number for number in range(4)])
    return disk


async def readable(log: SegmentLog) -> list[int]:
    """Ordinals that can be read; the others raise an error that names them."""
    found = []
    for ordinal in range(log.extent.next_ordinal):
        text = ""
        try:
            (entry,) = await log.read(ordinal, 1, 1000)
        except CorruptDataError as error:
            text = str(error)
        if text:
            assert NAME in text
            assert f"1:{ordinal}" in text
        else:
            assert entry.data == (b"payload %02d" % ordinal if ordinal < 4 else b"in the journal")
            found.append(ordinal)
    return found


async def test_a_flipped_bit_costs_one_entry() -> None:
    disk = await prepared()
    whole = disk.files[DATA]
    for at in range(RECORD_BYTES, 2 * RECORD_BYTES):
        disk.files[DATA] = flip(whole, at, at % 8)
        async with opened(disk) as storage:
            log = storage.get(NAME)
            assert log is not None
            assert await readable(log) == [0, 2, 3], at


async def test_a_read_that_meets_damage_gives_what_lies_before_it() -> None:
    disk = await prepared()
    disk.files[DATA] = flip(disk.files[DATA], 2 * RECORD_BYTES + 40)
    async with opened(disk) as storage:
        log = storage.get(NAME)
        assert log is not None
        assert [entry.ordinal for entry in await log.read(0, 100, 10_000)] == [0, 1]
        with pytest.raises(CorruptDataError):
            await log.read(2, 100, 10_000)
        assert [entry.ordinal for entry in await log.read(3, 100, 10_000)] == [3]


async def test_chosen_entries_end_before_damage_and_pass_damage_that_was_not_chosen() -> None:
    disk = await prepared()
    disk.files[DATA] = flip(disk.files[DATA], 2 * RECORD_BYTES + 40)
    async with opened(disk) as storage:
        log = storage.get(NAME)
        assert log is not None
        assert [entry.ordinal for entry in await log.read_each([0, 1, 3], 1000)] == [0, 1, 3]
        assert [entry.ordinal for entry in await log.read_each([0, 2, 3], 1000)] == [0]
        with pytest.raises(DamagedEntriesError) as raised:
            await log.read_each([2, 3], 1000)
        assert (raised.value.first, raised.value.end) == (2, 3)
        assert [entry.ordinal for entry in await log.read_each([3], 1000)] == [3]


async def test_swapped_records_are_both_refused() -> None:
    disk = await prepared()
    whole = disk.files[DATA]
    first, second = whole[:RECORD_BYTES], whole[RECORD_BYTES : 2 * RECORD_BYTES]
    disk.files[DATA] = second + first + whole[2 * RECORD_BYTES :]
    async with opened(disk) as storage:
        log = storage.get(NAME)
        assert log is not None
        assert await readable(log) == [2, 3]


async def test_a_damaged_index_is_rebuilt_from_the_records() -> None:
    disk = await prepared()
    whole = disk.files[INDEX]
    for wrong in (b"", whole[:-1], *(flip(whole, at) for at in range(len(whole)))):
        disk.files[INDEX] = wrong
        async with opened(disk) as storage:
            log = storage.get(NAME)
            assert log is not None
            assert await contents(log) == [b"payload %02d" % number for number in range(4)]
        assert disk.files[INDEX] == whole
    del disk.files[INDEX]
    async with opened(disk) as storage:
        log = storage.get(NAME)
        assert log is not None
        assert len(await contents(log)) == 4


async def test_lost_bytes_at_the_end_of_a_data_file_cost_the_entries_there() -> None:
    disk = await prepared()
    disk.files[DATA] = disk.files[DATA][: -RECORD_BYTES - 1]
    async with opened(disk) as storage:
        log = storage.get(NAME)
        assert log is not None
        assert await readable(log) == [0, 1]
        assert [finding.lost_entries for finding in storage.findings] == [2]


async def test_a_lost_data_file_costs_its_entries_and_those_in_the_journal_are_written_again() -> None:
    disk = await prepared()
    storage = make(disk)
    await storage.open()
    await put(await storage.create(NAME), b"in the journal")
    await storage.close(hastily=True)
    for file in [file for file in disk.files if file.endswith(".data")]:
        del disk.files[file]
    async with opened(disk) as again:
        log = await again.create(NAME)
        assert await readable(log) == [4]
        assert [finding.lost_entries for finding in again.findings] == [4]


async def test_a_ledger_that_is_lost_altogether_costs_itself_only() -> None:
    disk = await prepared()
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        await put(log, b"later")
    del disk.files[DATA], disk.files[INDEX]
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        assert (log.extent.first_ordinal, log.extent.next_ordinal, log.extent.next_index) == (0, 5, 5)
        with pytest.raises(DamagedEntriesError, match="1:0") as caught:
            await log.read(0, 1, 1000)
        assert (caught.value.first, caught.value.end, caught.value.messages) == (0, 4, 4)
        assert log.extent.index_of(4) == 4
        assert sum(finding.lost_entries for finding in storage.findings) == 4
        assert [entry.data for entry in await log.read(4, 1, 1000)] == [b"later"]
        await put(log, b"and more")
        assert log.extent.next_ordinal == 6
        await log.trim(4)
        assert log.extent.first_ordinal == 4
        assert await contents(log) == [b"later", b"and more"]


async def test_damage_is_reported_once_although_nothing_is_written_after_it() -> None:
    disk = await prepared()
    del disk.files[DATA], disk.files[INDEX]
    async with opened(disk) as storage:
        assert storage.findings
    async with opened(disk) as storage:
        assert storage.findings == []
        log = storage.get(NAME)
        assert log is not None
        assert log.extent.next_ordinal == 4
        with pytest.raises(DamagedEntriesError):
            await log.read(0, 1, 1000)
