"""Stored entries of one log, read for an answer and left where they are, with Pulsar's headers."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Final

import msgspec

from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.errors import NotFoundError
from anabranch.model.ids import Position
from anabranch.protocol.entry.compression import decompress
from anabranch.protocol.entry.entries import checked_metadata
from anabranch.protocol.pb import pulsar_pb2 as pb

PEEKED_MAX: Final = 100_000
"""The highest number of a message that a peek may name."""


class EntryBody(msgspec.Struct, frozen=True, kw_only=True):
    """One stored entry, as it travels between brokers."""

    ledger: int
    entry: int
    index: int
    """The index of its first message."""
    stored_at_ms: int
    data: bytes


async def entry_at(log: ServedLog, position: Position) -> EntryBody:
    """Return the entry at a position; NotFoundError if none is stored there."""
    ordinal = log.log.extent.ordinal_of(position)
    if log.log.extent.position_of(ordinal) == position and ordinal < log.log.extent.next_ordinal:
        return await entry_of(log, ordinal)
    raise NotFoundError(f"no entry {position.ledger}:{position.entry} is stored")


async def pending_entry(log: ServedLog, subscription: Subscription, number: int) -> EntryBody:
    """Return the entry with this number in the backlog, from 1; raises NotFoundError after its end."""
    acks, end = subscription.cursor.acks, log.log.extent.next_ordinal
    pending = acks.pending_from(max(acks.mark, log.log.extent.first_ordinal), end, min(number, PEEKED_MAX))
    if len(pending) < number:
        raise NotFoundError(f"the backlog of {subscription.name} ends before entry {number}")
    return await entry_of(log, pending[number - 1])


async def counted_entry(log: ServedLog, number: int, *, from_end: bool) -> EntryBody:
    """Return the entry with this number, from 1, counted from the first or the last one; or NotFoundError."""
    extent = log.log.extent
    ordinal = extent.next_ordinal - number if from_end else extent.first_ordinal + number - 1
    if extent.first_ordinal <= ordinal < extent.next_ordinal:
        return await entry_of(log, ordinal)
    raise NotFoundError(f"the topic has fewer than {number} entries")


async def entry_of(log: ServedLog, ordinal: int) -> EntryBody:
    found = await log.log.read_each([ordinal], 1)
    if not found:
        raise NotFoundError("the entry was removed meanwhile")
    (entry,) = found
    return EntryBody(
        ledger=entry.position.ledger,
        entry=entry.position.entry,
        index=log.log.extent.index_of(ordinal),
        stored_at_ms=entry.timestamp_ms,
        data=bytes(entry.data),
    )


def payload_of(found: EntryBody, bytes_max: int) -> tuple[dict[str, str], bytes]:
    """Return the headers and the payload of an entry, uncompressed unless it is encrypted."""
    metadata, start = checked_metadata(found.data)
    payload = found.data[start:]
    if metadata.compression and not metadata.encryption_keys:
        payload = decompress(metadata.compression, payload, metadata.uncompressed_size, bytes_max)
    return _headers(found, metadata, len(payload)), payload


def _headers(found: EntryBody, metadata: pb.MessageMetadata, size: int) -> dict[str, str]:
    properties = {one.key: one.value for one in metadata.properties}
    headers = {
        "Message-ID": f"{found.ledger}:{found.entry}",
        "PROPERTY": json.dumps(properties),
        "Broker-Entry-METADATA-timestamp": _time(found.stored_at_ms),
        "Broker-Entry-METADATA-index": str(found.index),
        "publish-time": _time(metadata.publish_time),
        "producer-name": _ascii(metadata.producer_name),
        "sequence-id": str(metadata.sequence_id),
        "Is-Encrypted": _flag(bool(metadata.encryption_keys)),
        "txn-consumable": "true",
        **_batch_headers(metadata, size),
        **_key_headers(metadata),
    }
    if metadata.HasField("event_time"):
        headers["event-time"] = _time(metadata.event_time)
    if metadata.HasField("deliver_at_time"):
        headers["deliver-at-time"] = _time(metadata.deliver_at_time)
    if metadata.HasField("null_value"):
        headers["null-value"] = _flag(metadata.null_value)
    if metadata.HasField("schema_version"):
        headers["Base64-schema-version"] = _base64(metadata.schema_version)
    return {f"X-Pulsar-{name}": value for name, value in headers.items()}


def _batch_headers(metadata: pb.MessageMetadata, size: int) -> dict[str, str]:
    headers: dict[str, str] = {}
    if metadata.HasField("num_messages_in_batch"):
        headers = {"num-batch-message": str(metadata.num_messages_in_batch), "batch-size": str(size)}
    if metadata.HasField("num_chunks_from_msg"):
        headers["num-chunks-from-msg"] = str(metadata.num_chunks_from_msg)
        headers["chunk-id"] = str(metadata.chunk_id)
        headers["total-chunk-msg-size"] = str(metadata.total_chunk_msg_size)
        headers["uuid"] = _ascii(metadata.uuid)
    return headers


def _key_headers(metadata: pb.MessageMetadata) -> dict[str, str]:
    """Return the headers of the keys; a key that does not fit a header is sent as base64 and flagged."""
    headers: dict[str, str] = {}
    if metadata.HasField("partition_key"):
        key, encoded = metadata.partition_key, metadata.partition_key_b64_encoded
        if not encoded and _ascii(key) != key:
            key, encoded = _base64(key.encode()), True
        headers = {"partition-key": key, "partition-key-b64-encoded": _flag(encoded)}
    if metadata.HasField("ordering_key"):
        headers["Base64-ordering-key"] = _base64(metadata.ordering_key)
    return headers


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _ascii(text: str) -> str:
    """Return a text that cannot break out of a header."""
    return "".join(one if " " <= one <= "~" else "?" for one in text)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
