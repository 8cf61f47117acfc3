"""Shows, checks or repairs a data directory that no process serves."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from anabranch.clock import SystemClock
from anabranch.data.cross_check import LogView, cross_check
from anabranch.data.directory import METADATA_FILE, STORES
from anabranch.errors import CorruptDataError
from anabranch.ledger.disks.os_disk import OsDisk
from anabranch.ledger.disks.overlay_disk import OverlayDisk
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.findings import Finding, StoreReport
from anabranch.ledger.recovery.store_check import check_store, repair_store
from anabranch.ledger.storage import SegmentLog
from anabranch.metadata.sqlite.sqlite_check import (
    MetadataFinding,
    check_metadata,
    read_state,
    repair_metadata,
)
from anabranch.model.log_names.side_logs import LOG, SUBSCRIPTION, is_side_log


class ShownLog(NamedTuple):
    """The outside of one log."""

    name: str
    entries: int
    messages: int
    size_bytes: int
    sealed: bool
    subscriptions: tuple[str, ...]
    spilled_from: str = ""
    """For a side log, the log and the subscription that its entries belong to."""


def store_numbers(root: Path) -> list[int]:
    folder = root / STORES
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def inspect_metadata(root: Path, *, repair: bool) -> tuple[MetadataFinding, ...]:
    """Check both copies of the metadata, or rebuild one from the other."""
    file = root / METADATA_FILE
    return repair_metadata(file, may_begin=False) if repair else check_metadata(file)


async def inspect_store(root: Path, number: int, *, repair: bool) -> StoreReport:
    """Check one store, or repair it; a store that cannot be opened is one finding."""
    disk = OsDisk(root / STORES / str(number))
    try:
        return await (repair_store if repair else check_store)(disk, SystemClock())
    except CorruptDataError as error:
        return StoreReport(0, 0, 0, (Finding(f"{STORES}/{number}", f"the store cannot be opened: {error}"),))


async def show_store(root: Path, number: int) -> list[ShownLog]:
    """The logs of one store, side logs last; no file is changed."""
    disk = OverlayDisk(OsDisk(root / STORES / str(number)))
    storage = FileStorage(disk, clock=SystemClock())
    await storage.open()
    try:
        names = (*storage.names(), *storage.side_names())
        return [_shown(log) for name in names if (log := storage.get(name)) is not None]
    finally:
        await storage.close(hastily=True)


async def disagreements(root: Path) -> list[str]:
    """Places where the records of topics and the logs of the stores disagree; no file is changed."""
    logs = {}
    for number in store_numbers(root):
        with suppress(CorruptDataError):
            shown = await show_store(root, number)
            logs[number] = {
                log.name: LogView(log.sealed, frozenset(log.subscriptions))
                for log in shown
                if not log.spilled_from
            }
    return cross_check(read_state(root / METADATA_FILE), logs)


def _shown(log: SegmentLog) -> ShownLog:
    extent = log.extent
    entries = extent.next_ordinal - extent.first_ordinal
    if is_side_log(log.name):
        # The indexes of a side log count the entries of its log, not messages.
        origins = (f"{c.properties.get(LOG)} {c.properties.get(SUBSCRIPTION)}" for c in log.cursors.values())
        return ShownLog(log.name, entries, 0, extent.size_bytes, log.sealed, (), next(origins, "unknown"))
    return ShownLog(
        log.name,
        entries,
        extent.next_index - extent.first_index,
        extent.size_bytes,
        log.sealed,
        tuple(sorted(log.cursors)),
    )
