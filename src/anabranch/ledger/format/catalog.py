"""The catalog: all state of a store except its entries, as of the start of one journal file. Pure.

The bounds are a second, small file, because they change more often than the catalog. They bound every number
that the store may have handed out, so that no number is used twice even if the journal is lost. The store
keeps two copies of both files.

The bounds are a second, small file: they change more often than the catalog, and bound all numbers that the
store may have handed out, so that these are never used again, also when the journal is lost. The store keeps
two copies of both files.
"""

from __future__ import annotations

import msgspec

from anabranch.errors import CorruptDataError
from anabranch.ledger.format.commits import PieceRecord
from anabranch.ledger.format.frames import decode_frame, encode_frame


class LedgerRecord(msgspec.Struct, frozen=True, array_like=True):
    """The synced part of one ledger's files.

    Recovery takes later entries from the journal, not from the files.
    """

    id: int
    first_ordinal: int
    first_index: int
    base_ms: int
    entries: int
    messages: int
    size_bytes: int
    elapsed_ms: int
    """The highest broker time of its entries, relative to `base_ms`."""
    rows_checksum: int


class CursorRecord(msgspec.Struct, frozen=True, array_like=True):
    name: str
    acks: bytes
    properties: dict[str, str]
    note: bytes = b""
    """Missing in catalogs written by versions that had no notes."""


class LogRecord(msgspec.Struct, frozen=True, array_like=True):
    id: int
    name: str
    sealed: bool
    first_ordinal: int
    first_index: int
    end_ledger: int
    """The position after the last entry ever written. Its ledger may have been trimmed."""
    end_entry: int
    index_floor: int
    """The lowest index for the first message of the next ledger; 0 if no messages were lost."""
    last_ms: int
    ledgers: list[LedgerRecord]
    cursors: list[CursorRecord]
    producers: dict[str, int]
    inherited: list[PieceRecord]


class Catalog(msgspec.Struct, frozen=True):
    """The state before the first commit of journal file number `journal`."""

    salt: int
    """Part of every commit's checksum, so that bytes of another store or of a client never pass as a
    commit."""
    serial: int
    """Counts the catalogs of the store. The copy with the higher number is the newer one."""
    journal: int
    next_commit: int
    next_log: int
    next_ledger: int
    logs: list[LogRecord]


class Bounds(msgspec.Struct, frozen=True):
    """Numbers that the store may have used. They are durable before their first use."""

    salt: int
    serial: int
    next_ledger: int
    """Ledger ids from this one on were never handed out."""
    journal: int
    """The newest journal file, which exists and has at least one commit; 0 before the first one."""


_encoder = msgspec.msgpack.Encoder()
_catalog_decoder = msgspec.msgpack.Decoder(Catalog)
_bounds_decoder = msgspec.msgpack.Decoder(Bounds)


def encode_catalog(catalog: Catalog) -> bytes:
    return encode_frame("catalog", _encoder.encode(catalog))


def decode_catalog(data: bytes) -> Catalog:
    """Decode what `encode_catalog` wrote; raise CorruptDataError or UnsupportedFormatError otherwise."""
    try:
        return _catalog_decoder.decode(decode_frame("catalog", data))
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"the catalog cannot be decoded: {error}") from error


def encode_bounds(bounds: Bounds) -> bytes:
    return encode_frame("bounds", _encoder.encode(bounds))


def decode_bounds(data: bytes) -> Bounds:
    """Decode what `encode_bounds` wrote; raise CorruptDataError or UnsupportedFormatError otherwise."""
    try:
        return _bounds_decoder.decode(decode_frame("bounds", data))
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"the bounds cannot be decoded: {error}") from error
