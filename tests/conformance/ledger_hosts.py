"""The storages that the ledger suite runs on, and helpers to write and read a log."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from anabranch.clock import SystemClock
from anabranch.ledger.disks.os_disk import OsDisk
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.memory import MemoryStorage
from anabranch.ledger.storage import Entry, SegmentLog, SegmentStorage
from simulation.world.disk import SimDisk
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.platter import Platter
from simulation.world.process import SimProcess

NAME = "segment://public/default/orders/0000-ffff-0"
OTHER = "persistent://public/default/orders"
DATA = b"0123456789"
LEDGER_ENTRIES = 4
LEDGER_BYTES = LEDGER_ENTRIES * (32 + len(DATA))


class StorageHost(Protocol):
    """A place at which one process after another opens the same storage."""

    def make(self) -> SegmentStorage: ...


class MemoryHost:
    def __init__(self) -> None:
        self._storage = MemoryStorage(ledger_entries_max=LEDGER_ENTRIES)

    def make(self) -> SegmentStorage:
        return self._storage


class FilesHost:
    def __init__(self, root: Path) -> None:
        self._root = root

    def make(self) -> SegmentStorage:
        return FileStorage(
            OsDisk(self._root),
            clock=SystemClock(),
            limits=StorageLimits(cache_bytes=500, ledger_bytes_max=LEDGER_BYTES),
        )


class SimHost:
    """Limits so small that every append rolls, flushes and checkpoints something."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._platter = Platter(loop)

    def make(self) -> SegmentStorage:
        return FileStorage(
            SimDisk(self._platter, SimProcess(self._loop, "storage")),
            clock=SimClock(self._loop),
            limits=StorageLimits(
                cache_bytes=0, journal_bytes_max=400, ledger_bytes_max=LEDGER_BYTES, behind_bytes=1
            ),
        )


class Run:
    """An open storage, and a way to close it and open it again."""

    def __init__(self, host: StorageHost) -> None:
        self._host = host
        self.storage = host.make()

    async def reopen(self) -> SegmentStorage:
        await self.storage.close()
        self.storage = self._host.make()
        await self.storage.open()
        return self.storage

    async def reopened_log(self) -> SegmentLog:
        log = (await self.reopen()).get(NAME)
        assert log is not None
        return log


async def put(log: SegmentLog, *datas: bytes, count: int = 1, timestamp_ms: int = 1000) -> list[Entry]:
    """Append and wait until durable."""
    places: list[Entry] = []

    def done(place: Entry | None, error: BaseException | None) -> None:
        assert error is None
        assert place is not None
        places.append(place)

    for data in datas:
        log.append(data, count, timestamp_ms, done)
    await log.flush()
    assert len(places) == len(datas)
    return places


async def read_all(log: SegmentLog) -> list[Entry]:
    found: list[Entry] = []
    at = log.extent.first_ordinal
    while at < log.extent.next_ordinal:
        part = await log.read(at, 3, 1000)
        assert part[0].ordinal == at
        found += part
        at = found[-1].ordinal + 1
    return found
