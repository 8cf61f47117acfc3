"""Entries are read from memory at the tail, and in large blocks behind it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest

from anabranch.errors import PersistenceError
from anabranch.ledger.cache import Block, Cache, CachedTail, ReadAhead
from anabranch.ledger.storage import Entry, SegmentLog
from anabranch.model.ids import Position
from tests.fakes.disk import DictDisk
from tests.harness.storage import NAME, contents, opened, put


async def settle(log: SegmentLog) -> None:
    """Let write-behind finish; on this disk a few turns of the loop are enough."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_tailing_readers_do_not_touch_the_disk() -> None:
    disk = DictDisk()
    async with opened(disk, behind_bytes=1) as storage:
        log = await storage.create(NAME)
        for number in range(200):
            await put(log, b"%d" % number)
            cached = log.read_cached(number, 10, 1000)
            assert cached is not None
            assert [entry.data for entry in cached] == [b"%d" % number]
        assert len(await contents(log)) == 200
        before = disk.count("read")
        assert len(await contents(log)) == 200
        assert disk.count("read") == before


async def test_a_catching_up_reader_touches_the_disk_once_a_block() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        await put(log, *[b"%04d" % number for number in range(1000)])
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        assert log.read_cached(0, 10, 1000) is None
        before = disk.count("read")
        at = 0
        while at < 1000:
            part = await log.read(at, 7, 1000)
            assert [entry.data for entry in part] == [b"%04d" % (at + n) for n in range(len(part))]
            at += len(part)
        assert disk.count("read") == before + 1


async def test_neighbours_among_chosen_entries_share_one_access_to_the_disk() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        await put(log, *[b"%04d" % number + bytes(1000) for number in range(400)])
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        for chosen, accesses in ((range(0, 400, 10), 1), ([5, 6, 7], 1), ([0, 100, 101, 300], 3)):
            before = disk.count("read")
            found = await log.read_each(list(chosen), 10**6)
            assert [entry.ordinal for entry in found] == list(chosen)
            assert disk.count("read") == before + accesses
        found = await log.read_each(list(range(0, 400, 40)), 10**6)
        assert [entry.ordinal for entry in found] == list(range(0, 400, 40))


async def test_chosen_entries_come_from_memory_at_the_tail() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        await put(log, *[b"%04d" % number for number in range(10)])
        before = disk.count("read")
        found = log.read_each_cached([2, 7], 1000)
        assert found is not None
        assert [entry.data for entry in found] == [b"0002", b"0007"]
        assert [entry.data for entry in await log.read_each([3, 9], 1000)] == [b"0003", b"0009"]
        assert disk.count("read") == before
        log.release()
        assert log.read_each_cached([2, 7], 1000) is None
        assert [entry.ordinal for entry in await log.read_each([2, 7], 1000)] == [2, 7]


async def test_two_readers_at_different_places_do_not_disturb_each_other() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        await put(log, *[b"%04d" % number for number in range(100)])
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        before = disk.count("read")
        for at in range(0, 50, 5):
            for start in (at, at + 50):
                part = await log.read(start, 5, 1000)
                assert [entry.ordinal for entry in part] == list(range(start, start + 5))
        assert disk.count("read") == before + 2


async def test_memory_stays_bounded_and_everything_stays_readable() -> None:
    disk = DictDisk()
    async with opened(disk, cache_bytes=120_000, behind_bytes=1000) as storage:
        log = await storage.create(NAME)
        for _ in range(50):
            await put(log, *[bytes(100)] * 10)
            await settle(log)
        in_memory = [at for at in range(500) if log.read_cached(at, 1, 1000) is not None]
        assert 100 * len(in_memory) <= 120_000
        assert len(await contents(log)) == 500
        assert log.read_cached(0, 1, 1000) is None
        assert log.read_cached(499, 1, 1000) is not None


async def test_entries_that_no_file_holds_stay_in_memory_beyond_the_bound() -> None:
    async with opened(DictDisk(), cache_bytes=0, behind_bytes=10**9) as storage:
        log = await storage.create(NAME)
        await put(log, *[bytes(100)] * 500)
        found = log.read_cached(0, 1000, 10**6)
        assert found is not None
        assert len(found) == 500


async def test_a_reader_of_a_ledger_that_is_trimmed_meanwhile_goes_on_behind_it() -> None:
    disk = DictDisk()
    async with opened(disk, ledger_bytes_max=1) as storage:
        log = await storage.create(NAME)
        await put(log, b"0", b"1", b"2")
    async with opened(disk, ledger_bytes_max=1) as storage:
        log = await storage.create(NAME)

        async def read_late() -> list[bytes]:
            return [entry.data for entry in await log.read(0, 1, 100)]

        for turns in range(12):
            reading = asyncio.ensure_future(read_late())
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns == 3:
                await log.trim(1)
            assert await reading in ([b"0"], [b"1"])
        assert await read_late() == [b"1"]


async def test_chosen_entries_that_are_trimmed_during_the_read_are_left_out() -> None:
    disk = DictDisk()
    async with opened(disk, ledger_bytes_max=1) as storage:
        log = await storage.create(NAME)
        await put(log, b"0", b"1", b"2", b"3")
    async with opened(disk, ledger_bytes_max=1) as storage:
        log = await storage.create(NAME)
        for turns in range(12):
            reading = asyncio.ensure_future(log.read_each([0, 2, 3], 100))
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns == 3:
                await log.trim(2)
            assert [entry.ordinal for entry in await reading] in ([0, 2, 3], [2, 3])
        assert [entry.ordinal for entry in await log.read_each([0, 2, 3], 100)] == [2, 3]


def entry(ordinal: int, size: int = 10) -> Entry:
    return Entry(Position(1, ordinal), ordinal, ordinal, 1, 0, bytes(size))


def test_the_oldest_chunk_of_all_logs_is_dropped_first() -> None:
    cache = Cache(4 * 10**6)
    tails = [CachedTail(cache), CachedTail(cache)]
    for at in range(4):
        # Each entry fills a chunk, so the next entry begins another one.
        tails[at % 2].extend([entry(at // 2)], 10**6)
    for tail in tails:
        tail.flushed = 10
    cache.shrink()
    assert tails[0].read(0, 1, 100) is None
    assert tails[1].read(0, 1, 100) is not None


def test_a_dropped_log_does_not_hold_up_the_others() -> None:
    cache = Cache(0)
    gone, kept = CachedTail(cache), CachedTail(cache)
    gone.extend([entry(0)], 10)
    kept.extend([entry(0)], 10)
    kept.flushed = 1
    gone.drop()
    cache.shrink()
    assert cache.size_bytes == 0
    assert kept.read(0, 1, 100) is None


@pytest.mark.parametrize("behind_bytes", [1, 2**20])
async def test_a_deleted_log_leaves_nothing_in_memory(behind_bytes: int) -> None:
    async with opened(DictDisk(), behind_bytes=behind_bytes) as storage:
        log = await storage.create(NAME)
        await put(log, *[bytes(1000) for _ in range(300)])
        await settle(log)
        tail = weakref.ref(log.stored.tail)
        await storage.delete(NAME)
        del log
        gc.collect()
        assert tail() is None


def test_a_block_is_found_where_its_reader_stopped() -> None:
    ahead = ReadAhead(blocks_max=2)
    block = Block(100, bytes(50))
    ahead.put(1, 120, block)
    assert ahead.take(1, 110, 120) is None
    assert ahead.take(1, 120, 150) is block
    assert ahead.take(1, 120, 150) is None
    ahead.put(1, 120, block)
    assert ahead.take(1, 120, 151) is None
    ahead.put(1, 150, block)
    assert ahead.take(1, 150, 150) is None
    for stopped in (101, 102, 103):
        ahead.put(1, stopped, block)
    assert ahead.take(1, 101, 120) is None
    ahead.forget([1])
    assert ahead.take(1, 103, 120) is None


async def test_a_disk_that_cannot_be_read_is_an_error_of_ours() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        await put(await storage.create(NAME), b"x")
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        for file in [file for file in disk.files if file.endswith(".data")]:
            del disk.files[file]
        with pytest.raises(PersistenceError, match="data cannot be read"):
            await log.read(0, 1, 100)


async def test_a_file_that_cannot_be_deleted_costs_space_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Clinging(DictDisk):
        async def delete(self, files: Sequence[str]) -> None:
            raise OSError("clinging")

    disk = Clinging()
    async with opened(disk, ledger_bytes_max=1) as storage:
        log = await storage.create(NAME)
        await put(log, b"0", b"1")
        await log.trim(1)
        assert log.extent.first_ordinal == 1
    assert "the next start will try again" in caplog.text
    left = DictDisk(disk.files)
    async with opened(left) as storage:
        log = await storage.create(NAME)
        assert await contents(log) == [b"1"]
    assert [file for file in left.files if file.startswith("journal/") or "00000001" in file] == []
