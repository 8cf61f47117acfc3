"""A full disk: entries are refused, everything else goes on, and so do entries once there is room."""

from __future__ import annotations

import asyncio
import random

import pytest

from anabranch.errors import StorageFullError
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.space import Levels, is_full
from anabranch.ledger.storage import SegmentLog
from simulation.world.disk import SimDisk
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.platter import Platter
from simulation.world.process import SimProcess
from tests.fakes.disk import DictDisk
from tests.harness.storage import NAME, OTHER, Outcomes, contents, make, opened, put

PAYLOAD = bytes(1000)
CAPACITY = 400_000


def test_a_store_stops_before_the_disk_is_full_and_goes_on_with_a_margin() -> None:
    levels = Levels.of(total_bytes=2**40, wanted_bytes=64 * 2**20)
    assert levels.stop == 64 * 2**20
    assert not is_full(levels.stop, 0, levels, was_full=False)
    assert is_full(levels.stop, 1, levels, was_full=False), "bytes owed to ledger files need room too"
    assert is_full(levels.resume - 1, 0, levels, was_full=True)
    assert not is_full(levels.resume, 0, levels, was_full=True)


def test_a_small_disk_keeps_a_small_reserve() -> None:
    levels = Levels.of(total_bytes=8 * 2**20, wanted_bytes=64 * 2**20)
    assert levels.stop == 2**19
    assert levels.stop + levels.held < 2**20
    assert levels.resume < 2**20


async def fill(log: SegmentLog) -> list[bytes]:
    """Append until the store stays full; returns the payloads that were confirmed."""
    confirmed: list[bytes] = []
    for number in range(10_000):
        payload = b"%06d " % number + PAYLOAD
        outcomes = Outcomes()
        try:
            log.append(payload, 1, 1000, outcomes)
            await log.flush()
        except StorageFullError:
            pass
        if outcomes.places:
            confirmed.append(payload)
        else:
            # A checkpoint may make room.
            await asyncio.sleep(3)
            if log.full is not None:
                return confirmed
    raise AssertionError("the disk never became full")


def small_disk() -> DictDisk:
    disk = DictDisk()
    disk.capacity = CAPACITY
    return disk


@pytest.mark.parametrize("reserve_bytes", [0, 2**20])
async def test_a_full_store_refuses_entries_and_takes_all_other_changes(reserve_bytes: int) -> None:
    disk = small_disk()
    async with opened(disk, reserve_bytes=reserve_bytes, cache_bytes=0, behind_bytes=20_000) as storage:
        log, other = await storage.create(NAME), await storage.create(OTHER)
        cursor = log.cursors.open("s", 0)
        confirmed = await fill(log)
        assert confirmed
        assert storage.full is not None
        assert storage.full == log.full
        with pytest.raises(StorageFullError):
            log.append(b"more", 1, 1000, Outcomes())
        cursor.acknowledge(list(range(10)))
        await cursor.flush()
        await other.seal()
        await storage.create("persistent://public/default/made-on-a-full-disk")
        assert await contents(log) == confirmed
    left = DictDisk(disk.files)
    left.capacity = CAPACITY
    async with opened(left, reserve_bytes=reserve_bytes) as again:
        found = again.get(NAME)
        assert found is not None
        assert await contents(found) == confirmed
        assert found.cursors["s"].acks.mark == 10
        assert again.get("persistent://public/default/made-on-a-full-disk") is not None


async def test_a_store_that_was_full_goes_on_by_itself_and_holds_its_reserve_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    disk = small_disk()
    async with opened(disk, reserve_bytes=2**20, behind_bytes=20_000) as storage:
        log = await storage.create(NAME)
        confirmed = await fill(log)
        held = disk.reserved
        assert held > 0
        await asyncio.sleep(30)
        assert storage.full is not None
        disk.capacity *= 2
        await asyncio.sleep(5)
        assert storage.full is None
        (place,) = await put(log, b"again")
        assert place.ordinal == len(confirmed)
        assert await contents(log) == [*confirmed, b"again"]
        await asyncio.sleep(5)
        assert disk.reserved >= held
    lines = [line for line in caplog.messages if "takes" in line]
    assert ["again" in line for line in lines] == [False, True] * (len(lines) // 2), (
        "one line for each change"
    )
    assert len(lines) <= 6


async def test_deleting_a_log_makes_room_for_the_others() -> None:
    disk = small_disk()
    async with opened(disk, reserve_bytes=2**20, behind_bytes=20_000) as storage:
        log, other = await storage.create(NAME), await storage.create(OTHER)
        await fill(log)
        await storage.delete(NAME)
        await asyncio.sleep(10)
        assert storage.full is None
        await put(other, b"after")
        assert await contents(other) == [b"after"]


async def test_trimming_makes_room() -> None:
    disk = small_disk()
    async with opened(disk, reserve_bytes=2**20, behind_bytes=10_000, ledger_bytes_max=20_000) as storage:
        log = await storage.create(NAME)
        confirmed = await fill(log)
        await log.trim(len(confirmed) - 1)
        await asyncio.sleep(10)
        assert storage.full is None
        await put(log, b"after")


async def test_a_commit_that_finds_no_room_rejects_its_entries_and_stores_its_changes() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        await put(log, b"0", b"1")
        cursor = log.cursors.open("s", 0)
        disk.capacity = disk.used + 300
        outcomes = Outcomes()
        log.append(PAYLOAD, 1, 1000, outcomes, "producer", 7)
        cursor.acknowledge([0])
        await cursor.flush()
        assert [type(error) for error in outcomes.errors] == [StorageFullError]
        assert log.sequences.own == {}
        disk.capacity = 2**50
        await asyncio.sleep(60)
        (place,) = await put(log, b"2")
        assert (place.ordinal, place.index) == (2, 2)
        assert place.position.ledger > 1, "the place of a rejected entry is never used"
        assert await contents(log) == [b"0", b"1", b"2"]
    async with opened(DictDisk(disk.files)) as again:
        found = again.get(NAME)
        assert found is not None
        assert await contents(found) == [b"0", b"1", b"2"]
        assert found.cursors["s"].acks.mark == 1


async def test_changes_without_any_room_fail_at_once_and_are_stored_later() -> None:
    disk = DictDisk()
    storage = make(disk)
    await storage.open()
    log = await storage.create(NAME)
    await put(log, b"0")
    cursor = log.cursors.open("s", 0)
    await cursor.flush()
    disk.capacity = disk.used
    cursor.acknowledge([0])
    with pytest.raises(StorageFullError):
        await cursor.flush()
    disk.capacity = 2**50
    await asyncio.sleep(5)
    await cursor.flush()
    left = DictDisk(disk.files)
    await storage.close()
    async with opened(left) as again:
        found = again.get(NAME)
        assert found is not None
        assert found.cursors["s"].acks.mark == 1


async def crash_when_full(reserve_bytes: int) -> tuple[DictDisk, list[bytes]]:
    """The disk of a process that was killed when its store was full."""
    disk = small_disk()
    storage = make(disk, reserve_bytes=reserve_bytes, behind_bytes=100_000)
    await storage.open()
    confirmed = await fill(await storage.create(NAME))
    left = DictDisk(disk.files)
    left.capacity, left.reserved = disk.capacity, disk.reserved
    await storage.close(hastily=True)
    return left, confirmed


@pytest.mark.parametrize("reserve_bytes", [0, 2**20])
async def test_a_store_opens_on_a_full_disk(reserve_bytes: int) -> None:
    left, confirmed = await crash_when_full(reserve_bytes)
    # Recovery cuts ledger files back to the last checkpoint, and must not find room for them again.
    left.capacity = left.used - sum(len(left.files[name]) for name in left.files if "ledgers" in name)
    async with opened(left, reserve_bytes=reserve_bytes) as storage:
        log = storage.get(NAME)
        assert log is not None
        assert storage.full is not None or not reserve_bytes
        assert await contents(log) == confirmed, "entries that no file has room for are read from memory"
        assert [entry.data for entry in await log.read(7, 2, 10**6)] == confirmed[7:9]
        left.capacity = 2**50
        await asyncio.sleep(60)
        await put(log, b"after")
        await storage.checkpoint()
        assert await contents(log) == [*confirmed, b"after"]
    async with opened(left) as again:
        found = again.get(NAME)
        assert found is not None
        assert await contents(found) == [*confirmed, b"after"]


async def test_a_checkpoint_on_a_full_disk_returns_and_loses_nothing() -> None:
    disk = DictDisk()
    storage: FileStorage = make(disk)
    await storage.open()
    log = await storage.create(NAME)
    stored = [b"%d" % number for number in range(20)]
    await put(log, *stored)
    disk.capacity = disk.used
    async with asyncio.timeout(5):
        await storage.checkpoint()
        await storage.close()
    async with opened(DictDisk(disk.files)) as again:
        found = again.get(NAME)
        assert found is not None
        assert await contents(found) == stored


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_confirmed_is_lost_while_the_disk_is_full_now_and_then(seed: int) -> None:
    rng = random.Random(seed)
    disk = small_disk()
    confirmed: list[bytes] = []
    for life in range(3):
        storage = make(disk, reserve_bytes=2**20, behind_bytes=5_000, journal_bytes_max=30_000)
        await storage.open()
        log = await storage.create(NAME)
        assert await contents(log) == confirmed
        for number in range(60):
            data = b"%d %d " % (life, number) + bytes(rng.randrange(3_000))
            outcomes = Outcomes()
            try:
                log.append(data, 1, 1000, outcomes)
                await log.flush()
            except StorageFullError:
                pass
            confirmed += [data] * len(outcomes.places)
            if rng.random() < 0.1:
                disk.capacity = rng.choice([disk.used, disk.used + 2_000, 10 * CAPACITY])
            if rng.random() < 0.2:
                await asyncio.sleep(rng.uniform(0, 5))
        assert await contents(log) == confirmed
        if rng.random() < 0.5:
            left = DictDisk(disk.files)
            left.capacity, left.reserved = disk.capacity, disk.reserved
            await storage.close(hastily=True)
            disk = left
        else:
            await storage.close()


async def test_a_small_simulated_disk_fills_and_goes_on(loop: SimLoop) -> None:
    platter = Platter(loop)
    platter.capacity_bytes = CAPACITY
    storage = FileStorage(SimDisk(platter, SimProcess(loop, "storage")), clock=SimClock(loop))
    await storage.open()
    log = await storage.create(NAME)
    confirmed = await fill(log)
    platter.capacity_bytes *= 4
    await asyncio.sleep(60)
    await put(log, b"more")
    assert await contents(log) == [*confirmed, b"more"]
    await storage.close()
