from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from anabranch.errors import LocalProtocolError, RemoteProtocolError
from anabranch.protocol import hot_frames
from anabranch.protocol.commands import NO_ID, CommandCutter, Delivery, Send, SendReceipt, decode, encode
from anabranch.protocol.frames import Frame, FrameCutter
from anabranch.protocol.hot_frames import encode_delivery, encode_receipt, encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb

ENTRY = bytes.fromhex("0e01 cf85822f 0000000c 0a017010001880d095ffbc31 68656c6c6f")
SEND = bytes.fromhex("00000027 00000008 0806320408011000") + ENTRY
RECEIPT = bytes.fromhex("00000012 0000000e 08073a0a080110001a0408051007")
MESSAGE = bytes.fromhex("0000003a 0000000c 08094a080803120408051007 0e02 00000009 0881d095ffbc311029") + ENTRY


def read(frame: bytes) -> object:
    """The command of one frame, which must not depend on the way it is read."""
    (direct,) = CommandCutter().read(frame)
    (cut,) = FrameCutter().feed(frame)
    assert decode(cut) == direct
    return direct


def test_golden_ping_and_pong() -> None:
    assert encode(pb.CommandPing()) == bytes.fromhex("00000009 00000005 0812920100")
    assert encode(pb.CommandPong()) == bytes.fromhex("00000009 00000005 08139a0100")
    assert read(encode(pb.CommandPing())) == pb.CommandPing()


def test_golden_flow() -> None:
    flow = pb.CommandFlow(consumer_id=0, messagePermits=1000)
    assert encode(flow) == bytes.fromhex("0000000d 00000009 080b5a05080010e807")
    assert read(encode(flow)) == flow


def test_golden_connect() -> None:
    connect = pb.CommandConnect(client_version="py", protocol_version=21, auth_method_name="none")
    assert encode(connect) == bytes.fromhex("00000014 00000010 0802120c0a02707920152a046e6f6e65")


def test_golden_send() -> None:
    assert b"".join(encode_send(1, 0, 1, 0, ENTRY)) == SEND
    assert read(SEND) == Send(1, 0, 1, 0, False, False, 0, 0, ENTRY)


def test_golden_receipt() -> None:
    assert encode_receipt(1, 0, 0, 5, 7) == RECEIPT
    assert read(RECEIPT) == SendReceipt(1, 0, 0, 5, 7)


def test_golden_delivery() -> None:
    assert b"".join(encode_delivery(3, 5, 7, -1, 0, (), None, (1700000000001, 41), ENTRY)) == MESSAGE
    assert read(MESSAGE) == Delivery(3, 5, 7, -1, 0, (), None, 1700000000001, 41, ENTRY)


def test_a_receipt_without_place_has_no_ids() -> None:
    frame = encode(pb.CommandSendReceipt(producer_id=1, sequence_id=2))
    assert read(frame) == SendReceipt(1, 2, 0, NO_ID, NO_ID)


def test_minus_one_and_all_ones_are_the_same_id() -> None:
    assert encode_receipt(1, 2, 3, -1, -1) == encode_receipt(1, 2, 3, NO_ID, NO_ID)
    assert read(encode_receipt(1, 2, 3, -1, -1)) == SendReceipt(1, 2, 3, NO_ID, NO_ID)


def test_broker_metadata_of_zero_is_not_missing() -> None:
    frame = b"".join(encode_delivery(3, 5, 7, -1, 0, (), 0, (0, 0), ENTRY))
    assert read(frame) == Delivery(3, 5, 7, -1, 0, (), 0, 0, 0, ENTRY)


def test_a_partition_of_minus_one_is_read_in_five_bytes_and_in_ten() -> None:
    for minus_one in ("ffffffff0f", "ffffffffffffffffff01"):
        place = bytes.fromhex("08051007 18" + minus_one)
        fields = b"\x08\x03\x12" + bytes((len(place),)) + place
        command = b"\x08\x09\x4a" + bytes((len(fields),)) + fields
        frame: Frame = (command, ENTRY)
        assert decode(frame) == Delivery(3, 5, 7, -1, 0, (), None, None, None, ENTRY)


def test_a_length_that_is_written_too_long_is_still_a_length() -> None:
    # The first byte of the length equals that of a short command of this size.
    command = bytes.fromhex("080632 8400 08011000 f23e7c") + bytes(124)
    sizes = (len(command) + 4 + len(ENTRY)).to_bytes(4, "big") + len(command).to_bytes(4, "big")
    assert command[3] == len(command) - 4
    assert read(sizes + command + ENTRY) == Send(1, 0, 1, 0, False, False, 0, 0, ENTRY)


def test_many_timestamps_do_not_fill_the_memory() -> None:
    for timestamp_ms in range(3000):
        encode_delivery(1, 2, 3, -1, 0, (), None, (timestamp_ms, 0), ENTRY)
    assert len(hot_frames.cached_times) <= hot_frames.CACHED_TIMES_MAX


def test_every_command_of_the_wire_is_wrapped_by_its_own_number() -> None:
    fields = [field for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type is not None]
    assert len(fields) == 75
    for field in fields:
        assert field.message_type is not None
        assert pb.BaseCommand.Type.Name(field.number)  # type: ignore[arg-type]
        filled = example(field.message_type)
        base = pb.BaseCommand.FromString(encode(filled)[8:])
        assert base.type == field.number
        assert getattr(base, field.name) == filled


def example(kind: Descriptor) -> Message:
    """A message with every required field set."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if not field.is_required:
            continue
        if field.message_type is not None:
            getattr(message, field.name).CopyFrom(example(field.message_type))
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, "text")
        elif field.type == field.TYPE_BYTES:
            setattr(message, field.name, b"bytes")
        else:
            setattr(message, field.name, 1)
    return message


def test_a_message_that_is_no_command_cannot_be_encoded() -> None:
    with pytest.raises(LocalProtocolError, match="KeyValue"):
        encode(pb.KeyValue(key="a", value="b"))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (b"", "unknown type"),
        (b"\x08", "cannot be read"),
        (bytes.fromhex("0812"), "without its ping"),
        (bytes.fromhex("0812 9a0100"), "without its ping"),
        (bytes.fromhex("08a806 c23500"), "unknown type"),
        (bytes.fromhex("08063204 0801"), "cannot be read"),
        (bytes.fromhex("0807 3a00"), "lacks a required field"),
        (bytes.fromhex("080b 5a020801"), "lacks a required field"),
        (bytes.fromhex("0806 3204 08011000"), "SEND without an entry"),
        (bytes.fromhex("0809 4a08 0803120408051007"), "MESSAGE without an entry"),
    ],
)
def test_a_broken_command_is_refused(command: bytes, why: str) -> None:
    frame = (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command
    with pytest.raises(RemoteProtocolError, match=why):
        decode((command, None))
    with pytest.raises(RemoteProtocolError, match=why):
        CommandCutter().read(frame)


@pytest.mark.parametrize("fields", ["", "0801", "1001", "0800", "1000"])
def test_a_send_that_lacks_a_required_field_is_refused(fields: str) -> None:
    sub_message = bytes.fromhex(fields)
    command = b"\x08\x06\x32" + bytes((len(sub_message),)) + sub_message
    sizes = (len(command) + 4 + len(ENTRY)).to_bytes(4, "big") + len(command).to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError, match="lacks a required field"):
        decode((command, ENTRY))
    with pytest.raises(RemoteProtocolError, match="lacks a required field"):
        CommandCutter().read(sizes + command + ENTRY)


@pytest.mark.parametrize("body", ["0e02", "0e0200000004 0801", "0e0200000002 08ff"])
def test_broken_broker_metadata_is_refused(body: str) -> None:
    command = bytes.fromhex("0809 4a08 0803120408051007")
    with pytest.raises(RemoteProtocolError):
        decode((command, bytes.fromhex(body)))


def test_text_that_is_not_utf8_is_refused_wherever_it_stands() -> None:
    lookup = pb.CommandLookupTopic(topic="topic", request_id=1)
    lookup.properties.add(key="name", value="value")
    for text in (b"topic", b"name", b"value"):
        broken = encode(lookup).replace(text, b"\xff" * len(text))
        with pytest.raises(RemoteProtocolError, match="not UTF-8"):
            CommandCutter().read(broken)
    assert read(encode(lookup)) == lookup


def test_unknown_fields_are_skipped() -> None:
    frame = encode(pb.CommandFlow(consumer_id=1, messagePermits=2))
    command = bytearray(frame[8:])
    command[3] += 3
    command += bytes.fromhex("f83e01")
    flow = decode((bytes(command), None))
    assert isinstance(flow, pb.CommandFlow)
    assert (flow.consumer_id, flow.messagePermits) == (1, 2)


def test_our_own_fields_do_not_hide_the_others() -> None:
    answer = pb.CommandGetLastMessageIdResponse(request_id=1, first_index=2, next_index=3, sealed=True)
    answer.last_message_id.ledgerId = 4
    answer.last_message_id.entryId = 5
    assert read(encode(answer)) == answer


def test_the_pure_python_backend_of_protobuf_is_refused() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import anabranch.protocol.pb.pulsar_pb2"],
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert "needs protobuf's C backend" in ran.stderr
