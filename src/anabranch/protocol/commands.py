"""Frames to commands and back.

The four shapes that carry the traffic (SEND, its receipt, MESSAGE, and an entry's outer metadata) are plain
tuples read and written by hand; every other command is the generated protobuf message. Whatever the fast
readers do not expect goes to the generated code, which decides. Nothing here knows what a command does.
"""

from __future__ import annotations

from base64 import b64decode
from struct import Struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError, Message
from mmh3 import hash as _murmur

from anabranch.errors import LocalProtocolError, RemoteProtocolError
from anabranch.protocol.frames import ENTRY_METADATA_MAGIC, Frame, FrameCutter, metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import MORE, SHORT, encode_varint

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
_pack_entry_metadata = Struct(">2sIB").pack
_one_size = Struct(">I").unpack_from
_hot_head = Struct(">III").unpack_from
_HOT_HEAD_BYTES: Final = 12
_SEND_HEAD: Final = 0x08063200
# A named tuple's own constructor is a Python function; this is the C call inside it.
_new = tuple.__new__

_parse_command = pb.BaseCommand.FromString
_parse_send = pb.CommandSend.FromString
_parse_receipt = pb.CommandSendReceipt.FromString
_parse_message = pb.CommandMessage.FromString
_parse_metadata = pb.MessageMetadata.FromString
_parse_entry_metadata = pb.BrokerEntryMetadata.FromString

_FIELDS: Final = tuple(pb.BaseCommand.DESCRIPTOR.fields_by_number[n] for n in pb.BaseCommand.Type.values())
_FIELD_OF_TYPE: Final = {field.number: field.name for field in _FIELDS}
_TYPE_OF_MESSAGE: Final = {f.message_type.full_name: f.number for f in _FIELDS if f.message_type}


class CommandCutter(FrameCutter):
    """Cuts a stream straight into commands; the same as `decode` on each frame of `feed`, in less time.

    A broker gets most of its frames as SENDs, and three parts in ten of their cost would be the frames.
    """

    def read(self, data: bytes) -> list[Command]:
        """Commands completed by `data`; raises RemoteProtocolError for anything else."""
        commands: list[Command] = []
        position = 0
        if self._rest:
            frames: list[Frame] = []
            position = self._complete(data, frames)
            commands += map(decode, frames)
            if self._rest:
                return commands
        position = self._read_whole(data, position, commands)
        if position < len(data):
            commands += map(decode, self.feed(data, position))
        return commands

    def _read_whole(self, data: bytes, position: int, commands: list[Command]) -> int:
        """Read frames as long as the next one is complete; returns where that ended."""
        limit = self.frame_bytes_max - 4
        last = len(data) - _HOT_HEAD_BYTES
        while position <= last:
            total, size, head = _hot_head(data, position)
            if total > limit or size + 4 > total:
                raise self.refusal(total, size)
            after = position + 4 + total
            if after > len(data):
                break
            split = position + 8 + size
            # As in `decode`: the head is type SEND and a sub-message that is the whole rest of the command.
            if head - size == _SEND_HEAD - 4 and size < 0x84 and split < after:
                try:
                    send = _parse_send(data[position + 12 : split])
                except DecodeError as error:
                    raise _unreadable(error) from error
                commands.append(
                    _new(
                        Send,
                        (
                            send.producer_id,
                            send.sequence_id,
                            send.num_messages,
                            send.highest_sequence_id,
                            send.is_chunk,
                            send.marker,
                            send.txnid_most_bits,
                            send.txnid_least_bits,
                            data[split:after],
                        ),
                    )
                )
            else:
                body = data[split:after] if split < after else None
                commands.append(decode((data[position + 8 : split], body)))
            position = after
        return position


def decode(frame: Frame) -> Command:
    """The command in a frame; raises RemoteProtocolError for anything that is not one."""
    command, body = frame
    try:
        # The usual form of a hot command: type, then nothing but the sub-message with a length below 128.
        if body is not None:
            if command[:3] == b"\x08\x06\x32" and command[3] == len(command) - 4 < 0x80:
                return _send(_parse_send(command[4:]), body)
            if command[:3] == b"\x08\x09\x4a" and command[3] == len(command) - 4 < 0x80:
                return _delivery(_parse_message(command[4:]), command, body)
        elif command[:3] == b"\x08\x07\x3a" and command[3] == len(command) - 4 < 0x80:
            return _receipt(_parse_receipt(command[4:]), command)
        return _decode_any(command, body)
    except (DecodeError, IndexError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> RemoteProtocolError:
    return RemoteProtocolError(f"the peer sent a command that cannot be read: {error}")


def _decode_any(command: bytes, body: bytes | None) -> Command:
    base = _parse_command(command)
    name = _FIELD_OF_TYPE[base.type]
    if not base.HasField(name):  # type: ignore[arg-type]
        raise RemoteProtocolError(f"the peer sent command {base.type} without its {name}")
    sub_message: Message = getattr(base, name)
    if isinstance(sub_message, pb.CommandSend):
        return _send(sub_message, body)
    if isinstance(sub_message, pb.CommandSendReceipt):
        return _receipt(sub_message, command)
    if isinstance(sub_message, pb.CommandMessage):
        return _delivery(sub_message, command, body)
    return sub_message


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
    size = len(fields)
    return [_pack_sizes(size + 8 + len(entry), size + 4) + b"\x08\x06\x32" + SHORT[size] + fields, entry]


def encode_receipt(
    producer_id: int, sequence_id: int, highest_sequence_id: int, ledger: int, entry: int
) -> bytes:
    """A whole SEND_RECEIPT frame; `highest_sequence_id` 0 is left out, ids may be -1 or NO_ID."""
    # Written out instead of four calls of `encode_varint`: a broker makes one of these for every entry.
    producer = SHORT[producer_id] if 0 <= producer_id < 0x4000 else encode_varint(producer_id)
    high = sequence_id >> 14
    sequence = MORE[sequence_id & 0x3FFF] + SHORT[high] if 0 < high < 0x4000 else encode_varint(sequence_id)
    where = SHORT[ledger] if 0 <= ledger < 0x4000 else encode_varint(ledger)
    high = entry >> 14
    number = MORE[entry & 0x3FFF] + SHORT[high] if 0 < high < 0x4000 else encode_varint(entry)
    place = len(where) + len(number) + 2
    size = len(producer) + len(sequence) + place + 4
    if not highest_sequence_id:
        return b"".join(
            (_RECEIPT_HEADS[size], producer, b"\x10", sequence, _PLACE_HEADS[place], where, b"\x10", number)
        )
    highest = b"\x20" + encode_varint(highest_sequence_id)
    head = _RECEIPT_HEADS[size + len(highest)]
    return b"".join((head, producer, b"\x10", sequence, _PLACE_HEADS[place], where, b"\x10", number, highest))


_RECEIPT_HEADS: Final = tuple(
    _pack_sizes(size + 8, size + 4) + b"\x08\x07\x3a" + SHORT[size] + b"\x08" for size in range(0x80)
)
"""What a receipt starts with, by the size of its fields; no receipt reaches 128 bytes."""

_PLACE_HEADS: Final = tuple(b"\x1a" + SHORT[size] + b"\x08" for size in range(0x20))


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
    """Buffers of one MESSAGE frame; a `partition` of -1 is left out.

    `entry_metadata` is (broker timestamp, index of the last message) for peers that may see it.
    """
    consumer = SHORT[consumer_id] if 0 <= consumer_id < 0x4000 else encode_varint(consumer_id)
    where = SHORT[ledger] if 0 <= ledger < 0x4000 else encode_varint(ledger)
    high = entry >> 14
    number = MORE[entry & 0x3FFF] + SHORT[high] if 0 < high < 0x4000 else encode_varint(entry)
    if partition >= 0:
        number += b"\x18" + encode_varint(partition)
    place = len(where) + len(number) + 2
    size = len(consumer) + place + 3
    rest = b""
    if redelivery_count or ack_set or consumer_epoch is not None:
        rest = _encode_rest(redelivery_count, ack_set, consumer_epoch)
        size += len(rest)
    size_bytes = encode_varint(size)
    size += 3 + len(size_bytes)
    stamp = b"" if entry_metadata is None else _encode_entry_metadata(*entry_metadata)
    sizes = _pack_sizes(size + 4 + len(stamp) + len(data), size)
    parts = (
        sizes,
        b"\x08\x09\x4a",
        size_bytes,
        b"\x08",
        consumer,
        b"\x12",
        SHORT[place],
        b"\x08",
        where,
        b"\x10",
        number,
        rest,
        stamp,
    )
    return [b"".join(parts), data]


def _encode_rest(redelivery_count: int, ack_set: tuple[int, ...], consumer_epoch: int | None) -> bytes:
    rest = b"\x18" + encode_varint(redelivery_count) if redelivery_count else b""
    if ack_set:
        rest += b"".join([b"\x20" + encode_varint(word) for word in ack_set])
    if consumer_epoch is not None:
        rest += b"\x28" + encode_varint(consumer_epoch)
    return rest


def _encode_entry_metadata(timestamp_ms: int, index: int) -> bytes:
    time = encode_varint(timestamp_ms)
    high = index >> 14
    number = MORE[index & 0x3FFF] + SHORT[high] if 0 < high < 0x4000 else encode_varint(index)
    head = _pack_entry_metadata(ENTRY_METADATA_MAGIC, len(time) + len(number) + 2, 0x08)
    return b"".join((head, time, b"\x10", number))


def read_outer(entry: bytes) -> Outer:
    """The outer metadata of an entry; raises RemoteProtocolError when there is none to read.

    Asking a message whether it has a field costs more than looking for the tag's first byte among its bytes.
    That byte may stand there for another reason, so the message is asked only when it does.
    """
    start, end = metadata_span(entry)
    raw = entry[start:end]
    try:
        metadata = _parse_metadata(raw)
    except DecodeError as error:
        raise RemoteProtocolError(f"an entry's metadata cannot be read: {error}") from error
    producer_name = metadata.producer_name
    sequence_id = metadata.sequence_id
    key: str | bytes = metadata.partition_key
    if 0x92 in raw and metadata.HasField("ordering_key"):
        key = metadata.ordering_key
    elif key or (0x32 in raw and metadata.HasField("partition_key")):
        if 0x88 in raw and metadata.partition_key_b64_encoded:
            key = _decode_key(metadata.partition_key)
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
            metadata.publish_time,
        ),
    )


def _decode_key(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return text.encode()


def _send(send: pb.CommandSend, body: bytes | None) -> Send:
    if body is None:
        raise RemoteProtocolError("the peer sent a SEND without an entry")
    return _new(
        Send,
        (
            send.producer_id,
            send.sequence_id,
            send.num_messages,
            send.highest_sequence_id,
            send.is_chunk,
            send.marker,
            send.txnid_most_bits,
            send.txnid_least_bits,
            body,
        ),
    )


def _receipt(receipt: pb.CommandSendReceipt, command: bytes) -> SendReceipt:
    ledger = entry = NO_ID
    if 0x1A in command and receipt.HasField("message_id"):
        place = receipt.message_id
        ledger, entry = place.ledgerId, place.entryId
    return _new(
        SendReceipt, (receipt.producer_id, receipt.sequence_id, receipt.highest_sequence_id, ledger, entry)
    )


def _delivery(message: pb.CommandMessage, command: bytes, body: bytes | None) -> Delivery:
    if body is None:
        raise RemoteProtocolError("the peer sent a MESSAGE without an entry")
    timestamp: int | None = None
    index: int | None = None
    if body[:2] == ENTRY_METADATA_MAGIC:
        end = 6 + (_one_size(body, 2)[0] if len(body) >= 6 else 0)
        if end > len(body):
            raise RemoteProtocolError("the peer sent a MESSAGE that ends inside the broker's metadata")
        stamp = _parse_entry_metadata(body[6:end])
        timestamp = stamp.broker_timestamp or (0 if stamp.HasField("broker_timestamp") else None)
        index = stamp.index or (0 if stamp.HasField("index") else None)
        body = body[end:]
    place = message.message_id
    return _new(
        Delivery,
        (
            message.consumer_id,
            place.ledgerId,
            place.entryId,
            place.partition,
            message.redelivery_count,
            tuple(message.ack_set) if 0x20 in command else (),
            message.consumer_epoch if 0x28 in command and message.HasField("consumer_epoch") else None,
            timestamp,
            index,
            body,
        ),
    )
