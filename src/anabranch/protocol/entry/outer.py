"""Reads the outer metadata of an entry; the payload stays closed."""

from __future__ import annotations

from base64 import b64decode
from typing import NamedTuple

from google.protobuf.message import DecodeError
from mmh3 import hash as _murmur

from anabranch.errors import RemoteProtocolError
from anabranch.model.ranges import LAST_SLOT, HashRange
from anabranch.protocol.frames import metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb

_parse_metadata = pb.MessageMetadata.FromString
# The constructor of a named tuple is a Python function; this is the C call inside it.
_new = tuple.__new__

EntryHead = tuple[pb.MessageMetadata, int]
"""The metadata of an entry, and the offset of its payload."""

_DELIVER_AT_TAG = b"\x98\x01"


class Outer(NamedTuple):
    """The fields of an entry that a broker needs."""

    producer_name: str
    sequence_id: int
    highest_sequence_id: int
    """0 when the producer sent none."""
    num_messages: int
    """1 when the entry is not a batch."""
    is_batch: bool
    sticky_hash: int
    """Key_Shared's hash of the ordering key, else the key, else producer and sequence id."""
    bucket_hash: int
    """Lowest bucket hash in the entry as its producer stamped it, else the sticky hash."""
    bucket_hash_max: int
    marker: bool
    """Whether the broker must not deliver the entry to clients."""
    deliver_at_ms: int
    """0 for immediate delivery."""
    publish_time: int
    chunked: bool = False
    """Whether the entry is one of several chunks of a message."""


# Keyed dispatch reads every entry through here, so the cost of this function bounds what a Key_Shared
# subscription delivers; it is one parse of the metadata, one hash, and no look at the payload (the broker may
# not be able to open it: it can be compressed or encrypted).
#
# A search for the first byte of a field's tag in the raw metadata costs less than `HasField`. The byte may
# belong to another field, so `HasField` decides where the search finds it. Without `HasField` an empty key
# would look like no key, and its messages would lose their order. A message without a key is spread by
# producer and sequence id. The sticky hash is never 0, as in Pulsar, where 0 stands for "not set". The stamp
# of the producer goes before the hash of the key (PIP-486), because a batch of several keys names only its
# first one.
def read_outer(entry: bytes) -> Outer:
    """Return the outer metadata of an entry; RemoteProtocolError if it cannot be read."""
    start, end = metadata_span(entry)
    raw = entry[start:end]
    try:
        metadata = _parse_metadata(raw)
    except DecodeError as error:
        raise RemoteProtocolError(f"an entry's metadata cannot be read: {error}") from error
    producer_name = metadata.producer_name
    sequence_id, publish_time = metadata.sequence_id, metadata.publish_time
    if not (producer_name and sequence_id and publish_time) and not metadata.IsInitialized():
        raise RemoteProtocolError("an entry's metadata lacks a required field")
    if not isinstance(producer_name, str):
        raise RemoteProtocolError("an entry's producer name is not UTF-8")
    key: str | bytes = metadata.partition_key
    if 0x92 in raw and metadata.HasField("ordering_key"):
        key = metadata.ordering_key
    elif key or (0x32 in raw and metadata.HasField("partition_key")):
        if 0x88 in raw and metadata.partition_key_b64_encoded:
            key = decoded_key(metadata.partition_key)
    else:
        key = f"{producer_name}-{sequence_id}"
    low = high = sticky = (_murmur(key, 0, False) & 0xFFFF) or 1
    if 0x88 in raw and (metadata.entry_hash_min or metadata.HasField("entry_hash_min")):
        low = metadata.entry_hash_min
        high = metadata.entry_hash_max or (0 if metadata.HasField("entry_hash_max") else low)
    num_messages = metadata.num_messages_in_batch
    return _new(
        Outer,
        (
            producer_name,
            sequence_id,
            metadata.highest_sequence_id,
            num_messages,
            num_messages != 1 or (0x58 in raw and metadata.HasField("num_messages_in_batch")),
            sticky,
            low,
            high,
            0xA0 in raw and metadata.HasField("marker_type"),
            metadata.deliver_at_time,
            publish_time,
            0xD8 in raw and metadata.num_chunks_from_msg > 1,
        ),
    )


def stamped_hashes(metadata: pb.MessageMetadata) -> HashRange | None:
    """Return the bucket hashes that a producer stamped on its entry.

    Return None if there is no valid stamp.
    """
    if not metadata.HasField("entry_hash_min") or not metadata.HasField("entry_hash_max"):
        return None
    low, high = metadata.entry_hash_min, metadata.entry_hash_max
    return HashRange(low, high) if 0 <= low <= high <= LAST_SLOT else None


def head_without(entry: bytes, wanted: HashRange) -> bytes | None:
    """Return the entry without its payload, if its stamp shows that no message has a wanted bucket hash.

    Return None if the whole entry is needed.
    """
    try:
        start, end = metadata_span(entry)
        hashes = stamped_hashes(_parse_metadata(entry[start:end]))
    except (RemoteProtocolError, DecodeError):
        return None
    return None if hashes is None or hashes.overlaps(wanted) else entry[:end]


def read_slot(entry: bytes) -> int | None:
    """Return the slot of the ring of an entry's only message; None for several messages or an unknown slot.

    Raises RemoteProtocolError when the metadata cannot be read.
    """
    metadata, _ = read_metadata(entry)
    if metadata.num_messages_in_batch > 1:
        return None
    key: str | bytes
    if metadata.HasField("ordering_key"):
        key = metadata.ordering_key
    elif metadata.HasField("partition_key"):
        key = metadata.partition_key
        if metadata.partition_key_b64_encoded:
            key = decoded_key(metadata.partition_key)
    else:
        return metadata.slot if metadata.HasField("slot") else None
    return _murmur(key, 0, False) >> 16


def read_sample_key(entry: bytes) -> bytes | None:
    """Return the key of a message of the entry as it is hashed: a sample, or that of the first message.

    Raises RemoteProtocolError when the metadata cannot be read.
    """
    metadata, _ = read_metadata(entry)
    if metadata.HasField("sample_key"):
        return metadata.sample_key or None
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if not metadata.HasField("partition_key"):
        return None
    key: str | bytes = metadata.partition_key
    if metadata.partition_key_b64_encoded:
        key = decoded_key(metadata.partition_key)
    return key.encode() if isinstance(key, str) else key


def read_metadata(entry: bytes) -> EntryHead:
    """Return the metadata of an entry with its required fields, and the offset of its payload.

    Raises RemoteProtocolError when the metadata cannot be read.
    """
    start, end = metadata_span(entry)
    try:
        metadata = _parse_metadata(entry[start:end])
    except DecodeError as error:
        raise RemoteProtocolError(f"an entry's metadata cannot be read: {error}") from error
    # FromString accepts a message that lacks required fields.
    if not metadata.IsInitialized():
        raise RemoteProtocolError("an entry's metadata lacks a required field")
    return metadata, end


def decoded_key(text: str) -> str | bytes:
    """Return the key of a Base64 text as it is hashed; the text itself if it is not Base64."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return text


def deliver_at_ms(entry: bytes) -> int:
    """Return the delivery time of an entry, or 0; for most entries this is one search of the metadata."""
    try:
        start, end = metadata_span(entry)
        if entry.find(_DELIVER_AT_TAG, start, end) < 0:
            return 0
        return read_outer(entry).deliver_at_ms
    except RemoteProtocolError:
        return 0
