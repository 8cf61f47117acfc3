"""Changes of logs and cursors, as a commit stores them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anabranch.model.inheritance import Piece, Pieces
from anabranch.model.ranges import HashRange


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


def piece_records(pieces: Pieces) -> list[PieceRecord]:
    return [PieceRecord(piece.range.start, piece.range.end, dict(piece.sequences)) for piece in pieces]


def pieces_of(records: Sequence[PieceRecord]) -> Pieces:
    """Undo `piece_records`."""
    return tuple(Piece(HashRange(record.start, record.end), record.sequences) for record in records)
