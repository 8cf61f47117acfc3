"""Limits for the claims in an entry's metadata, for brokers that store it and for readers.

The numbers in an entry's metadata are claims of its producer. This module compares them with bytes that were
received, and never opens a payload.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from anabranch.errors import RemoteProtocolError
from anabranch.protocol.entry.compression import ROOM_PER_BYTE, UNCOMPRESSED_BYTES_MAX
from anabranch.protocol.frames import metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb

ENTRY_MESSAGES_MAX: Final = 1_000_000
"""Most messages an entry may claim; permits and ack sets grow with them."""

MESSAGE_BYTES_MIN: Final = 6
"""Least bytes of a message in a batch: the size of its header, and a header with a payload size."""

CHUNKS_MAX: Final = 100_000
"""Most chunks of one message."""

TIME_MS_MAX: Final = 2**63 - 1
"""Latest time; peers with signed numbers read a later one as negative."""


def fault_in_count(metadata: pb.MessageMetadata, payload_bytes: int) -> str | None:
    """Return why an entry cannot hold the messages that it claims.

    Return None when its payload has room for them.
    """
    count = metadata.num_messages_in_batch
    if not 0 < count <= ENTRY_MESSAGES_MAX:
        return f"an entry holds 1 to {ENTRY_MESSAGES_MAX} messages, not {count}"
    room = payload_bytes
    if metadata.compression:
        fault = fault_in_size(metadata, payload_bytes)
        if fault is not None:
            return fault
        room = metadata.uncompressed_size
    if count * MESSAGE_BYTES_MIN > room and metadata.HasField("num_messages_in_batch"):
        return f"an entry claims {count} messages in {room} bytes"
    return None


def permits_for(count: int, entry: bytes) -> int:
    """Return the permits that an entry uses which was stored as `count` messages.

    An older broker may have stored it with a count that consumers do not find in it.
    """
    return count if count * MESSAGE_BYTES_MIN <= len(entry) else countable_messages(entry)


def countable_messages(entry: bytes) -> int:
    """Return the messages that a consumer counts in an entry: the claim, or 1 if the claim is impossible."""
    try:
        start, end = metadata_span(entry)
        metadata = pb.MessageMetadata.FromString(entry[start:end])
    except (RemoteProtocolError, DecodeError):
        return 1
    return metadata.num_messages_in_batch if fault_in_count(metadata, len(entry) - end) is None else 1


def fault_in_size(metadata: pb.MessageMetadata, payload_bytes: int) -> str | None:
    """Return why a payload cannot have its declared size before compression; None when it can.

    A chunk declares the size of its whole message, which only the reader of all chunks can check.
    """
    size = metadata.uncompressed_size
    if metadata.num_chunks_from_msg > 1:
        return None
    if size > UNCOMPRESSED_BYTES_MAX:
        return f"an entry declares {size} bytes uncompressed; the limit is {UNCOMPRESSED_BYTES_MAX}"
    if size > ROOM_PER_BYTE[metadata.compression] * payload_bytes:
        return f"an entry declares {size} bytes uncompressed, which {payload_bytes} bytes cannot hold"
    return None


def fault_in_chunk(metadata: pb.MessageMetadata) -> str | None:
    """Return why the numbers of a chunk contradict each other; None when they agree."""
    chunks, number, size = metadata.num_chunks_from_msg, metadata.chunk_id, metadata.total_chunk_msg_size
    if not 0 < chunks <= CHUNKS_MAX:
        return f"a message has 1 to {CHUNKS_MAX} chunks, not {chunks}"
    if not 0 <= number < chunks:
        return f"chunk {number} of {chunks} does not exist"
    if size < 0:
        return f"a message in chunks cannot have {size} bytes"
    return None
