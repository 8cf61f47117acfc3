"""Entry records and index rows. Pure.

A *record* is one entry with a head that says where it belongs. Its checksum covers the log, the ledger and
the position as well as the data, so a record in the wrong place fails the check like a damaged one. A *row*
is the part of a record that the index file repeats.

A *record* is one entry with a head that says where it belongs. Its checksum covers the log, the ledger and
the position besides the data, so a record in the wrong place fails the check like a damaged one. A *row* is
the part of a record that the index file repeats.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import NamedTuple

import google_crc32c

checksum = google_crc32c.value
extend_checksum = google_crc32c.extend

_FIELDS = struct.Struct("<IIIQq")
_HEAD = struct.Struct("<IIIIQq")
HEAD_BYTES = _HEAD.size
ROW_BYTES = 12
OFFSET_MAX = 2**32 - 1
"""Rows hold offsets, message counts and milliseconds within one ledger as 32-bit numbers."""

_SEED = struct.Struct("<QQ")


class RowStart(NamedTuple):
    """The end of a ledger before some of its rows: its entries, bytes, messages and highest broker time."""

    entries: int = 0
    size_bytes: int = 0
    messages: int = 0
    elapsed_ms: int = 0


class EntryRecord(NamedTuple):
    """One entry as it is stored."""

    entry: int
    count: int  # type: ignore[assignment]
    index: int  # type: ignore[assignment]
    timestamp_ms: int
    data: bytes


def seed(first: int, second: int) -> int:
    """Return a start value that makes a checksum cover its owner: (log, ledger) or (salt, journal)."""
    return int(checksum(_SEED.pack(first, second)))


def record_head(owner: int, entry: int, count: int, index: int, timestamp_ms: int, data: bytes) -> bytes:
    """Return the bytes before the data of an entry; `owner` is the seed of its log and ledger."""
    fields = _FIELDS.pack(len(data), entry, count, index, timestamp_ms)
    crc: int = extend_checksum(extend_checksum(owner, fields), data)
    return crc.to_bytes(4, "little") + fields


def decode_record(owner: int, entry: int, stored: bytes) -> EntryRecord | None:
    """Return the record in exactly these bytes, or None if they are not that entry of that ledger."""
    if len(stored) < HEAD_BYTES:
        return None
    crc, length, number, count, index, timestamp_ms = _HEAD.unpack_from(stored)
    data = stored[HEAD_BYTES:]
    if length != len(data) or number != entry:
        return None
    if extend_checksum(extend_checksum(owner, stored[4:HEAD_BYTES]), data) != crc:
        return None
    return EntryRecord(number, count, index, timestamp_ms, data)


class Rows:
    """Columns over the entries of one ledger. Each value is relative to the start of the ledger."""

    __slots__ = ("ends", "indexes", "times")

    def __init__(self) -> None:
        self.ends = array("I")
        """The offset in the data file after each record."""
        self.indexes = array("I")
        """The number of messages up to and including each entry."""
        self.times = array("I")
        """The highest broker time up to each entry. It never decreases, although the wall clock may."""

    def __len__(self) -> int:
        return len(self.ends)

    def extend(self, other: Rows) -> None:
        self.ends.extend(other.ends)
        self.indexes.extend(other.indexes)
        self.times.extend(other.times)

    def encode(self) -> bytes:
        """Encode the rows, each as three little-endian numbers of fixed size."""
        flat = array("I", bytes(ROW_BYTES * len(self.ends)))
        flat[0::3] = self.ends
        flat[1::3] = self.indexes
        flat[2::3] = self.times
        if sys.byteorder == "big":
            flat.byteswap()
        return flat.tobytes()

    def end(self, before: RowStart) -> RowStart:
        """Return the end of a ledger that ended at `before` and then received these rows."""
        if not self.ends:
            return before
        return RowStart(before.entries + len(self.ends), self.ends[-1], self.indexes[-1], self.times[-1])

    @staticmethod
    def filled(before: RowStart, end: RowStart) -> Rows:
        """Return rows for lost entries.

        Only the last row is exact, so that later counts and sizes are right.
        """
        rows = Rows()
        missing = end.entries - before.entries
        if missing > 0:
            # Assume that each lost entry held at least one message, if the number of messages allows it.
            spread = min(before.messages, end.messages - missing)
            rows.ends.extend([before.size_bytes] * (missing - 1))
            rows.indexes.extend(max(spread, 0) + past for past in range(1, missing))
            rows.times.extend([before.elapsed_ms] * (missing - 1))
            rows.ends.append(end.size_bytes)
            rows.indexes.append(end.messages)
            rows.times.append(end.elapsed_ms)
        return rows

    @staticmethod
    def decode(data: bytes | memoryview) -> Rows:
        """Decode what `encode` returned."""
        flat = array("I")
        flat.frombytes(data)
        if sys.byteorder == "big":
            flat.byteswap()
        rows = Rows()
        rows.ends, rows.indexes, rows.times = flat[0::3], flat[1::3], flat[2::3]
        return rows


class RebuiltRows(NamedTuple):
    """Rows rebuilt from records, and the entries whose records are damaged."""

    rows: Rows
    damaged: list[int]
    """The damaged entries, by their numbers in the ledger."""


_RESYNC_MAX = 64
"""The search for the next whole record gives up after this many consecutive damaged entries."""


def rebuild_rows(
    owner: int, data: bytes, start: RowStart, end: RowStart, base: tuple[int, int]
) -> RebuiltRows:
    """Rebuild the rows of the records in `data`, which lie between `start` and `end` in their ledger.

    `base` is the index and time at the start of the ledger. A damaged record affects only its own entry, even
    if the damage is in its length.
    """
    first_index, base_ms = base
    rows = Rows()
    damaged: list[int] = []
    at, last = 0, start
    while last.entries < end.entries:
        record = whole_record(owner, last.entries, data, at)
        if record is None:
            at, number = _next_whole_record(owner, last.entries, data, at, end.entries)
            damaged += range(last.entries, number)
            following = whole_record(owner, number, data, at)
            there = end
            if following is not None:
                there = RowStart(
                    number, start.size_bytes + at, following.index - first_index, last.elapsed_ms
                )
            rows.extend(Rows.filled(last, there))
            last = there
            continue
        at += HEAD_BYTES + len(record.data)
        elapsed_ms = min(max(last.elapsed_ms, record.timestamp_ms - base_ms), OFFSET_MAX)
        messages = record.index + record.count - first_index
        last = RowStart(last.entries + 1, start.size_bytes + at, messages, elapsed_ms)
        rows.ends.append(last.size_bytes)
        rows.indexes.append(last.messages)
        rows.times.append(last.elapsed_ms)
    return RebuiltRows(rows, damaged)


def whole_record(owner: int, number: int, data: bytes, at: int) -> EntryRecord | None:
    """Return the record that begins at `at`, or None if the bytes there are not that entry."""
    if at + HEAD_BYTES > len(data):
        return None
    _, length, found, *_ = _HEAD.unpack_from(data, at)
    end = at + HEAD_BYTES + length
    # Copy only bytes that may be the record, because a search tries very many other places.
    if found != number or end > len(data):
        return None
    return decode_record(owner, number, data[at:end])


def _next_whole_record(owner: int, number: int, data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return offset and number of the first whole record after `number`, or the end if there is none."""
    for later in range(number + 1, min(end, number + 1 + _RESYNC_MAX)):
        pattern = later.to_bytes(4, "little")
        found = data.find(pattern, at + 8)
        while found >= 0:
            if whole_record(owner, later, data, found - 8) is not None:
                return found - 8, later
            found = data.find(pattern, found + 1)
    return len(data), end


def damaged_records(owner: int, data: bytes, start: RowStart, rows: Rows) -> list[int]:
    """Return the numbers of the entries whose records in `data`, the bytes after `start`, are damaged."""
    damaged = []
    begin = 0
    for number, end in enumerate(rows.ends, start.entries):
        if decode_record(owner, number, data[begin : end - start.size_bytes]) is None:
            damaged.append(number)
        begin = end - start.size_bytes
    return damaged
