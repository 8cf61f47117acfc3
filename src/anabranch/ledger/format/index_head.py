"""The head of an index file, which says which ledger of which log its rows describe. Pure.

It allows the entries of a log to be found again when the catalog or the journal is lost.

With it the entries of a log can be found again when the catalog or the journal is lost.
"""

from __future__ import annotations

import msgspec

from anabranch.ledger.format.records import checksum

_MAGIC = b"aBi\xa5"
_FIXED_BYTES = 10


class IndexHead(msgspec.Struct, frozen=True, array_like=True):
    """A ledger, its log, and the coordinates of its first entry."""

    log: int
    name: str
    ledger: int
    first_ordinal: int
    first_index: int
    base_ms: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(IndexHead)


def encode_index_head(head: IndexHead) -> bytes:
    body = _encoder.encode(head)
    return _MAGIC + len(body).to_bytes(2, "little") + int(checksum(body)).to_bytes(4, "little") + body


def decode_index_head(data: bytes) -> IndexHead | None:
    """Return the head at the start of `data`, or None if it is damaged."""
    end = _FIXED_BYTES + int.from_bytes(data[4:6], "little")
    body = data[_FIXED_BYTES:end]
    if data[:4] != _MAGIC or len(data) < end or checksum(body) != int.from_bytes(data[6:10], "little"):
        return None
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        return None
