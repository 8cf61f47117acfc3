"""Frames to commands and back.

The four shapes that carry the traffic (SEND, its receipt, MESSAGE, and an entry's outer metadata) are plain
tuples read and written by hand; every other command is the generated protobuf message. Whatever the fast
readers do not expect goes to the generated code, which decides. Nothing here knows what a command does.
"""

from __future__ import annotations

from base64 import b64decode
from struct import Struct
from typing import Final, NamedTuple

import mmh3
from google.protobuf.message import DecodeError, Message

from anabranch.errors import LocalProtocolError, RemoteProtocolError
from anabranch.protocol.frames import (
    ENTRY_METADATA_MAGIC,
    Frame,
    metadata_span,
)
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import encode_varint

NO_ID: Final = 2**64 - 1
"""How -1 looks in an unsigned field: no ledger, no entry, no request."""


class Send(NamedTuple):
    """SEND: one entry for a producer."""

    producer_id: int
    sequence_id: int
    num_messages: int
    highest_sequence_id: int
    """0 when the peer did not say."""
    is_chunk: bool
    marker: bool
    txn_most: int
    txn_least: int
    entry: bytes


class SendReceipt(NamedTuple):
    """SEND_RECEIPT; ledger and entry are NO_ID when the broker recognised a duplicate."""

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    ledger: int
    entry: int


class Delivery(NamedTuple):
    """MESSAGE: one entry for a consumer. `index` belongs to the last message of the entry."""

    consumer_id: int
    ledger: int
    entry: int
    partition: int
    redelivery_count: int
    ack_set: tuple[int, ...]
    consumer_epoch: int | None
    broker_timestamp: int | None
    index: int | None  # type: ignore[assignment]
    data: bytes


class Outer(NamedTuple):
    """What a broker needs to know of an entry without opening its payload."""

    producer_name: str
    sequence_id: int
    highest_sequence_id: int
    """0 when the producer did not say."""
    num_messages: int
    """1 when the entry is not a batch."""
    is_batch: bool
    sticky_hash: int
    """Key_Shared's hash of the ordering key, else the key, else producer and sequence id."""
    bucket_hash: int
    """Lowest bucket hash in the entry as its producer stamped it, else the sticky hash."""
    bucket_hash_max: int
    marker: bool
    """No client may see the entry."""
    deliver_at_ms: int
    """0 when it may be delivered at once."""
    publish_time: int


Command = Send | SendReceipt | Delivery | Message

_pack_sizes = Struct(">II").pack
_pack_size = Struct(">I").pack
_one_size = Struct(">I").unpack_from

_FIELDS: Final = tuple(pb.BaseCommand.DESCRIPTOR.fields_by_number[n] for n in pb.BaseCommand.Type.values())
_FIELD_OF_TYPE: Final = {field.number: field.name for field in _FIELDS}
_TYPE_OF_MESSAGE: Final = {
    field.message_type.full_name: field.number for field in _FIELDS if field.message_type
}


def decode(frame: Frame) -> Command:
    """The command in a frame; raises RemoteProtocolError for anything that is not one."""
    try:
        base = pb.BaseCommand.FromString(frame.command)
    except DecodeError as error:
        raise RemoteProtocolError(f"the peer sent a command that cannot be read: {error}") from error
    name = _FIELD_OF_TYPE[base.type]
    if not base.HasField(name):  # type: ignore[arg-type]
        raise RemoteProtocolError(f"the peer sent command {base.type} without its {name}")
    if base.type == pb.BaseCommand.SEND:
        return _send(base.send, frame.body)
    if base.type == pb.BaseCommand.SEND_RECEIPT:
        return _receipt(base.send_receipt)
    if base.type == pb.BaseCommand.MESSAGE:
        return _delivery(base.message, frame.body)
    command: Message = getattr(base, name)
    return command


def encode(message: Message) -> bytes:
    """A whole frame for a command that carries no entry, from its sub-message."""
    number = _TYPE_OF_MESSAGE.get(message.DESCRIPTOR.full_name)
    if number is None:
        raise LocalProtocolError(f"{message.DESCRIPTOR.full_name} is not a command")
    body = message.SerializeToString()
    command = b"".join(
        (b"\x08", encode_varint(number), encode_varint(number << 3 | 2), encode_varint(len(body)), body)
    )
    return _pack_sizes(len(command) + 4, len(command)) + command


def encode_send(
    producer_id: int, sequence_id: int, num_messages: int, highest_sequence_id: int, entry: bytes
) -> list[bytes]:
    """Buffers of one SEND frame; `highest_sequence_id` 0 and `num_messages` 1 are left out."""
    fields = b"\x08" + encode_varint(producer_id) + b"\x10" + encode_varint(sequence_id)
    if num_messages != 1:
        fields += b"\x18" + encode_varint(num_messages)
    if highest_sequence_id:
        fields += b"\x30" + encode_varint(highest_sequence_id)
    command = b"\x08\x06\x32" + encode_varint(len(fields)) + fields
    return [_pack_sizes(len(command) + 4 + len(entry), len(command)) + command, entry]


def encode_receipt(
    producer_id: int, sequence_id: int, highest_sequence_id: int, ledger: int, entry: int
) -> bytes:
    """A whole SEND_RECEIPT frame; `highest_sequence_id` 0 is left out, ids may be -1 or NO_ID."""
    place = b"\x08" + encode_varint(ledger) + b"\x10" + encode_varint(entry)
    fields = b"".join(
        (
            b"\x08",
            encode_varint(producer_id),
            b"\x10",
            encode_varint(sequence_id),
            b"\x1a",
            encode_varint(len(place)),
            place,
        )
    )
    if highest_sequence_id:
        fields += b"\x20" + encode_varint(highest_sequence_id)
    command = b"\x08\x07\x3a" + encode_varint(len(fields)) + fields
    return _pack_sizes(len(command) + 4, len(command)) + command


def encode_delivery(
    consumer_id: int,
    ledger: int,
    entry: int,
    partition: int,
    redelivery_count: int,
    ack_set: tuple[int, ...],
    consumer_epoch: int | None,
    entry_metadata: tuple[int, int] | None,
    data: bytes,
) -> list[bytes]:
    """Buffers of one MESSAGE frame.

    `entry_metadata` is (broker timestamp, index of the last message) for peers that may see it.
    """
    place = (
        b"\x08" + encode_varint(ledger) + b"\x10" + encode_varint(entry) + b"\x18" + encode_varint(partition)
    )
    fields = b"\x08" + encode_varint(consumer_id) + b"\x12" + encode_varint(len(place)) + place
    if redelivery_count:
        fields += b"\x18" + encode_varint(redelivery_count)
    for word in ack_set:
        fields += b"\x20" + encode_varint(word)
    if consumer_epoch is not None:
        fields += b"\x28" + encode_varint(consumer_epoch)
    command = b"\x08\x09\x4a" + encode_varint(len(fields)) + fields
    prefix = b""
    if entry_metadata is not None:
        timestamp, index = entry_metadata
        stamp = b"\x08" + encode_varint(timestamp) + b"\x10" + encode_varint(index)
        prefix = ENTRY_METADATA_MAGIC + _pack_size(len(stamp)) + stamp
    sizes = _pack_sizes(len(command) + 4 + len(prefix) + len(data), len(command))
    return [sizes + command + prefix, data]


def read_outer(entry: bytes) -> Outer:
    """The outer metadata of an entry; raises RemoteProtocolError when there is none to read."""
    start, end = metadata_span(entry)
    try:
        metadata = pb.MessageMetadata.FromString(entry[start:end])
    except DecodeError as error:
        raise RemoteProtocolError(f"an entry's metadata cannot be read: {error}") from error
    if metadata.HasField("ordering_key"):
        key = metadata.ordering_key
    elif metadata.HasField("partition_key"):
        key = metadata.partition_key.encode()
        if metadata.partition_key_b64_encoded:
            key = _decode_key(key)
    else:
        key = b"%b-%d" % (metadata.producer_name.encode(), metadata.sequence_id)
    sticky = (mmh3.hash(key, 0, False) & 0xFFFF) or 1
    stamped = metadata.HasField("entry_hash_min")
    low = metadata.entry_hash_min if stamped else sticky
    high = metadata.entry_hash_max if stamped and metadata.HasField("entry_hash_max") else low
    return Outer(
        metadata.producer_name,
        metadata.sequence_id,
        metadata.highest_sequence_id,
        metadata.num_messages_in_batch,
        metadata.HasField("num_messages_in_batch"),
        sticky,
        low,
        high,
        metadata.HasField("marker_type"),
        metadata.deliver_at_time,
        metadata.publish_time,
    )


def _decode_key(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return text


def _send(send: pb.CommandSend, body: bytes | None) -> Send:
    if body is None:
        raise RemoteProtocolError("the peer sent a SEND without an entry")
    return Send(
        send.producer_id,
        send.sequence_id,
        send.num_messages,
        send.highest_sequence_id,
        send.is_chunk,
        send.marker,
        send.txnid_most_bits,
        send.txnid_least_bits,
        body,
    )


def _receipt(receipt: pb.CommandSendReceipt) -> SendReceipt:
    place = receipt.message_id
    known = receipt.HasField("message_id")
    return SendReceipt(
        receipt.producer_id,
        receipt.sequence_id,
        receipt.highest_sequence_id,
        place.ledgerId if known else NO_ID,
        place.entryId if known else NO_ID,
    )


def _delivery(message: pb.CommandMessage, body: bytes | None) -> Delivery:
    if body is None:
        raise RemoteProtocolError("the peer sent a MESSAGE without an entry")
    timestamp: int | None = None
    index: int | None = None
    if body[:2] == ENTRY_METADATA_MAGIC:
        end = 6 + (_one_size(body, 2)[0] if len(body) >= 6 else 0)
        if end > len(body):
            raise RemoteProtocolError("the peer sent a MESSAGE that ends inside the broker's metadata")
        try:
            stamp = pb.BrokerEntryMetadata.FromString(body[6:end])
        except DecodeError as error:
            raise RemoteProtocolError(f"broker metadata cannot be read: {error}") from error
        timestamp = stamp.broker_timestamp if stamp.HasField("broker_timestamp") else None
        index = stamp.index if stamp.HasField("index") else None
        body = body[end:]
    place = message.message_id
    return Delivery(
        message.consumer_id,
        place.ledgerId,
        place.entryId,
        place.partition,
        message.redelivery_count,
        tuple(message.ack_set),
        message.consumer_epoch if message.HasField("consumer_epoch") else None,
        timestamp,
        index,
        body,
    )
