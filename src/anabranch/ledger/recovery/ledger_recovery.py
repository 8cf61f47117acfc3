"""Recovers the ledger files: compares them with the catalog and the journal, and rebuilds one from the other.

Recovery trusts ledger files up to the size that the catalog recorded as synced, and writes later entries
again from the journal. Only committed entries reach these files, so entries beyond the end of the journal
show that the journal lost its own end; these entries are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.ledger.disks.disk import Disk
from anabranch.ledger.findings import Finding
from anabranch.ledger.format.catalog import Catalog, LedgerRecord
from anabranch.ledger.format.commits import Contents, LogDeleted, LogTrimmed
from anabranch.ledger.format.index_head import decode_index_head
from anabranch.ledger.format.records import (
    ROW_BYTES,
    Rows,
    RowStart,
    checksum,
    decode_record,
    rebuild_rows,
    seed,
)
from anabranch.ledger.format.salvage import DamagedEntry
from anabranch.ledger.ledger_files import files_of
from anabranch.ledger.ledgers import FOLDER, Ledger
from anabranch.ledger.recovery.spares import Spares
from anabranch.ledger.stored_log import StoredLog

_AT_ONCE = 64
_ZEROS = bytes(1024 * 1024)


@dataclass
class JournalFacts:
    """Facts about ledgers that the journal contains."""

    sizes: dict[int, int] = field(default_factory=dict)
    """The size of each ledger's data file once all journal entries are in it."""
    gaps: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Byte ranges of data files whose commits are missing before later commits of the same ledger."""
    trimmed: dict[int, int] = field(default_factory=dict)
    """The ordinal below which each log was trimmed."""
    deleted: set[int] = field(default_factory=set)
    next_ledger: int = 0

    def note(self, contents: Contents) -> None:
        """Take over the facts from one commit."""
        for change in contents.changes:
            if isinstance(change, LogDeleted):
                self.deleted.add(change.log)
            elif isinstance(change, LogTrimmed):
                self.trimmed[change.log] = max(change.ordinal, self.trimmed.get(change.log, 0))
        for group in contents.groups:
            start = group.start.size_bytes
            before = self.sizes.get(group.ledger, 0)
            if start > before:
                self.gaps.setdefault(group.ledger, []).append((before, start))
            self.sizes[group.ledger] = start + group.size_bytes
            self.next_ledger = max(self.next_ledger, group.ledger + 1)


class LedgerRecovery:
    """The ledger files of one store during its recovery."""

    def __init__(self, disk: Disk, sizes: Mapping[str, int]) -> None:
        self._disk = disk
        self._sizes = dict(sizes)
        self._wanted: dict[str, int] = {}
        self._found: list[tuple[Ledger, Finding]] = []

    @property
    def findings(self) -> list[Finding]:
        """Return the damage of ledgers that still exist after the replay."""
        return [finding for ledger, finding in self._found if not ledger.dropped]

    @property
    def next_ledger(self) -> int:
        """Return a number above those of all ledgers that have a file."""
        return max((_ledger_of(file) for file in self._files()), default=0) + 1

    async def restore(self, catalog: Catalog, logs: Mapping[int, StoredLog], facts: JournalFacts) -> None:
        """Fill in the rows of all ledgers in the catalog."""
        found: list[tuple[StoredLog, Ledger, LedgerRecord]] = []
        for record in catalog.logs:
            log = logs[record.id]
            for ledger, kept in zip(log.restore(record), record.ledgers, strict=True):
                if _is_dropped(record.id, kept, facts):
                    ledger.rows = Rows.filled(RowStart(), _end_of(kept))
                    ledger.flushed = kept.entries
                else:
                    found.append((log, ledger, kept))
        # Read many files at once, because in a process that serves other stores each single read has to wait.
        for first in range(0, len(found), _AT_ONCE):
            await asyncio.gather(*(self._restore_rows(*each) for each in found[first : first + _AT_ONCE]))
        for record in catalog.logs:
            extent = logs[record.id].extent
            if extent.ledgers:
                extent.advance()
            extent.index_floor = record.index_floor

    async def _restore_rows(self, log: StoredLog, ledger: Ledger, kept: LedgerRecord) -> None:
        head = log.index_head(ledger)
        size = len(head) + kept.entries * ROW_BYTES
        self._wanted[ledger.index_file] = size
        self._wanted[ledger.data_file] = kept.size_bytes
        stored = b""
        if ledger.index_file in self._sizes:
            stored = await self._disk.read(ledger.index_file, 0, size)
        if stored[: len(head)] == head and len(stored) == size:
            encoded = stored[len(head) :]
            if checksum(encoded) == kept.rows_checksum:
                ledger.rows, ledger.rows_checksum = Rows.decode(encoded), kept.rows_checksum
        if not ledger.rows:
            await self._rebuild_index(log, ledger, kept, head)
        ledger.flushed = kept.entries
        self._check_data(log, ledger)

    async def _rebuild_index(self, log: StoredLog, ledger: Ledger, kept: LedgerRecord, head: bytes) -> None:
        data = b""
        if ledger.data_file in self._sizes:
            data = await self._disk.read(ledger.data_file, 0, kept.size_bytes)
        base = (kept.first_index, kept.base_ms)
        ledger.rows, damaged = rebuild_rows(ledger.owner, data, RowStart(), _end_of(kept), base)
        what = "the index is missing or damaged; it was rebuilt from the records"
        self._found.append((ledger, Finding(ledger.index_file, what, log=log.name)))
        lost = sum(ledger.rows.ends[number] <= len(data) for number in damaged)
        if lost:
            what = f"{lost} of its entries are damaged"
            self._found.append((ledger, Finding(ledger.data_file, what, lost, log.name)))
        encoded = ledger.rows.encode()
        ledger.rows_checksum = checksum(encoded)
        await self._disk.replace(ledger.index_file, head + encoded)
        self._sizes[ledger.index_file] = self._wanted[ledger.index_file]

    async def copies(self, damaged: Sequence[DamagedEntry]) -> dict[tuple[int, int], bytes]:
        """Return whole records of entries that are damaged in the journal, keyed by ledger and entry."""
        found: dict[tuple[int, int], bytes] = {}
        files = {_ledger_of(file): file for file in self._files() if file.endswith(".data")}
        for entry in damaged:
            file = files.get(entry.ledger)
            if file is None:
                continue
            length = entry.span[1] - entry.span[0]
            stored = await self._disk.read(file, entry.start_bytes, length)
            if decode_record(seed(entry.log, entry.ledger), entry.number, stored) is not None:
                found[entry.ledger, entry.number] = stored
        return found

    def _check_data(self, log: StoredLog, ledger: Ledger) -> None:
        size = self._sizes.get(ledger.data_file)
        if size is not None and size >= ledger.size_bytes:
            return
        lost = sum(end > (size or 0) for end in ledger.rows.ends)
        what = "the file is missing" if size is None else f"the file ends at byte {size}"
        self._found.append((ledger, Finding(ledger.data_file, what, lost, log.name)))

    async def spares(self, catalog: Catalog, facts: JournalFacts) -> Spares:
        """Read the entries that neither the catalog nor the journal knows."""
        found = Spares()
        for file in self._files():
            if not file.endswith(".data"):
                continue
            number = _ledger_of(file)
            known = facts.sizes.get(number, self._wanted.get(file))
            if known is None:
                if number >= catalog.next_ledger:
                    await self._look_at_unknown(file, facts, found)
                continue
            gaps = [*facts.gaps.get(number, ()), (known, self._sizes[file])]
            for start, end in gaps:
                if start < end:
                    found.add_part(number, start, await self._disk.read(file, start, end - start))
        return found

    async def _look_at_unknown(self, file: str, facts: JournalFacts, found: Spares) -> None:
        index = f"{file.removesuffix('.data')}.index"
        if index not in self._sizes:
            return
        head = decode_index_head(await self._disk.read(index, 0, self._sizes[index]))
        if head is None or head.log in facts.deleted or head.first_ordinal < facts.trimmed.get(head.log, 0):
            return
        found.add_ledger(head, await self._disk.read(file, 0, self._sizes[file]))

    async def clear_away(self) -> None:
        """Cut or extend each file to its size in the catalog.

        The journal fills most of the other files again.
        """
        longer = [file for file in self._files() if file not in self._wanted and self._sizes[file]]
        for file, size in sorted(self._wanted.items()):
            present = self._sizes.get(file, 0)
            if present > size:
                longer.append(file)
            elif present < size:
                # The lost entries stay damaged, but entries from the journal still get their offsets.
                await self._disk.append([(file, list(_zeros(size - present)))])
        # This needs no sync: recovery ignores bytes beyond these sizes until the next checkpoint.
        for first in range(0, len(longer), _AT_ONCE):
            some = longer[first : first + _AT_ONCE]
            await asyncio.gather(*(self._disk.truncate(file, self._wanted.get(file, 0)) for file in some))

    async def delete_strays(self, logs: Iterable[StoredLog]) -> None:
        """Delete the files of ledgers that belong to no log after the replay."""
        kept = {file for log in logs for ledger in log.extent.ledgers for file in files_of(ledger)}
        await self._disk.delete([file for file in self._files() if file not in kept])

    def _files(self) -> list[str]:
        return sorted(file for file in self._sizes if file.startswith(f"{FOLDER}/"))


def _is_dropped(log: int, kept: LedgerRecord, facts: JournalFacts) -> bool:
    return log in facts.deleted or kept.first_ordinal + kept.entries <= facts.trimmed.get(log, 0)


def _end_of(kept: LedgerRecord) -> RowStart:
    return RowStart(kept.entries, kept.size_bytes, kept.messages, kept.elapsed_ms)


def _ledger_of(file: str) -> int:
    """Return the ledger that a file belongs to, or -1 if its name does not tell."""
    name = file.rpartition("/")[2].partition(".")[0]
    return int(name) if name.isdecimal() else -1


def _zeros(size: int) -> Sequence[bytes]:
    whole, rest = divmod(size, len(_ZEROS))
    return [*([_ZEROS] * whole), bytes(rest)]
