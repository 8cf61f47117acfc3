"""Which entries a log refuses: claims that contradict the bytes, the command, the key or the segment. Pure.

A check reads the outer metadata once, for every entry that is published. The payload stays closed, so a batch
whose messages contradict its metadata is found by its readers only.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from struct import Struct

from google.protobuf.message import DecodeError
from google_crc32c import value as _crc32c
from mmh3 import hash as _murmur

from anabranch.errors import ChecksumError, NotAllowedError, RemoteProtocolError
from anabranch.model.ranges import FULL, LAST_SLOT, HashRange
from anabranch.protocol.checksums import SLICED_BYTES_MAX, crc32c_behind
from anabranch.protocol.claims import (
    MESSAGE_BYTES_MIN,
    TIME_MS_MAX,
    fault_in_chunk,
    fault_in_count,
)
from anabranch.protocol.commands import Send
from anabranch.protocol.frames import (
    CHECKED_METADATA_START,
    CHECKSUM_MAGIC,
    ENTRY_METADATA_MAGIC,
    MESSAGE_BYTES_MAX,
    checksum_ok,
    deliverable_bytes,
    metadata_span,
)
from anabranch.protocol.outer import decoded_key
from anabranch.protocol.pb import pulsar_pb2 as pb

_NAME_TAG = 0x0A
_MARKER_TAG = b"\xa0\x01"
_read_head = Struct(">HII").unpack_from
_NO_HEAD = (0, 0, 0)
_CHECKSUM_NUMBER = int.from_bytes(CHECKSUM_MAGIC, "big")
_parse_metadata = pb.MessageMetadata.FromString


@dataclass(frozen=True, slots=True)
class EntryRules:
    """The rules that the entries of one producer have to fit, given by its log."""

    splits: tuple[int, ...] = ()
    """Bucket boundaries of the segment; an entry must lie within one bucket."""
    is_segment: bool = False
    """Whether hashes count: a classic topic takes any key and any stamp."""
    ring: HashRange = FULL
    """The slots of the keys; the whole ring for a producer that routes in another way."""
    bytes_max: int = deliverable_bytes(MESSAGE_BYTES_MAX)
    """Limit of `deliverable_bytes`."""
    topic_bytes_max: int | None = None
    """The limit that the topic has of its own."""
    encrypted: bool = False
    """Whether entries have to be encrypted."""


ANY_CLASSIC_ENTRY = EntryRules()


# Every published entry comes through here, on the event loop, before it is stored. Brokers and clients count
# permits, message indexes and batch indexes by the claims of an entry, and a stored entry cannot be changed:
# one whose claims are wrong would trouble every later reader. So it is refused, and only its producer
# notices.
#
# The order serves the usual entry, which has a checksum and at least one message, no compression and no odd
# field: it pays for one checksum, one parse and a few comparisons. A comparison only shows that a closer look
# is needed; the functions below decide and word the error. Two shortcuts replace calls of protobuf for each
# entry. Required fields are there if the numbers are not zero and the name, which serializers write first,
# starts the metadata. And a byte of a tag that does not occur in the raw metadata proves that a field is
# missing; where it occurs it may belong to another field, so `HasField` decides. On a segment, a stamp
# outside one bucket, or a key outside the stamp or the ring's range, would let two consumers read one key at
# a time (PIP-486).
def fault_of(send: Send, rules: EntryRules) -> ChecksumError | NotAllowedError | None:
    """Return the error with which an entry is refused; None if it may be stored."""
    _, sequence_id, claimed, highest, is_chunk, _, _, _, entry = send
    size = len(entry)
    try:
        # The usual entry begins with a checksum; one call reads it and the size of the metadata.
        magic, checksum, end = _read_head(entry) if size >= CHECKED_METADATA_START else _NO_HEAD
        end += CHECKED_METADATA_START
        if magic != _CHECKSUM_NUMBER or end > size:
            raw, end = _unusual_metadata(entry)
        elif (_crc32c(entry[6:]) if size <= SLICED_BYTES_MAX else crc32c_behind(6, entry)) == checksum:
            raw = entry[CHECKED_METADATA_START:end]
        else:
            return ChecksumError("the checksum does not match the entry")
        metadata = _parse_metadata(raw)
    except (RemoteProtocolError, DecodeError) as error:
        return NotAllowedError(f"the metadata of an entry cannot be read: {error}")
    except (ChecksumError, NotAllowedError) as error:
        return error
    published, count = metadata.publish_time, metadata.num_messages_in_batch
    # Serializers write the producer's name first.
    if not (published and metadata.sequence_id and raw[0] == _NAME_TAG) and not metadata.IsInitialized():
        return NotAllowedError("the metadata of an entry lacks a required field")
    fault: str | None = None
    # For most entries these comparisons show that no closer look is needed.
    if (
        count != claimed
        or not 0 < count * MESSAGE_BYTES_MIN <= size - end
        or size + (count >> 2) > rules.bytes_max
        or metadata.compression
        or rules.topic_bytes_max is not None
    ):
        fault = _fault_of_count(send, metadata, size - end, rules)
    late = published > TIME_MS_MAX or metadata.deliver_at_time < 0
    if late or is_chunk or 0 < highest < sequence_id or _MARKER_TAG in raw:
        fault = fault or _fault_of_numbers(send, metadata)
    if fault is None and (rules.is_segment or rules.encrypted):
        fault = _fault_of_log(metadata, raw, rules)
    return None if fault is None else NotAllowedError(fault)


def _unusual_metadata(entry: bytes) -> tuple[bytes, int]:
    """Return the metadata and its end in an entry without a checksum; raises the error of any other form."""
    if not checksum_ok(entry):
        raise ChecksumError("the checksum does not match the entry")
    if entry[:2] == ENTRY_METADATA_MAGIC:
        raise NotAllowedError("an entry must not carry a broker's metadata")
    start, end = metadata_span(entry)
    return entry[start:end], end


def _fault_of_count(
    send: Send, metadata: pb.MessageMetadata, payload_bytes: int, rules: EntryRules
) -> str | None:
    count, size = metadata.num_messages_in_batch, len(send.entry)
    if size + (count >> 2) > rules.bytes_max:
        return f"an entry of {size} bytes with {count} messages cannot be delivered; send less at once"
    most = rules.topic_bytes_max
    if most is not None and payload_bytes > most:
        return f"an entry of {payload_bytes} bytes is too large for this topic: maxMessageSize={most}"
    if not send.is_chunk and count != send.num_messages:
        return f"a SEND of {send.num_messages} messages brought an entry that claims {count}"
    return fault_in_count(metadata, payload_bytes)


def _fault_of_numbers(send: Send, metadata: pb.MessageMetadata) -> str | None:
    if metadata.publish_time > TIME_MS_MAX or metadata.deliver_at_time < 0:
        return "the times of an entry must not be negative"
    if 0 < send.highest_sequence_id < send.sequence_id:
        return f"sequence id {send.highest_sequence_id} cannot be the highest after {send.sequence_id}"
    if metadata.HasField("marker_type"):
        return "markers are not supported"
    return fault_in_chunk(metadata) if send.is_chunk else None


def _fault_of_log(metadata: pb.MessageMetadata, raw: bytes, rules: EntryRules) -> str | None:
    if rules.encrypted and not metadata.encryption_keys:
        return "this topic takes only encrypted messages"
    return _fault_of_hashes(metadata, raw, rules) if rules.is_segment else None


def _fault_of_hashes(metadata: pb.MessageMetadata, raw: bytes, rules: EntryRules) -> str | None:
    """Why the hashes of an entry do not fit its segment or its key, which is that of its first message."""
    stamp: tuple[int, int] | None = None
    low = metadata.entry_hash_min
    # A search for the first byte of a tag costs less than `HasField`, which decides where it is found.
    if low or (0x88 in raw and metadata.HasField("entry_hash_min")):
        high = metadata.entry_hash_max or (0 if metadata.HasField("entry_hash_max") else low)
        if not low <= high <= LAST_SLOT:
            return f"an entry claims bucket hashes from {low} to {high}"
        if low != high and bisect_right(rules.splits, low) != bisect_right(rules.splits, high):
            return "the keys of an entry must lie within one bucket of its segment"
        stamp = low, high
    if 0x92 in raw and metadata.HasField("ordering_key"):
        return _fault_of_stamp(stamp, _murmur(metadata.ordering_key, 0, False))
    text = metadata.partition_key
    if not text and not metadata.HasField("partition_key"):
        return _fault_of_slot(metadata, rules)
    hashed = _murmur(text, 0, False)
    fault = _fault_of_stamp(stamp, hashed)
    if 0x88 in raw and metadata.partition_key_b64_encoded:
        # Java stamps the hash of the text.
        hashed = _murmur(decoded_key(text), 0, False)
        fault = fault and _fault_of_stamp(stamp, hashed)
    ring = rules.ring
    if not ring.start <= hashed >> 16 <= ring.end:
        return f"the key of an entry has slot {hashed >> 16:04x}, which is not in {ring}"
    return fault


def _fault_of_stamp(stamp: tuple[int, int] | None, hashed: int) -> str | None:
    if stamp is None or stamp[0] <= hashed & LAST_SLOT <= stamp[1]:
        return None
    return f"the bucket hash of an entry's key is not in its stamp, {stamp[0]:04x} to {stamp[1]:04x}"


def _fault_of_slot(metadata: pb.MessageMetadata, rules: EntryRules) -> str | None:
    if metadata.HasField("slot") and metadata.slot not in rules.ring:
        return f"an entry claims slot {metadata.slot:04x}, which is not in {rules.ring}"
    return None
