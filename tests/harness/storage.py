"""File storage on a disk in memory, and steps that tests of storage share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.storage import Entry, SegmentLog
from tests.fakes.disk import DictDisk

NAME = "segment://public/default/orders/0000-ffff-0"
OTHER = "persistent://public/default/other"
JOURNAL = "journal/00000001.log"


class FixedClock:
    """A clock that stands still."""

    def __init__(self, now_ms: int = 1) -> None:
        self._now_ms = now_ms

    def wall_ms(self) -> int:
        return self._now_ms


def make(disk: DictDisk, *, now_ms: int = 1_000, **limits: Any) -> FileStorage:
    return FileStorage(disk, clock=FixedClock(now_ms), limits=StorageLimits(**limits))


@asynccontextmanager
async def opened(disk: DictDisk, **limits: Any) -> AsyncIterator[FileStorage]:
    storage = make(disk, **limits)
    await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


async def crashed(disk: DictDisk, storage: FileStorage) -> DictDisk:
    """Return the disk as a process that is killed now leaves it."""
    left = DictDisk(disk.files)
    await storage.close()
    return left


async def three_commits() -> tuple[DictDisk, list[int]]:
    """A journal of three commits as a kill leaves it, and where each commit ends."""
    disk = DictDisk()
    storage = make(disk)
    await storage.open()
    log = await storage.create(NAME)
    ends = []
    for number in range(3):
        await put(log, b"a%d" % number, b"b%d" % number)
        ends.append(len(disk.files[JOURNAL]))
    return await crashed(disk, storage), ends


class Outcomes:
    """A callback for appends that keeps their places and errors."""

    def __init__(self) -> None:
        self.places: list[Entry] = []
        self.errors: list[BaseException] = []

    def __call__(self, place: Entry | None, error: BaseException | None) -> None:
        if place is not None:
            self.places.append(place)
        if error is not None:
            self.errors.append(error)


async def put(log: SegmentLog, *datas: bytes) -> list[Entry]:
    """Append all of `datas` in one commit."""
    outcomes = Outcomes()
    for data in datas:
        log.append(data, 1, 1000, outcomes)
    await log.flush()
    return outcomes.places


async def contents(log: SegmentLog) -> list[bytes]:
    return [entry.data for entry in await entries(log)]


async def entries(log: SegmentLog) -> Sequence[Entry]:
    found: list[Entry] = []
    while log.extent.first_ordinal + len(found) < log.extent.next_ordinal:
        found += await log.read(log.extent.first_ordinal + len(found), 100, 10_000)
    return found


def flip(data: bytes, at: int, bit: int = 0) -> bytes:
    """Return the data with one bit inverted."""
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
