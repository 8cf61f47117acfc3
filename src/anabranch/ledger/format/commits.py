"""Commits of the journal, and the changes of logs and cursors in them. Pure.

A *commit* is everything that one sync made durable: changes to logs and cursors, and per log a group of rows
and records. The journal writes a commit only after the sync of the one before it. So recovery may drop bytes
that are no commit as a torn tail, unless a commit follows them; then durable bytes were damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from anabranch.errors import CorruptDataError
from anabranch.ledger.format.records import checksum, extend_checksum
from anabranch.model.inheritance import Piece, Pieces
from anabranch.model.ranges import HashRange

_COMMIT_MAGIC = b"aBc\xa5"
_COMMIT_FIELDS = struct.Struct("<QQQI")
COMMIT_HEAD_BYTES = 8 + _COMMIT_FIELDS.size
_LENGTH = struct.Struct("<I")


class UpTo(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """All entries below the ordinal were acknowledged."""

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
    """Entries below the ordinal are acknowledged, and no others."""

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
    """Ledgers that end at or below the ordinal were dropped."""

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
    """Inherited sequence ids by producer, for the slots from `start` to `end`, both included."""

    start: int
    end: int
    sequences: dict[str, int]


class LogInherited(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The log inherited these sequence ids; they replace those of an earlier change of this kind."""

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


class Group(msgspec.Struct, frozen=True, array_like=True):
    """The entries of one ledger in one commit; their rows and records follow in the commit's body."""

    log: int
    ledger: int
    first_entry: int
    entries: int
    size_bytes: int
    """Length of the records, which follow the rows."""
    first_ordinal: int
    """Of the ledger, like `first_index` and `base_ms`, because this may be the first group of the ledger."""
    first_index: int
    base_ms: int
    last_ms: int
    """Broker time of the last entry of the group."""
    producers: dict[str, int]


class Contents(msgspec.Struct, frozen=True, array_like=True):
    """The decoded part of a commit: changes apply before groups."""

    changes: list[Change]
    groups: list[Group]


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
    encoded = _encoder.encode(contents)
    body = [_LENGTH.pack(len(encoded)), encoded, *payload]
    crc = 0
    length = 0
    for piece in body:
        crc = extend_checksum(crc, piece)
        length += len(piece)
    fields = _COMMIT_FIELDS.pack(number, offset, length, crc)
    head = _COMMIT_MAGIC + int(extend_checksum(owner, fields)).to_bytes(4, "little") + fields
    return [head, *body]


def decode_commit_head(owner: int, data: bytes, at: int, offset: int) -> CommitHead | None:
    """The head at `at` in `data`, which is `offset` in the journal file; None when no head is there."""
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
    """The contents of a whole commit, and the rows and records behind them."""
    (length,) = _LENGTH.unpack_from(body)
    start = _LENGTH.size + length
    view = memoryview(body)
    try:
        return _contents_decoder.decode(view[_LENGTH.size : start]), view[start:]
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"commit {head.number} of the journal cannot be decoded: {error}") from error


def commit_follows(owner: int, data: bytes, start: int, offset: int) -> bool:
    """Whether a commit begins in `data` at or after `start`; `data` starts at `offset` in the file."""
    at = data.find(_COMMIT_MAGIC, start)
    while at >= 0:
        if decode_commit_head(owner, data, at, offset + at) is not None:
            return True
        at = data.find(_COMMIT_MAGIC, at + 1)
    return False


def piece_records(pieces: Pieces) -> list[PieceRecord]:
    return [PieceRecord(piece.range.start, piece.range.end, dict(piece.sequences)) for piece in pieces]


def pieces_of(records: Sequence[PieceRecord]) -> Pieces:
    """Undo `piece_records`."""
    return tuple(Piece(HashRange(record.start, record.end), record.sequences) for record in records)
