"""Entry records and index rows. Pure.

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


class EntryRecord(NamedTuple):
    """One entry as it is stored."""

    entry: int
    count: int  # type: ignore[assignment]
    index: int  # type: ignore[assignment]
    timestamp_ms: int
    data: bytes


def seed(first: int, second: int) -> int:
    """Start value that makes a checksum cover the owner of the bytes: (log, ledger) or (salt, journal)."""
    return int(checksum(_SEED.pack(first, second)))


def record_head(owner: int, entry: int, count: int, index: int, timestamp_ms: int, data: bytes) -> bytes:
    """The bytes before the data of an entry; `owner` is the seed of its log and ledger."""
    fields = _FIELDS.pack(len(data), entry, count, index, timestamp_ms)
    crc: int = extend_checksum(extend_checksum(owner, fields), data)
    return crc.to_bytes(4, "little") + fields


def decode_record(owner: int, entry: int, stored: bytes) -> EntryRecord | None:
    """The record in exactly these bytes, or None when the bytes are not that entry of that ledger."""
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
    """Columns over the entries of one ledger; each value is relative to the start of the ledger."""

    __slots__ = ("ends", "indexes", "times")

    def __init__(self) -> None:
        self.ends = array("I")
        """Offset in the data file after each record."""
        self.indexes = array("I")
        """Messages up to and including each entry."""
        self.times = array("I")
        """Highest broker time up to each entry; it never falls, although the wall clock may."""

    def __len__(self) -> int:
        return len(self.ends)

    def extend(self, other: Rows) -> None:
        self.ends.extend(other.ends)
        self.indexes.extend(other.indexes)
        self.times.extend(other.times)

    def encode(self) -> bytes:
        """Fixed rows of three numbers, little-endian."""
        flat = array("I", bytes(ROW_BYTES * len(self.ends)))
        flat[0::3] = self.ends
        flat[1::3] = self.indexes
        flat[2::3] = self.times
        if sys.byteorder == "big":
            flat.byteswap()
        return flat.tobytes()

    @staticmethod
    def filled(entries: int, end: int, messages: int, elapsed_ms: int) -> Rows:
        """Rows for a damaged ledger: only the last row is true, so that counts and sizes stay right."""
        rows = Rows()
        if entries:
            for column, last in ((rows.ends, end), (rows.indexes, messages), (rows.times, elapsed_ms)):
                column.frombytes(bytes(4 * (entries - 1)))
                column.append(last)
        return rows

    @staticmethod
    def decode(data: bytes | memoryview) -> Rows:
        """Undo `encode`."""
        flat = array("I")
        flat.frombytes(data)
        if sys.byteorder == "big":
            flat.byteswap()
        rows = Rows()
        rows.ends, rows.indexes, rows.times = flat[0::3], flat[1::3], flat[2::3]
        return rows


def rows_from_records(data: bytes, entries: int, first_index: int, base_ms: int) -> Rows | None:
    """Rebuild the rows of a data file whose index is damaged; None when its records are damaged too."""
    rows = Rows()
    end = latest = 0
    for number in range(entries):
        if end + HEAD_BYTES > len(data):
            return None
        _, length, entry, count, index, timestamp_ms = _HEAD.unpack_from(data, end)
        end += HEAD_BYTES + length
        latest = max(latest, timestamp_ms - base_ms)
        if entry != number or end > len(data) or not 0 <= index + count - first_index <= OFFSET_MAX:
            return None
        rows.ends.append(end)
        rows.indexes.append(index + count - first_index)
        rows.times.append(min(latest, OFFSET_MAX))
    return rows if end == len(data) else None
