"""The catalog: all state of a store except the entries, as of the start of one journal file. Pure."""

from __future__ import annotations

import msgspec

from anabranch.errors import CorruptDataError
from anabranch.ledger.format.commits import PieceRecord
from anabranch.ledger.format.records import checksum

_CATALOG_MAGIC = b"anabranch catalog 1\n"


class LedgerRecord(msgspec.Struct, frozen=True, array_like=True):
    """The synced part of one ledger's files; recovery takes later entries from the journal, not the files."""

    id: int
    first_ordinal: int
    first_index: int
    base_ms: int
    entries: int
    messages: int
    size_bytes: int
    elapsed_ms: int
    """Highest broker time of its entries, relative to `base_ms`."""
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
    inherited: list[PieceRecord]


class Catalog(msgspec.Struct, frozen=True):
    """The state before the first commit of journal file `journal`."""

    salt: int
    """Part of every commit's checksum: bytes of another directory or of a client never pass as a commit."""
    journal: int
    next_commit: int
    next_log: int
    next_ledger: int
    logs: list[LogRecord]


_encoder = msgspec.msgpack.Encoder()
_catalog_decoder = msgspec.msgpack.Decoder(Catalog)


def encode_catalog(catalog: Catalog) -> bytes:
    body = _encoder.encode(catalog)
    return _CATALOG_MAGIC + int(checksum(body)).to_bytes(4, "little") + body


def decode_catalog(data: bytes) -> Catalog:
    """Undo `encode_catalog`; CorruptDataError for anything else."""
    start = len(_CATALOG_MAGIC) + 4
    if data[: len(_CATALOG_MAGIC)] != _CATALOG_MAGIC:
        raise CorruptDataError("the catalog has an unknown format; restore it from a copy")
    body = data[start:]
    if checksum(body) != int.from_bytes(data[len(_CATALOG_MAGIC) : start], "little"):
        raise CorruptDataError("the catalog does not match its checksum; restore it from a copy")
    try:
        return _catalog_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"the catalog cannot be decoded: {error}") from error
