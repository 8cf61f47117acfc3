"""Commits of the journal, and the changes of logs and cursors in them. Pure.

A *commit* is everything that one sync made durable: changes to logs and cursors, and for each log a group of
rows and records. Its layout is head, contents, rows and records, contents again, tail. The tail repeats the
head, so that one damaged place never hides how long a commit is or what it changes. Each record has its own
checksum.

The journal writes a commit only after the previous one is synced. So recovery may drop undecodable bytes at
the end as a torn tail, unless a commit follows them; in that case durable bytes were damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from anabranch.ledger.format.records import RowStart, checksum, extend_checksum
from anabranch.model.inheritance import Piece, Pieces
from anabranch.model.ranges import HashRange

_HEAD_MAGIC = b"aBc\xa5"
_TAIL_MAGIC = b"aBe\xa5"
_COMMIT_FIELDS = struct.Struct("<QQIQII")
COMMIT_HEAD_BYTES = 8 + _COMMIT_FIELDS.size
"""The magic bytes of the head and of the tail."""


class UpTo(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """All entries below the ordinal were acknowledged."""

    ordinal: int


class Acked(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Whole entries were acknowledged. The ordinals are 64-bit little-endian numbers."""

    ordinals: bytes


class PartAcked(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Messages of one entry were acknowledged. Set bits, little-endian, are still pending."""

    ordinal: int
    remaining: bytes
    count: int


class Reset(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The cursor was reset: exactly the entries below the ordinal are acknowledged."""

    ordinal: int


class Noted(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The note of the cursor was replaced; a Reset clears it."""

    note: bytes


class Labelled(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The properties of the cursor were replaced."""

    properties: dict[str, str]


Step = UpTo | Acked | PartAcked | Reset | Noted | Labelled


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
    """Inherited sequence ids by producer, for the slots from `start` to `end` inclusive."""

    start: int
    end: int
    sequences: dict[str, int]


class LogInherited(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The log inherited these sequence ids, which replace any that it inherited before."""

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
    """The entries of one ledger in one commit. Their rows and records follow in the commit's body."""

    log: int
    ledger: int
    start: RowStart
    """The end of the ledger before this group."""
    entries: int
    size_bytes: int
    """The length of the records, which follow the rows."""
    rows_checksum: int
    first_ordinal: int
    """Describes the ledger, as `first_index` and `base_ms` do, because this may be the ledger's first
    group."""
    first_index: int
    base_ms: int
    last_ms: int
    """The broker time of the group's last entry."""
    producers: dict[str, int]


class Contents(msgspec.Struct, frozen=True, array_like=True):
    """The decoded contents of a commit. Changes are applied before groups."""

    changes: list[Change]
    groups: list[Group]


class CommitHead(NamedTuple):
    """The fixed-size head of a commit, which its tail repeats."""

    number: int
    offset: int
    contents_bytes: int
    payload_bytes: int
    contents_checksum: int
    payload_checksum: int

    @property
    def size(self) -> int:
        return 2 * (COMMIT_HEAD_BYTES + self.contents_bytes) + self.payload_bytes

    @property
    def end(self) -> int:
        return self.offset + self.size


_encoder = msgspec.msgpack.Encoder()
_contents_decoder = msgspec.msgpack.Decoder(Contents)


def encode_commit(
    owner: int, number: int, offset: int, contents: Contents, payload: Sequence[bytes]
) -> list[bytes]:
    """Return the buffers of one commit. `payload` holds the rows and records of each group, in order."""
    encoded = _encoder.encode(contents)
    crc = 0
    length = 0
    for piece in payload:
        crc = extend_checksum(crc, piece)
        length += len(piece)
    fields = _COMMIT_FIELDS.pack(number, offset, len(encoded), length, checksum(encoded), crc)
    sealed = fields + int(extend_checksum(owner, fields)).to_bytes(4, "little")
    # The magic of the tail comes last: a commit that ends with a zero byte was not written completely.
    return [_HEAD_MAGIC, sealed, encoded, *payload, encoded, sealed, _TAIL_MAGIC]


def decode_commit_head(owner: int, data: bytes, at: int, offset: int) -> CommitHead | None:
    """Return the head at `at` in `data`, which is `offset` in the journal file, or None if there is none."""
    if data[at : at + 4] != _HEAD_MAGIC:
        return None
    head = _decode_fields(owner, data[at + 4 : at + COMMIT_HEAD_BYTES])
    return head if head is not None and head.offset == offset else None


def _decode_fields(owner: int, sealed: bytes) -> CommitHead | None:
    fields = sealed[: _COMMIT_FIELDS.size]
    if len(sealed) != COMMIT_HEAD_BYTES - 4:
        return None
    if extend_checksum(owner, fields) != int.from_bytes(sealed[_COMMIT_FIELDS.size :], "little"):
        return None
    return CommitHead(*_COMMIT_FIELDS.unpack(fields))


def find_commit_tail(owner: int, data: bytes, offset: int) -> CommitHead | None:
    """Find the head of the commit at the start of `data` through its tail; `data` starts at `offset`."""
    at = data.find(_TAIL_MAGIC, COMMIT_HEAD_BYTES)
    while at >= 0:
        head = _decode_fields(owner, data[at + 4 - COMMIT_HEAD_BYTES : at])
        if head is not None and head.offset == offset and head.size == at + 4:
            return head
        at = data.find(_TAIL_MAGIC, at + 1)
    return None


def find_commit(owner: int, data: bytes, start: int, offset: int) -> CommitHead | None:
    """Find the first commit at or after `start` in `data`, which starts at `offset` in the file."""
    at = data.find(_HEAD_MAGIC, start)
    while at >= 0:
        head = decode_commit_head(owner, data, at, offset + at)
        if head is not None:
            return head
        at = data.find(_HEAD_MAGIC, at + 1)
    return None


class Commit(NamedTuple):
    """A commit as recovery read it. `damage` is empty if all its bytes are intact."""

    head: CommitHead
    contents: Contents
    payload: bytes
    """The rows and records of each group."""
    damage: tuple[str, ...] = ()
    """The names of the damaged parts: head, contents, contents copy, tail, rows and records."""


PAYLOAD = "rows and records"


def decode_commit(owner: int, head: CommitHead, data: bytes) -> Commit | None:
    """Return the commit in exactly these bytes, or None if both copies of its contents are damaged."""
    size, first = head.contents_bytes, COMMIT_HEAD_BYTES
    second = first + size + head.payload_bytes
    one, two = data[first : first + size], data[second : second + size]
    payload = data[first + size : second]
    damage = []
    if decode_commit_head(owner, data, 0, head.offset) != head:
        damage.append("head")
    contents = _decode_contents(head, one)
    if contents is None:
        damage.append("contents")
        contents = _decode_contents(head, two)
        if contents is None:
            return None
    elif two != one:
        damage.append("contents copy")
    if data[-4:] != _TAIL_MAGIC or _decode_fields(owner, data[second + size : -4]) != head:
        damage.append("tail")
    if checksum(payload) != head.payload_checksum:
        damage.append(PAYLOAD)
    return Commit(head, contents, payload, tuple(damage))


def _decode_contents(head: CommitHead, data: bytes) -> Contents | None:
    if len(data) != head.contents_bytes or checksum(data) != head.contents_checksum:
        return None
    try:
        return _contents_decoder.decode(data)
    except msgspec.DecodeError:
        return None


def piece_records(pieces: Pieces) -> list[PieceRecord]:
    return [PieceRecord(piece.range.start, piece.range.end, dict(piece.sequences)) for piece in pieces]


def pieces_of(records: Sequence[PieceRecord]) -> Pieces:
    """Convert what `piece_records` returned back."""
    return tuple(Piece(HashRange(record.start, record.end), record.sequences) for record in records)
