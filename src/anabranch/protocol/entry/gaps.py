"""A mark in place of damaged entries, for Anabranch readers that count the messages of a log.

Without the mark such a reader would wait for messages that cannot be read. The mark claims messages that it
does not hold, so every decoder refuses it.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from anabranch.errors import RemoteProtocolError
from anabranch.protocol.frames import build_entry, metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb

GAP_PRODUCER: Final = "anabranch.damaged"
"""The name of the producer in a mark; clients cannot send entries of this form."""


def gap_mark(messages: int) -> bytes:
    """Return the mark for damaged entries that held this many messages."""
    metadata = pb.MessageMetadata(
        producer_name=GAP_PRODUCER, sequence_id=0, publish_time=0, num_messages_in_batch=max(messages, 1)
    )
    return build_entry(metadata.SerializeToString(), b"")


def is_gap(entry: bytes) -> bool:
    """Return whether an entry that cannot be decoded is a mark."""
    try:
        start, end = metadata_span(entry)
        metadata = pb.MessageMetadata.FromString(entry[start:end])
    except (RemoteProtocolError, DecodeError):
        return False
    # A broker refuses a batch without a payload, so no producer can have stored an entry of this form.
    claims_batch = metadata.HasField("num_messages_in_batch") and not metadata.compression
    return metadata.producer_name == GAP_PRODUCER and end == len(entry) and claims_batch
