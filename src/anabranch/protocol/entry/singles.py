"""Encodes one message into an entry of its own, outside any batch."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.protocol.entry.compression import Compression, packed
from anabranch.protocol.entry.message_fields import set_fields
from anabranch.protocol.frames import build_entry
from anabranch.protocol.pb import pulsar_pb2 as pb


def build_single(
    value: bytes,
    key: bytes | str | None,
    sequence_id: int,
    producer_name: str,
    publish_time_ms: int,
    *,
    properties: Mapping[str, str] | None = None,
    event_time_ms: int = 0,
    ordering_key: bytes | None = None,
    null_value: bool = False,
    compression: Compression = Compression.NONE,
    hash_range: tuple[int, int] | None = None,
    deliver_at_ms: int = 0,
    slot: int | None = None,
) -> bytes:
    """Return an entry that holds one message outside any batch."""
    metadata = pb.MessageMetadata(
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=publish_time_ms,
        uncompressed_size=len(value),
    )
    set_fields(metadata, key, ordering_key, properties, event_time_ms, null_value)
    if hash_range is not None:
        metadata.entry_hash_min, metadata.entry_hash_max = hash_range
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    if slot is not None:
        metadata.slot = slot
    if (smaller := packed(compression, value)) is not None:
        metadata.compression = pb.CompressionType.ValueType(compression)
        value = smaller
    return build_entry(metadata.SerializeToString(), value)
