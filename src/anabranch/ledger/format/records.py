"""The bytes on disk: entry records, index rows, journal commits, the catalog. Pure.

Four kinds of bytes. A *record* is one entry with a head that says where it belongs; its checksum covers the
log, the ledger and the position besides the data, so a record in the wrong place is as wrong as a damaged
one. A *row* is what an index file keeps of a record. A *commit* is all that was made durable by one sync:
changes to logs and cursors, and per log a group of rows and records. The *catalog* is everything except the
entries, as of the start of one journal file.

What recovery keeps: a commit is written only after the one before it was synced. So bytes that are no commit
are a torn tail, dropped without loss, unless a commit lies behind them; then something durable was damaged.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c
import msgspec

from anabranch.errors import CorruptDataError
from anabranch.model.inheritance import Piece, Pieces
from anabranch.model.ranges import HashRange

checksum = google_crc32c.value
extend_checksum = google_crc32c.extend

_FIELDS = struct.Struct("<IIIQq")
_HEAD = struct.Struct("<IIIIQq")
HEAD_BYTES = _HEAD.size
ROW_BYTES = 12
OFFSET_MAX = 2**32 - 1
"""Rows hold offsets, message counts and milliseconds within one ledger as 32-bit numbers."""

_SEED = struct.Struct("<QQ")
_COMMIT_MAGIC = b"aBc\xa5"
_COMMIT_FIELDS = struct.Struct("<QQQI")
COMMIT_HEAD_BYTES = 8 + _COMMIT_FIELDS.size
_LENGTH = struct.Struct("<I")
_CATALOG_MAGIC = b"anabranch catalog 1\n"


# Records.


class EntryRecord(NamedTuple):
    """One entry as it is stored."""

    entry: int
    count: int  # type: ignore[assignment]
    index: int  # type: ignore[assignment]
    timestamp_ms: int
    data: bytes


def seed(first: int, second: int) -> int:
    """Where a checksum starts, so that it covers the owner of the bytes: (log, ledger) or (salt, journal)."""
    return int(checksum(_SEED.pack(first, second)))


def record_head(owner: int, entry: int, count: int, index: int, timestamp_ms: int, data: bytes) -> bytes:
    """What stands before the data of an entry; `owner` is the seed of its log and ledger."""
    fields = _FIELDS.pack(len(data), entry, count, index, timestamp_ms)
    crc: int = extend_checksum(extend_checksum(owner, fields), data)
    return crc.to_bytes(4, "little") + fields


def decode_record(owner: int, entry: int, stored: bytes) -> EntryRecord | None:
    """The record in exactly these bytes, or None when they are not that entry of that ledger."""
    if len(stored) < HEAD_BYTES:
        return None
    crc, length, number, count, index, timestamp_ms = _HEAD.unpack_from(stored)
    data = stored[HEAD_BYTES:]
    if length != len(data) or number != entry:
        return None
    if extend_checksum(extend_checksum(owner, stored[4:HEAD_BYTES]), data) != crc:
        return None
    return EntryRecord(number, count, index, timestamp_ms, data)


# Rows.


class Rows:
    """Columns over the entries of one ledger; each value is relative to the ledger's own beginning."""

    __slots__ = ("ends", "indexes", "times")

    def __init__(self) -> None:
        self.ends = array("I")
        """Offset in the data file after each record."""
        self.indexes = array("I")
        """Messages up to and including each entry."""
        self.times = array("I")
        """Highest broker time up to each entry: it never falls, though the wall clock may."""

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
        """Stand-in rows of which only the last is true."""
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
    """The rows of a data file whose index is damaged; None when the chain of records is broken too."""
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


# Changes.


class UpTo(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Everything below the ordinal was acknowledged."""

    ordinal: int


class Acked(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Whole entries were acknowledged: 64-bit little-endian ordinals."""

    ordinals: bytes


class PartAcked(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Messages of one entry were acknowledged; set bits, little-endian, are still pending."""

    ordinal: int
    remaining: bytes
    count: int


class Reset(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Exactly what lies below the ordinal is acknowledged from here on."""

    ordinal: int


Step = UpTo | Acked | PartAcked | Reset


class LogCreated(msgspec.Struct, frozen=True, array_like=True, tag=0):
    log: int
    name: str


class LogDeleted(msgspec.Struct, frozen=True, array_like=True, tag=1):
    log: int


class LogSealed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    log: int


class LogTrimmed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Ledgers that end at or below the ordinal are gone."""

    log: int
    ordinal: int


class CursorCreated(msgspec.Struct, frozen=True, array_like=True, tag=4):
    log: int
    cursor: str
    ordinal: int
    properties: dict[str, str]


class CursorChanged(msgspec.Struct, frozen=True, array_like=True, tag=5):
    log: int
    cursor: str
    steps: list[Step]


class CursorDeleted(msgspec.Struct, frozen=True, array_like=True, tag=6):
    log: int
    cursor: str


class PieceRecord(msgspec.Struct, frozen=True, array_like=True):
    """A piece of what a log inherited: slots of the ring, both included, and sequence ids by producer."""

    start: int
    end: int
    sequences: dict[str, int]


class LogInherited(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The log knows these sequence ids of others, and no more those of an earlier change of this kind."""

    log: int
    pieces: list[PieceRecord]


Change = (
    LogCreated
    | LogDeleted
    | LogSealed
    | LogTrimmed
    | CursorCreated
    | CursorChanged
    | CursorDeleted
    | LogInherited
)


def piece_records(pieces: Pieces) -> list[PieceRecord]:
    return [PieceRecord(piece.range.start, piece.range.end, dict(piece.sequences)) for piece in pieces]


def pieces_of(records: Sequence[PieceRecord]) -> Pieces:
    """Undo `piece_records`."""
    return tuple(Piece(HashRange(record.start, record.end), record.sequences) for record in records)


class Group(msgspec.Struct, frozen=True, array_like=True):
    """The entries of one ledger in one commit; their rows and records follow in the commit's body."""

    log: int
    ledger: int
    first_entry: int
    entries: int
    size_bytes: int
    """Length of the records; the rows stand before them."""
    first_ordinal: int
    """Of the ledger, as are `first_index` and `base_ms`: a group may be the first that names it."""
    first_index: int
    base_ms: int
    last_ms: int
    """Broker time of the last entry of the group."""
    producers: dict[str, int]


class Contents(msgspec.Struct, frozen=True, array_like=True):
    """What one commit says: changes first, then groups."""

    changes: list[Change]
    groups: list[Group]


# Commits.


class CommitHead(NamedTuple):
    """The fixed head of a commit."""

    number: int
    offset: int
    length: int
    """Of the body, which follows the head."""
    checksum: int

    @property
    def end(self) -> int:
        return self.offset + COMMIT_HEAD_BYTES + self.length


_encoder = msgspec.msgpack.Encoder()
_contents_decoder = msgspec.msgpack.Decoder(Contents)


def encode_commit(
    owner: int, number: int, offset: int, contents: Contents, payload: Sequence[bytes]
) -> list[bytes]:
    """The buffers of one commit; `payload` is rows and records of each group, in order."""
    said = _encoder.encode(contents)
    body = [_LENGTH.pack(len(said)), said, *payload]
    crc = 0
    length = 0
    for piece in body:
        crc = extend_checksum(crc, piece)
        length += len(piece)
    fields = _COMMIT_FIELDS.pack(number, offset, length, crc)
    head = _COMMIT_MAGIC + int(extend_checksum(owner, fields)).to_bytes(4, "little") + fields
    return [head, *body]


def decode_commit_head(owner: int, data: bytes, at: int, offset: int) -> CommitHead | None:
    """The head at `at` in `data`, which is `offset` in the journal file; None when there is none."""
    fields = data[at + 8 : at + COMMIT_HEAD_BYTES]
    if data[at : at + 4] != _COMMIT_MAGIC or len(fields) != _COMMIT_FIELDS.size:
        return None
    if extend_checksum(owner, fields) != int.from_bytes(data[at + 4 : at + 8], "little"):
        return None
    head = CommitHead(*_COMMIT_FIELDS.unpack(fields))
    return head if head.offset == offset else None


def is_whole(head: CommitHead, body: bytes) -> bool:
    """Whether these bytes are the body that the head announces."""
    return len(body) == head.length and checksum(body) == head.checksum


def decode_commit_body(head: CommitHead, body: bytes) -> tuple[Contents, memoryview]:
    """What a whole commit says, and the rows and records behind that."""
    (said,) = _LENGTH.unpack_from(body)
    start = _LENGTH.size + said
    view = memoryview(body)
    try:
        return _contents_decoder.decode(view[_LENGTH.size : start]), view[start:]
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"commit {head.number} of the journal makes no sense: {error}") from error


def commit_follows(owner: int, data: bytes, start: int, offset: int) -> bool:
    """Whether a commit begins in `data` at or after `start`; `offset` is where `data` lies in the file."""
    at = data.find(_COMMIT_MAGIC, start)
    while at >= 0:
        if decode_commit_head(owner, data, at, offset + at) is not None:
            return True
        at = data.find(_COMMIT_MAGIC, at + 1)
    return False


# The catalog.


class LedgerRecord(msgspec.Struct, frozen=True, array_like=True):
    """What is synced of one ledger's files; bytes beyond it come from the journal or count for nothing."""

    id: int
    first_ordinal: int
    first_index: int
    base_ms: int
    entries: int
    messages: int
    size_bytes: int
    elapsed_ms: int
    """Highest broker time in it, since `base_ms`."""
    rows_checksum: int


class CursorRecord(msgspec.Struct, frozen=True, array_like=True):
    name: str
    acks: bytes
    properties: dict[str, str]


class LogRecord(msgspec.Struct, frozen=True, array_like=True):
    id: int
    name: str
    sealed: bool
    first_ordinal: int
    first_index: int
    end_ledger: int
    """Position after the last entry ever written; its ledger may be trimmed away."""
    end_entry: int
    last_ms: int
    ledgers: list[LedgerRecord]
    cursors: list[CursorRecord]
    producers: dict[str, int]
    inherited: list[PieceRecord] = []
    """Absent in catalogs that were written before logs inherited anything."""


class Catalog(msgspec.Struct, frozen=True):
    """Everything but the entries, as it was before the first commit of journal file `journal`."""

    salt: int
    """Keeps bytes of another data directory, or bytes made up by a client, from passing for a commit."""
    journal: int
    next_commit: int
    next_log: int
    next_ledger: int
    logs: list[LogRecord]


_catalog_decoder = msgspec.msgpack.Decoder(Catalog)


def encode_catalog(catalog: Catalog) -> bytes:
    body = _encoder.encode(catalog)
    return _CATALOG_MAGIC + int(checksum(body)).to_bytes(4, "little") + body


def decode_catalog(data: bytes) -> Catalog:
    """Undo `encode_catalog`; CorruptDataError for anything else."""
    start = len(_CATALOG_MAGIC) + 4
    if data[: len(_CATALOG_MAGIC)] != _CATALOG_MAGIC:
        raise CorruptDataError("the catalog does not begin as a catalog of this version")
    body = data[start:]
    if checksum(body) != int.from_bytes(data[len(_CATALOG_MAGIC) : start], "little"):
        raise CorruptDataError("the catalog does not match its checksum")
    try:
        return _catalog_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"the catalog cannot be understood: {error}") from error
