"""The files of deleted and trimmed logs go once the change is durable, whether or not a caller waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from anabranch.errors import StorageFullError
from anabranch.ledger.file_storage import FileStorage
from tests.fakes.disk import DictDisk
from tests.harness.storage import NAME, contents, opened, put

Drop = Callable[[FileStorage], Awaitable[None]]


async def delete(storage: FileStorage) -> None:
    await storage.delete(NAME)


async def trim(storage: FileStorage) -> None:
    log = storage.get(NAME)
    assert log is not None
    await log.trim(3)


DROPS = pytest.mark.parametrize(("drop", "left"), [(delete, 0), (trim, 1)])


def data_files(disk: DictDisk) -> int:
    return sum(file.endswith(".data") for file in disk.files)


async def fill(storage: FileStorage) -> None:
    """Store four ledgers of one entry each, and write their files."""
    log = await storage.create(NAME)
    for number in range(4):
        await put(log, b"%d" % number)
    await storage.checkpoint()


@DROPS
async def test_files_go_when_a_full_disk_has_room_again(drop: Drop, left: int) -> None:
    disk = DictDisk()
    async with opened(disk, ledger_bytes_max=1) as storage:
        await fill(storage)
        disk.capacity = disk.used
        with pytest.raises(StorageFullError):
            await drop(storage)
        await asyncio.sleep(5)
        assert data_files(disk) == 4, "the change is not durable yet"
        disk.capacity = 2**50
        await asyncio.sleep(5)
        assert data_files(disk) == left


@DROPS
async def test_files_go_although_the_caller_gave_up(drop: Drop, left: int) -> None:
    disk = DictDisk()
    async with opened(disk, ledger_bytes_max=1) as storage:
        await fill(storage)
        disk.gate = asyncio.Event()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(drop(storage), 1)
        assert data_files(disk) == 4
        disk.gate.set()
        await asyncio.sleep(1)
        assert data_files(disk) == left


@DROPS
async def test_files_are_gone_when_the_call_returns(drop: Drop, left: int) -> None:
    disk = DictDisk()
    async with opened(disk, ledger_bytes_max=1) as storage:
        await fill(storage)
        await drop(storage)
        assert data_files(disk) == left
        log = await storage.create(NAME)
        await put(log, b"after")
        assert (await contents(log))[-1] == b"after"
