"""Converts frames to commands, and commands without an entry to frames.

SEND, SEND_RECEIPT and MESSAGE carry the traffic: they are plain tuples, read in as few steps as Python
allows, and `hot_frames` writes them. Every other command is the generated protobuf message. Protobuf's C
parser reads the numbers, because it is faster than Python for more than one number. This module does not know
what a command does.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from anabranch.errors import LocalProtocolError, RemoteProtocolError
from anabranch.protocol.frames import ENTRY_METADATA_MAGIC, Frame, FrameCutter
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.texts import check_text
from anabranch.protocol.varints import encode_varint

NO_ID: Final = 2**64 - 1
"""The unsigned form of -1: no ledger, no entry, no request."""


class Send(NamedTuple):
    """SEND: one entry for a producer."""

    producer_id: int
    sequence_id: int
    num_messages: int
    highest_sequence_id: int
    """0 when the peer sent none."""
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
_HOT_HEAD_BYTES: Final = 12
_HOT_BYTES_MAX: Final = 0x84
"""Hot commands shorter than this have a sub-message whose length takes one byte."""
# The first four bytes of a hot command (type, tag, size of the sub-message) minus the size of the command.
_SEND_HEAD: Final = 0x08063200 - 4
_RECEIPT_HEAD: Final = 0x08073A00 - 4
_MESSAGE_HEAD: Final = 0x08094A00 - 4
# The constructor of a named tuple is a Python function; this is the C call inside it.
_new = tuple.__new__

_parse_send = pb.CommandSend.FromString
_parse_receipt = pb.CommandSendReceipt.FromString
_parse_message = pb.CommandMessage.FromString
_parse_entry_metadata = pb.BrokerEntryMetadata.FromString

_FIELDS: Final = tuple(pb.BaseCommand.DESCRIPTOR.fields_by_number[n] for n in pb.BaseCommand.Type.values())
_FIELD_OF_TYPE: Final = {field.number: field.name for field in _FIELDS}
_TYPE_OF_MESSAGE: Final = {f.message_type.full_name: f.number for f in _FIELDS if f.message_type}


class CommandCutter(FrameCutter):
    """Cuts a stream into commands: the result of `decode` on each frame of `feed`, in half the time.

    A hot command in its usual form is its type followed by a sub-message shorter than 128 bytes. `decode`
    reads every other form.
    """

    def read(self, data: bytes) -> list[Command]:
        """Return the commands completed by `data`.

        Raise RemoteProtocolError if a frame holds no valid command.
        """
        commands: list[Command] = []
        position = 0
        if self._rest:
            whole, position = self._complete(data)
            if not whole:
                return commands
            self._read_from(whole, 0, commands)
        self._read_from(data, position, commands)
        return commands

    def _read_from(self, data: bytes, position: int, commands: list[Command]) -> None:
        """Read all frames from `position` on, and keep an incomplete one."""
        try:
            position = self._read_whole(data, position, commands)
        except DecodeError as error:
            raise _unreadable(error) from error
        if position < len(data):
            commands += map(decode, self.feed(data, position))

    def _read_whole(self, data: bytes, position: int, commands: list[Command]) -> int:
        """Read whole frames from `position` on; returns the position of the first incomplete one."""
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
                # `_send` inlined, because a broker spends most of its reading time here.
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
                commands.append(_delivery(message, fields, data, split, after))
            else:
                commands.append(self._decode_other(data, position + 8, split, after))
            position = after
        return position

    def _decode_other(self, data: bytes, start: int, split: int, end: int) -> Command:
        """Return the command between `start` and `split`, which is not a hot one in its usual form."""
        if split - start > self.command_bytes_max:
            raise self.refusal(end - start + 4, split - start)
        return decode((data[start:split], data[split:end] if split < end else None))


def decode(frame: Frame) -> Command:
    """Return the command in a frame; raises RemoteProtocolError if the frame holds no valid command."""
    command, body = frame
    try:
        base = pb.BaseCommand.FromString(command)
        if not base.HasField("type"):
            raise RemoteProtocolError("the peer sent a command of an unknown type")
        name = _FIELD_OF_TYPE[base.type]
        if not base.HasField(name):  # type: ignore[arg-type]
            raise RemoteProtocolError(f"the peer sent command {base.type} without its {name}")
        sub_message: Message = getattr(base, name)
        # FromString accepts a message that lacks required fields.
        if not sub_message.IsInitialized():
            raise _incomplete(sub_message)
        if isinstance(sub_message, pb.CommandSend):
            return _send(sub_message, body)
        if isinstance(sub_message, pb.CommandSendReceipt):
            return _receipt(sub_message, command)
        if isinstance(sub_message, pb.CommandMessage):
            if body is None:
                raise RemoteProtocolError("the peer sent a MESSAGE without an entry")
            return _delivery(sub_message, command, body, 0, len(body))
    except DecodeError as error:
        raise _unreadable(error) from error
    check_text(sub_message)
    return sub_message


def _incomplete(message: Message) -> RemoteProtocolError:
    return RemoteProtocolError(f"the peer sent a {message.DESCRIPTOR.name} that lacks a required field")


def _unreadable(error: Exception) -> RemoteProtocolError:
    return RemoteProtocolError(f"the peer sent a command that cannot be read: {error}")


def encode(message: Message) -> bytes:
    """Return a whole frame for a command that carries no entry, from its sub-message."""
    number = _TYPE_OF_MESSAGE.get(message.DESCRIPTOR.full_name)
    if number is None:
        raise LocalProtocolError(f"{message.DESCRIPTOR.full_name} is not a command")
    body = message.SerializeToString()
    command = b"".join(
        (b"\x08", encode_varint(number), encode_varint(number << 3 | 2), encode_varint(len(body)), body)
    )
    return _pack_sizes(len(command) + 4, len(command)) + command


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


def _delivery(message: pb.CommandMessage, command: bytes, data: bytes, start: int, end: int) -> Delivery:
    """Return a delivery whose entry lies between two offsets of `data`, behind the broker metadata."""
    timestamp: int | None = None
    index: int | None = None
    if data[start : min(start + 2, end)] == ENTRY_METADATA_MAGIC:
        begin = start + 6
        start = begin + (_one_size(data, start + 2)[0] if begin <= end else 0)
        if start > end:
            raise RemoteProtocolError("the peer sent a MESSAGE that ends inside the broker's metadata")
        stamp = _parse_entry_metadata(data[begin:start])
        timestamp = stamp.broker_timestamp or (0 if stamp.HasField("broker_timestamp") else None)
        index = stamp.index or (0 if stamp.HasField("index") else None)
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
            data[start:end],
        ),
    )
