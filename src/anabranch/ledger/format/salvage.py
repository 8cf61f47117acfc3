"""Recovers the intact parts of a damaged commit, and tells damage from an interrupted write. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anabranch.ledger.format.commits import COMMIT_HEAD_BYTES, PAYLOAD, Commit, Group
from anabranch.ledger.format.records import (
    ROW_BYTES,
    RebuiltRows,
    Rows,
    RowStart,
    checksum,
    damaged_records,
    rebuild_rows,
    seed,
)

SECTOR_BYTES = 512
"""The unit that a disk writes completely or not at all."""

Span = tuple[int, int]


class DamagedEntry(NamedTuple):
    """An entry whose record in the journal is damaged."""

    log: int
    ledger: int
    number: int
    ordinal: int
    span: Span
    """The place of the record in the commit's payload."""
    start_bytes: int
    """The place of the record in the data file."""


class Mended(NamedTuple):
    """The payload of a commit with rebuilt rows, and its damaged places."""

    payload: bytes
    damaged: list[DamagedEntry]
    rows_damaged: list[tuple[Group, Span]]


def mend(commit: Commit, copies: Mapping[tuple[int, int], bytes]) -> Mended:
    """Rebuild damaged rows, and replace damaged records by those in `copies`, keyed by ledger and entry."""
    payload = bytearray(commit.payload)
    damaged: list[DamagedEntry] = []
    rows_damaged: list[tuple[Group, Span]] = []
    at = 0
    for group in commit.contents.groups:
        middle = at + group.entries * ROW_BYTES
        end = middle + group.size_bytes
        encoded = bytes(payload[at:middle])
        records = bytes(payload[middle:end])
        owner = seed(group.log, group.ledger)
        if checksum(encoded) == group.rows_checksum:
            rows = Rows.decode(encoded)
            rebuilt = RebuiltRows(rows, damaged_records(owner, records, group.start, rows))
        else:
            rows_damaged.append((group, (at, middle)))
            base = (group.first_index, group.base_ms)
            rebuilt = rebuild_rows(owner, records, group.start, _end_of(group), base)
            payload[at:middle] = rebuilt.rows.encode()
        for number in rebuilt.damaged:
            found = _damaged(group, rebuilt.rows, number, middle)
            copy = copies.get((group.ledger, number))
            if copy is None:
                damaged.append(found)
            else:
                payload[slice(*found.span)] = copy
        at = end
    return Mended(bytes(payload), damaged, rows_damaged)


def _end_of(group: Group) -> RowStart:
    start = group.start
    return RowStart(
        start.entries + group.entries,
        start.size_bytes + group.size_bytes,
        start.messages + group.entries,
        max(start.elapsed_ms, group.last_ms - group.base_ms),
    )


def _damaged(group: Group, rows: Rows, number: int, records_at: int) -> DamagedEntry:
    row = number - group.start.entries
    first = rows.ends[row - 1] if row else group.start.size_bytes
    shift = records_at - group.start.size_bytes
    span = (first + shift, rows.ends[row] + shift)
    return DamagedEntry(group.log, group.ledger, number, group.first_ordinal + number, span, first)


def is_torn(commit: Commit, data: bytes) -> bool:
    """Return whether the newest commit was never written completely, rather than damaged afterwards.

    A torn write leaves whole sectors of zeros, usually in several places; decay does not.

    A torn write leaves zeros instead of whole sectors, usually in several places; decay does not.
    """
    size, head = commit.head.contents_bytes, COMMIT_HEAD_BYTES
    second = head + size + commit.head.payload_bytes
    places = {
        "head": (0, head),
        "contents": (head, head + size),
        "contents copy": (second, second + size),
        "tail": (second + size, len(data)),
    }
    spans = [places[name] for name in commit.damage if name != PAYLOAD]
    if PAYLOAD in commit.damage:
        mended = mend(commit, {})
        inner = [found.span for found in mended.damaged] + [span for _, span in mended.rows_damaged]
        spans += [(head + size + start, head + size + end) for start, end in inner]
    if len(spans) > 1 or not data[-1]:
        return True
    return any(_has_hole(data, commit.head.offset, span) for span in spans)


def _has_hole(data: bytes, offset: int, span: Span) -> bool:
    """Return whether some sector of the span has only zeros where the commit has bytes."""
    first = (offset + span[0]) // SECTOR_BYTES * SECTOR_BYTES
    for sector in range(first, offset + span[1], SECTOR_BYTES):
        if not any(data[max(sector - offset, 0) : sector + SECTOR_BYTES - offset]):
            return True
    return False
