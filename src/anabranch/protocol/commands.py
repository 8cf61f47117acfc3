"""Frames to commands and back.

The three that carry the traffic (SEND, its receipt and MESSAGE) are plain tuples, written by hand and read in
as few steps as Python allows; every other command is the generated protobuf message. Reading leaves the bytes
of numbers to protobuf's C parser, which is faster than Python at more than one of them. Nothing here knows
what a command does.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from anabranch.errors import LocalProtocolError, RemoteProtocolError
from anabranch.protocol.frames import ENTRY_METADATA_MAGIC, Frame, FrameCutter
from anabranch.protocol.outer import Outer, read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import MORE, SHORT, encode_varint

__all__ = [
    "NO_ID",
    "Command",
    "CommandCutter",
    "Delivery",
    "Outer",
    "Send",
    "SendReceipt",
    "decode",
    "encode",
    "encode_delivery",
    "encode_receipt",
    "encode_send",
    "read_outer",
]

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


Command = Send | SendReceipt | Delivery | Message

_pack_sizes = Struct(">II").pack
_one_size = Struct(">I").unpack_from
_hot_head = Struct(">III").unpack_from
_TIMES_MAX: Final = 1024
_HOT_HEAD_BYTES: Final = 12
_HOT_BYTES_MAX: Final = 0x84
"""Hot commands shorter than this have a sub-message whose length takes one byte."""
# The first four bytes of a hot command less the command's size: type, tag and four less than the size.
_SEND_HEAD: Final = 0x08063200 - 4
_RECEIPT_HEAD: Final = 0x08073A00 - 4
_MESSAGE_HEAD: Final = 0x08094A00 - 4
# A named tuple's own constructor is a Python function; this is the C call inside it.
_new = tuple.__new__

_parse_send = pb.CommandSend.FromString
_parse_receipt = pb.CommandSendReceipt.FromString
_parse_message = pb.CommandMessage.FromString
_parse_entry_metadata = pb.BrokerEntryMetadata.FromString

_FIELDS: Final = tuple(pb.BaseCommand.DESCRIPTOR.fields_by_number[n] for n in pb.BaseCommand.Type.values())
_FIELD_OF_TYPE: Final = {field.number: field.name for field in _FIELDS}
_TYPE_OF_MESSAGE: Final = {f.message_type.full_name: f.number for f in _FIELDS if f.message_type}

_TextFields = tuple[tuple[str, bool, "_TextFields | None"], ...]
"""Where a message holds text: field, whether it repeats, and the same for the messages inside."""


def _text_fields(kind: Descriptor | None) -> _TextFields:
    found: list[tuple[str, bool, _TextFields | None]] = []
    for field in kind.fields if kind else ():
        if field.type == field.TYPE_STRING:
            found.append((field.name, field.is_repeated, None))
        elif field.message_type not in (None, kind) and (inner := _text_fields(field.message_type)):
            found.append((field.name, field.is_repeated, inner))
    return tuple(found)


_TEXT_OF_TYPE: Final = {field.number: _text_fields(field.message_type) for field in _FIELDS}


class CommandCutter(FrameCutter):
    """Cuts a stream straight into commands; the same as `decode` on each frame of `feed`, in half the time.

    A hot command in its usual form starts with its type, and the sub-message, shorter than 128 bytes, is all
    the rest of it. Whatever looks otherwise is left to `decode`.
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
        try:
            position = self._read_whole(data, position, commands)
        except DecodeError as error:
            raise _unreadable(error) from error
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
            kind = head - size if size < _HOT_BYTES_MAX else 0
            if kind == _SEND_HEAD and split < after:
                send = _parse_send(data[position + 12 : split])
                # As `_send`, without the call: this is what a broker spends most of its reading on.
                producer_id, sequence_id = send.producer_id, send.sequence_id
                if not (producer_id and sequence_id) and not send.IsInitialized():
                    raise _incomplete(send)
                commands.append(
                    _new(
                        Send,
                        (
                            producer_id,
                            sequence_id,
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
            elif kind == _RECEIPT_HEAD:
                fields = data[position + 12 : split]
                receipt = _parse_receipt(fields)
                if not receipt.IsInitialized():
                    raise _incomplete(receipt)
                commands.append(_receipt(receipt, fields))
            elif kind == _MESSAGE_HEAD and split < after:
                fields = data[position + 12 : split]
                message = _parse_message(fields)
                if not message.IsInitialized():
                    raise _incomplete(message)
                commands.append(_delivery(message, fields, data[split:after]))
            else:
                body = data[split:after] if split < after else None
                commands.append(decode((data[position + 8 : split], body)))
            position = after
        return position


def decode(frame: Frame) -> Command:
    """The command in a frame; raises RemoteProtocolError for anything that is not one."""
    command, body = frame
    try:
        base = pb.BaseCommand.FromString(command)
        if not base.HasField("type"):
            raise RemoteProtocolError("the peer sent a command of no known type")
        name = _FIELD_OF_TYPE[base.type]
        if not base.HasField(name):  # type: ignore[arg-type]
            raise RemoteProtocolError(f"the peer sent command {base.type} without its {name}")
        sub_message: Message = getattr(base, name)
        # Parsing does not look whether required fields are there.
        if not sub_message.IsInitialized():
            raise _incomplete(sub_message)
        if isinstance(sub_message, pb.CommandSend):
            return _send(sub_message, body)
        if isinstance(sub_message, pb.CommandSendReceipt):
            return _receipt(sub_message, command)
        if isinstance(sub_message, pb.CommandMessage):
            return _delivery(sub_message, command, body)
    except DecodeError as error:
        raise _unreadable(error) from error
    _check_text(sub_message, _TEXT_OF_TYPE[base.type])
    return sub_message


def _check_text(message: Message, fields: _TextFields) -> None:
    """Refuse text that is not UTF-8, which protobuf would hand on as bytes where a string is expected."""
    for name, repeated, inner in fields:
        value = getattr(message, name)
        for item in value if repeated else (value,):
            if inner is not None:
                _check_text(item, inner)
            elif not isinstance(item, str):
                raise RemoteProtocolError(f"the peer sent a {name} that is not UTF-8")


def _incomplete(message: Message) -> RemoteProtocolError:
    return RemoteProtocolError(f"the peer sent a {message.DESCRIPTOR.name} that lacks a required field")


def _unreadable(error: Exception) -> RemoteProtocolError:
    return RemoteProtocolError(f"the peer sent a command that cannot be read: {error}")


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
    if high := sequence_id >> 14:
        known = 0 < high < 0x4000
        sequence = MORE[sequence_id & 0x3FFF] + SHORT[high] if known else encode_varint(sequence_id)
    else:
        sequence = SHORT[sequence_id]
    where = SHORT[ledger] if 0 <= ledger < 0x4000 else encode_varint(ledger)
    if high := entry >> 14:
        number = MORE[entry & 0x3FFF] + SHORT[high] if 0 < high < 0x4000 else encode_varint(entry)
    else:
        number = SHORT[entry]
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
    size_bytes = SHORT[size] if size < 0x4000 else encode_varint(size)
    size += 3 + len(size_bytes)
    stamp_head = time = stamp_tag = index = b""
    stamp_size = 0
    if entry_metadata is not None:
        timestamp_ms, last_index = entry_metadata
        time = _times.get(timestamp_ms) or _encode_time(timestamp_ms)
        high = last_index >> 14
        index = MORE[last_index & 0x3FFF] + SHORT[high] if 0 < high < 0x4000 else encode_varint(last_index)
        stamp_size = len(time) + len(index) + 2
        stamp_head, stamp_tag = _STAMP_HEADS[stamp_size], b"\x10"
        stamp_size += 6
    parts = (
        _pack_sizes(size + 4 + stamp_size + len(data), size),
        b"\x08\x09\x4a",
        size_bytes,
        b"\x08",
        consumer,
        _DELIVERY_PLACE_HEADS[place],
        where,
        b"\x10",
        number,
        rest,
        stamp_head,
        time,
        stamp_tag,
        index,
    )
    return [b"".join(parts), data]


_DELIVERY_PLACE_HEADS: Final = tuple(b"\x12" + SHORT[size] + b"\x08" for size in range(0x40))
_STAMP_HEADS: Final = tuple(ENTRY_METADATA_MAGIC + size.to_bytes(4, "big") + b"\x08" for size in range(0x20))
"""What broker metadata starts with, by its size."""


def _encode_rest(redelivery_count: int, ack_set: tuple[int, ...], consumer_epoch: int | None) -> bytes:
    rest = b"\x18" + encode_varint(redelivery_count) if redelivery_count else b""
    if ack_set:
        rest += b"".join([b"\x20" + encode_varint(word) for word in ack_set])
    if consumer_epoch is not None:
        rest += b"\x28" + encode_varint(consumer_epoch)
    return rest


_times: dict[int, bytes] = {}
"""Recent timestamps; hundreds of entries share one. A cache, and bounded."""


def _encode_time(timestamp_ms: int) -> bytes:
    if len(_times) >= _TIMES_MAX:
        _times.clear()
    _times[timestamp_ms] = time = encode_varint(timestamp_ms)
    return time


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
