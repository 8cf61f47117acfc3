"""Reads from an entry's metadata what decides whether, and as what, the entry is stored."""

from __future__ import annotations

from bisect import bisect_right

from google.protobuf.message import DecodeError

from anabranch.errors import AnabranchError, ChecksumError, NotAllowedError, RemoteProtocolError
from anabranch.protocol.frames import ENTRY_METADATA_MAGIC, metadata_span
from anabranch.protocol.outer import read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb

_MIN_TAG = b"\x88\x02"
_MAX_TAG = b"\x90\x02"


def fault_of(entry: bytes, splits: tuple[int, ...]) -> AnabranchError | None:
    """The error with which an entry is refused by a segment with these bucket boundaries; None if it fits."""
    if entry[:2] == ENTRY_METADATA_MAGIC:
        return NotAllowedError("an entry must not carry a broker's metadata")
    try:
        if splits and not in_one_bucket(entry, splits):
            return NotAllowedError("the keys of an entry must lie within one bucket of its segment")
    except RemoteProtocolError as error:
        return ChecksumError(str(error))
    return None


def in_one_bucket(entry: bytes, splits: tuple[int, ...]) -> bool:
    """Whether the hashes stamped on an entry share a bucket; one without a stamp has a single hash.

    Producers write the stamp last, where it is found without reading the rest. An entry without a stamp at
    that place is read in full, and so is an entry that would be refused.
    """
    start, end = metadata_span(entry)
    at = entry.find(_MIN_TAG, max(end - 10, start), end)
    if at >= 0:
        low, at = _short_varint(entry, at + 2)
        if entry[at : at + 2] == _MAX_TAG:
            high, at = _short_varint(entry, at + 2)
            if at == end and bisect_right(splits, low) == bisect_right(splits, high):
                return True
    outer = read_outer(entry)
    return bisect_right(splits, outer.bucket_hash) == bisect_right(splits, outer.bucket_hash_max)


def _short_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 28:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at


def is_last_chunk(entry: bytes) -> bool:
    """Whether an entry is the last chunk of its message; an unreadable one counts as the last."""
    try:
        start, end = metadata_span(entry)
        metadata = pb.MessageMetadata.FromString(entry[start:end])
    except (RemoteProtocolError, DecodeError):
        return True
    return metadata.chunk_id >= metadata.num_chunks_from_msg - 1
