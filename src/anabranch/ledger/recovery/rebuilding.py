"""Rebuilds a catalog from ledger files and the journal when both copies are lost.

Index files name their logs and ledgers. Cursors, seals and logs without entries can be restored only if the
journal mentions them; all others are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from anabranch.ledger.disks.disk import Disk
from anabranch.ledger.format.catalog import Catalog, LedgerRecord, LogRecord
from anabranch.ledger.format.index_head import IndexHead, decode_index_head, encode_index_head
from anabranch.ledger.format.records import ROW_BYTES, Rows, RowStart, checksum
from anabranch.ledger.journal.journal_reading import JournalPart, JournalReader, journal_file, journal_numbers
from anabranch.ledger.ledgers import FOLDER


@dataclass
class _JournalStart:
    """The beginning of the journal: its first file and commit, and the end of each ledger before it."""

    number: int = 1
    next_commit: int = 1
    ledgers: dict[int, RowStart] = field(default_factory=dict)


async def rebuild_catalog(disk: Disk, sizes: Mapping[str, int], salt: int) -> Catalog:
    """Return the catalog as of the start of the oldest journal file, as far as it can be reconstructed."""
    journal = await _read_journals(disk, sizes, salt)
    logs: dict[str, list[tuple[IndexHead, LedgerRecord]]] = {}
    next_log = next_ledger = 1
    for file in sorted(file for file in sizes if file.startswith(f"{FOLDER}/") and file.endswith(".index")):
        stored = await disk.read(file, 0, sizes[file])
        head = decode_index_head(stored)
        if head is None:
            continue
        next_log, next_ledger = max(next_log, head.log + 1), max(next_ledger, head.ledger + 1)
        rows = stored[len(encode_index_head(head)) :]
        data_bytes = sizes.get(f"{file.removesuffix('.index')}.data", 0)
        record = _ledger_record(head, rows, data_bytes, journal.ledgers.get(head.ledger))
        if record.entries:
            logs.setdefault(head.name, []).append((head, record))
    records = [_log_record(name, found) for name, found in logs.items()]
    return Catalog(salt, 1, journal.number, journal.next_commit, next_log, next_ledger, records)


async def _read_journals(disk: Disk, sizes: Mapping[str, int], salt: int) -> _JournalStart:
    start = _JournalStart()
    numbers = journal_numbers(sizes)
    for number in numbers:
        part = JournalPart(number, sizes[journal_file(number)], number == numbers[-1])
        reader = JournalReader(disk, salt, part)
        async for commit in reader.commits(0):
            if number == numbers[0] and not start.ledgers and start.next_commit == 1:
                start.next_commit = commit.head.number
            for group in commit.contents.groups:
                start.ledgers.setdefault(group.ledger, group.start)
    if numbers:
        start.number = numbers[0]
    return start


def _ledger_record(head: IndexHead, stored: bytes, data_bytes: int, end: RowStart | None) -> LedgerRecord:
    """Return the record of a ledger up to `end`, where the journal begins, or to the end of its files."""
    rows = Rows.decode(stored[: len(stored) // ROW_BYTES * ROW_BYTES])
    entries = sum(row_end <= data_bytes for row_end in rows.ends)
    if end is not None:
        entries = end.entries
    whole = rows.encode()[: entries * ROW_BYTES]
    last = end or Rows.decode(whole).end(RowStart())
    return LedgerRecord(
        head.ledger,
        head.first_ordinal,
        head.first_index,
        head.base_ms,
        entries,
        last.messages,
        last.size_bytes,
        last.elapsed_ms,
        checksum(whole),
    )


def _log_record(name: str, found: list[tuple[IndexHead, LedgerRecord]]) -> LogRecord:
    # A log that was deleted and recreated has files of both. Only the newer log exists.
    log = max(head.log for head, _ in found)
    ledgers: list[LedgerRecord] = []
    kept = [record for head, record in found if head.log == log]
    for record in sorted(kept, key=lambda record: record.id):
        if ledgers:
            ledgers[-1] = _extended(ledgers[-1], record.first_ordinal)
        ledgers.append(record)
    first, last = ledgers[0], ledgers[-1]
    return LogRecord(
        log,
        name,
        False,
        first.first_ordinal,
        first.first_index,
        last.id,
        last.entries,
        0,
        last.base_ms + last.elapsed_ms,
        ledgers,
        [],
        {},
        [],
    )


def _extended(record: LedgerRecord, ordinal: int) -> LedgerRecord:
    """Return the ledger with the lost entries before `ordinal` added. Its index then counts as damaged."""
    missing = ordinal - record.first_ordinal - record.entries
    if missing <= 0:
        return record
    return msgspec.structs.replace(
        record, entries=record.entries + missing, messages=record.messages + missing, rows_checksum=0
    )
