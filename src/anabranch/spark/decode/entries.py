"""Opens stored entries: verifies and decompresses them, and gives each the form of a batch.

It knows the outer format of entries and nothing about Spark; `spans` finds the messages inside.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from anabranch.errors import CorruptDataError, UnsupportedFeatureError
from anabranch.model.ranges import HashRange
from anabranch.protocol.claims import TIME_MS_MAX, fault_in_count
from anabranch.protocol.compression import decompress
from anabranch.protocol.entries import checked_metadata
from anabranch.protocol.outer import stamped_hashes
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import encode_varint
from anabranch.spark.decode.message_headers import KEY

_pack_size = Struct(">I").pack


class Payload(NamedTuple):
    """The payload of one entry in the form of a batch, even if the entry holds a single message."""

    data: bytes | memoryview
    count: int  # type: ignore[assignment]
    publish_time_ms: int
    producer: str = ""
    schema_version: bytes = b""
    first_sequence: int = 0
    """Messages without a sequence id of their own are numbered from this one."""
    consecutive: bool = False
    """Whether all messages are numbered that way, even if they have ids of their own."""
    bucket_hashes: HashRange | None = None
    """Lowest and highest bucket hash of the messages, as the producer recorded them."""


def open_entry(entry: bytes, limit: int) -> Payload:
    """Verify and decompress an entry; raises the errors of `protocol.entries.decode_columns`."""
    metadata, end = checked_metadata(entry)
    if metadata.encryption_keys:
        raise UnsupportedFeatureError("the entry is encrypted, which the Spark source cannot read")
    if metadata.num_chunks_from_msg > 1:
        raise UnsupportedFeatureError(
            "the entry is a chunk of a larger message, which the Spark source cannot read"
        )
    data: bytes | memoryview = memoryview(entry)[end:]
    fault = fault_in_count(metadata, len(data))
    if metadata.HasField("marker_type"):
        fault = "the entry is a marker, which no broker delivers"
    if fault is not None:
        raise CorruptDataError(fault)
    published = min(metadata.publish_time, TIME_MS_MAX)
    if metadata.compression:
        data = decompress(metadata.compression, bytes(data), metadata.uncompressed_size, limit)
    if metadata.HasField("num_messages_in_batch"):
        inner, count = data, metadata.num_messages_in_batch
    else:
        inner, count = _as_batch(metadata, bytes(data)), 1
    # An entry that was published by a sink has new outer metadata, but still the old ids inside.
    ids = metadata.sequence_id, metadata.highest_sequence_id - metadata.sequence_id == count - 1
    name, version = metadata.producer_name, metadata.schema_version
    return Payload(inner, count, published, name, version, *ids, stamped_hashes(metadata))


def _as_batch(metadata: pb.MessageMetadata, value: bytes) -> bytes:
    header = pb.SingleMessageMetadata(payload_size=len(value), sequence_id=metadata.sequence_id)
    header.properties.extend(metadata.properties)
    if metadata.HasField("partition_key") and not metadata.null_partition_key:
        key: str | bytes = metadata.partition_key
        if isinstance(key, bytes):
            # Protobuf can parse text that is not UTF-8, but refuses to set it.
            header.MergeFromString(bytes((KEY,)) + encode_varint(len(key)) + key)
        else:
            header.partition_key = key
        header.partition_key_b64_encoded = metadata.partition_key_b64_encoded
    if metadata.event_time:
        header.event_time = metadata.event_time
    if metadata.null_value:
        header.null_value = True
    packed = header.SerializeToString()
    return _pack_size(len(packed)) + packed + value
