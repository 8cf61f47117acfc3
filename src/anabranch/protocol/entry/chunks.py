"""Messages in chunks: one message too large for an entry is stored as several entries of one producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.errors import CorruptDataError, MessageTooBigError
from anabranch.protocol.entry.claims import fault_in_chunk
from anabranch.protocol.entry.entries import checked_metadata
from anabranch.protocol.frames import build_entry

CHUNK_FIELDS = ("uuid", "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id")
FIELD_BYTES = 128
"""Room for the fields of a chunk in the metadata, besides the name of the producer."""


class Chunk(NamedTuple):
    """The place of an entry in its message."""

    producer_name: str
    uuid: str
    number: int
    total: int


def chunk_in(entry: bytes) -> Chunk:
    """Read the metadata of a chunk; raises ChecksumError or CorruptDataError."""
    metadata, _ = checked_metadata(entry)
    fault = fault_in_chunk(metadata)
    if fault is not None:
        raise CorruptDataError(fault)
    return Chunk(metadata.producer_name, metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)


def split_entry(entry: bytes, limit: int) -> list[bytes]:
    """Return the chunks of an entry of one message, each an entry of at most `limit` bytes."""
    metadata, start = checked_metadata(entry)
    size = limit - start - 2 * len(metadata.producer_name) - FIELD_BYTES
    if size < 1:
        raise MessageTooBigError(f"the key and properties of the message do not fit into {limit} bytes")
    payload = entry[start:]
    pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
    metadata.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
    metadata.num_chunks_from_msg = len(pieces)
    metadata.total_chunk_msg_size = len(payload)
    chunks = []
    for number, piece in enumerate(pieces):
        metadata.chunk_id = number
        chunks.append(build_entry(metadata.SerializeToString(), piece))
    return chunks


def join_chunks(chunks: Sequence[bytes]) -> bytes:
    """Undo `split_entry`; raises CorruptDataError if the chunks do not make the size that they declare."""
    payloads = []
    for chunk in chunks:
        metadata, start = checked_metadata(chunk)
        payloads.append(chunk[start:])
    payload = b"".join(payloads)
    if len(payload) != metadata.total_chunk_msg_size:
        raise CorruptDataError(
            f"the chunks have {len(payload)} bytes, not the {metadata.total_chunk_msg_size} they declare"
        )
    for field in CHUNK_FIELDS:
        metadata.ClearField(field)  # type: ignore[arg-type]
    return build_entry(metadata.SerializeToString(), payload)
