"""Checks or repairs the store in a directory that no process is serving.

Both recover the store as its next owner would, and then read every entry. A check changes no file.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.clock import Clock
from anabranch.errors import CorruptDataError, PersistenceError
from anabranch.ledger.disks.disk import Disk
from anabranch.ledger.disks.overlay_disk import OverlayDisk
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.findings import Finding, StoreReport
from anabranch.ledger.storage import SegmentLog

_READ_ENTRIES = 10_000
_READ_BYTES = 4 * 1024 * 1024


async def check_store(disk: Disk, clock: Clock) -> StoreReport:
    """Report all damage of the store. Raises HeldError if a process is serving it. Closes the disk."""
    return await _inspect(FileStorage(OverlayDisk(disk), clock=clock, rebuild=True), keep=False)


async def repair_store(disk: Disk, clock: Clock) -> StoreReport:
    """Rebuild everything that can be rebuilt, and report what was damaged and which entries are lost."""
    return await _inspect(FileStorage(disk, clock=clock, rebuild=True), keep=True)


async def _inspect(storage: FileStorage, *, keep: bool) -> StoreReport:
    await storage.open()
    try:
        # Lost entries keep their places, so reading the log finds each of them once.
        findings = [replace(finding, lost_entries=0) for finding in storage.findings]
        entries = 0
        names = (*storage.names(), *storage.side_names())
        for name in names:
            log = storage.get(name)
            assert log is not None
            entries += log.extent.next_ordinal - log.extent.first_ordinal
            findings += await _read_all(log)
        return StoreReport(storage.store_id, len(names), entries, tuple(findings))
    finally:
        await storage.close(hastily=not keep)


async def _read_all(log: SegmentLog) -> list[Finding]:
    found: list[Finding] = []
    at = log.extent.first_ordinal
    while at < log.extent.next_ordinal:
        try:
            at = (await log.read(at, _READ_ENTRIES, _READ_BYTES))[-1].ordinal + 1
        except (CorruptDataError, PersistenceError) as error:
            position = log.extent.position_of(at)
            found.append(Finding(f"ledger {position.ledger}", str(error), 1, log.name))
            at += 1
    return found
