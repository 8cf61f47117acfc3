"""Laws of the wire: any chunking gives the same, both ways of reading agree, decode undoes encode."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.errors import (
    ChecksumError,
    CompressionError,
    CorruptDataError,
    RemoteProtocolError,
    UnsupportedFeatureError,
)
from anabranch.protocol.commands import Command, CommandCutter, Delivery, Send, SendReceipt, decode, encode
from anabranch.protocol.connection import ClientMachine, ServerMachine
from anabranch.protocol.entry.batches import MessageBatch
from anabranch.protocol.entry.compression import Compression
from anabranch.protocol.entry.entries import decode_columns
from anabranch.protocol.entry.outer import read_outer
from anabranch.protocol.entry.restamping import restamped
from anabranch.protocol.entry.singles import build_single
from anabranch.protocol.frames import FrameCutter, build_entry
from anabranch.protocol.hot_frames import encode_delivery, encode_receipt, encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import encode_varint
from tests.fakes.entries import split_entry

LIMIT = 2**20
u64 = st.one_of(st.integers(0, 300), st.integers(0, 2**30), st.integers(0, 2**64 - 1))
i32 = st.one_of(st.integers(-1, 300), st.integers(-(2**31), 2**31 - 1))
i64 = st.integers(-(2**63), 2**63 - 1)
blob = st.binary(max_size=200)
text = st.text(max_size=40)


def optional(draw: st.DrawFn, message: object, **fields: st.SearchStrategy[object]) -> None:
    for name, strategy in fields.items():
        if draw(st.booleans()):
            setattr(message, name, draw(strategy))


@st.composite
def sends(draw: st.DrawFn) -> pb.CommandSend:
    send = pb.CommandSend(producer_id=draw(u64), sequence_id=draw(u64))
    optional(
        draw,
        send,
        num_messages=i32,
        txnid_least_bits=u64,
        txnid_most_bits=u64,
        highest_sequence_id=u64,
        is_chunk=st.booleans(),
        marker=st.booleans(),
    )
    return send


@st.composite
def places(draw: st.DrawFn) -> pb.MessageIdData:
    place = pb.MessageIdData(ledgerId=draw(u64), entryId=draw(u64))
    optional(draw, place, partition=i32, batch_index=i32)
    return place


@st.composite
def receipts(draw: st.DrawFn) -> pb.CommandSendReceipt:
    receipt = pb.CommandSendReceipt(producer_id=draw(u64), sequence_id=draw(u64))
    optional(draw, receipt, highest_sequence_id=u64)
    if draw(st.booleans()):
        receipt.message_id.CopyFrom(draw(places()))
    return receipt


@st.composite
def messages(draw: st.DrawFn) -> pb.CommandMessage:
    message = pb.CommandMessage(consumer_id=draw(u64), message_id=draw(places()))
    optional(draw, message, redelivery_count=st.integers(0, 2**32 - 1), consumer_epoch=u64)
    message.ack_set.extend(draw(st.lists(i64, max_size=20)))
    return message


@st.composite
def others(draw: st.DrawFn) -> pb.CommandLookupTopic:
    lookup = pb.CommandLookupTopic(topic=draw(text), request_id=draw(u64))
    optional(draw, lookup, authoritative=st.booleans(), original_principal=text)
    return lookup


def packed_stamp(stamp: pb.BrokerEntryMetadata) -> bytes:
    packed = stamp.SerializeToString()
    return b"\x0e\x02" + len(packed).to_bytes(4, "big") + packed


@st.composite
def stamps(draw: st.DrawFn) -> bytes:
    stamp = pb.BrokerEntryMetadata()
    optional(draw, stamp, broker_timestamp=u64, index=u64)
    return packed_stamp(stamp)


def framed(message: object, body: bytes) -> bytes:
    frame = encode(message)  # type: ignore[arg-type]
    size = int.from_bytes(frame[:4], "big") + len(body)
    return size.to_bytes(4, "big") + frame[4:] + body


def raw_frame(command: bytes, body: bytes) -> bytes:
    size = len(command)
    return (size + len(body) + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + command + body


frames = st.one_of(
    st.builds(framed, sends(), blob),
    st.builds(framed, receipts(), st.just(b"")),
    st.builds(framed, messages(), st.builds(bytes.__add__, st.just(b"") | stamps(), blob)),
    st.builds(framed, others(), st.just(b"") | blob),
    # Frames that can be cut but hold no command.
    st.builds(raw_frame, blob, blob),
)


@st.composite
def chunked(draw: st.DrawFn, streams: st.SearchStrategy[list[bytes]]) -> tuple[bytes, list[bytes]]:
    stream = b"".join(draw(streams))
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    edges = [0, *cuts, len(stream)]
    return stream, [stream[a:b] for a, b in pairwise(edges)]


def outcome(cutter: CommandCutter, chunks: Sequence[bytes]) -> tuple[list[Command], bool]:
    commands: list[Command] = []
    for chunk in chunks:
        try:
            commands += cutter.read(chunk)
        except RemoteProtocolError:
            return commands, True
    return commands, False


@given(chunked(st.lists(frames, max_size=6)))
def test_any_chunking_gives_the_same_frames(case: tuple[bytes, list[bytes]]) -> None:
    stream, chunks = case
    whole = FrameCutter().feed(stream)
    cutter = FrameCutter()
    assert [frame for chunk in chunks for frame in cutter.feed(chunk)] == whole


@given(chunked(st.lists(frames, max_size=6)))
def test_reading_commands_is_cutting_and_decoding(case: tuple[bytes, list[bytes]]) -> None:
    stream, chunks = case
    expected: list[Command] = []
    refused = False
    for frame in FrameCutter().feed(stream):
        try:
            expected.append(decode(frame))
        except RemoteProtocolError:
            refused = True
            break
    commands, failed = outcome(CommandCutter(), chunks)
    # Frames in the same chunk as a broken frame are dropped with it.
    assert failed == refused
    assert commands == expected[: len(commands)]
    if not refused:
        assert commands == expected


@given(st.binary(max_size=400), st.integers(1, 50))
@example(bytes.fromhex("00000027 00000008 0806320408011000 0e01"), 3)
def test_random_bytes_are_refused_or_wait(data: bytes, chunk: int) -> None:
    outcome(CommandCutter(500), [data[start : start + chunk] for start in range(0, len(data), chunk)])


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_a_random_frame_is_a_command_or_is_refused(command: bytes, body: bytes | None) -> None:
    with suppress(RemoteProtocolError):
        decode((command, body))


@given(st.lists(frames | st.binary(max_size=40), max_size=4), st.booleans())
def test_machines_survive_any_peer(received: list[bytes], after_handshake: bool) -> None:
    client, server = ClientMachine(now=0.0), ServerMachine(now=0.0)
    if after_handshake:
        server.receive(client.start(), 0.0)
        client.receive(b"".join(server.take_output()), 0.0)
    for machine in (client, server):
        with suppress(RemoteProtocolError):
            for data in received:
                machine.receive(data, 1.0)


@settings(max_examples=300)
@given(st.data(), st.sampled_from(["send", "message"]))
def test_a_damaged_hot_command_reads_the_same_both_ways(data: st.DataObject, kind: str) -> None:
    command: object = data.draw(sends() if kind == "send" else messages())
    frame = bytearray(framed(command, b"body"))
    place = data.draw(st.integers(8, len(frame) - 1))
    frame[place] = data.draw(st.integers(0, 255))
    (cut,) = FrameCutter().feed(bytes(frame))
    expected: Command | None = None
    with suppress(RemoteProtocolError):
        expected = decode(cut)
    commands, refused = outcome(CommandCutter(), [bytes(frame)])
    assert refused == (expected is None)
    if isinstance(expected, tuple):
        assert commands == [expected]


@given(st.integers(-(2**63), 2**64 - 1))
@example(2**14 - 1)
@example(2**14)
@example(2**28 - 1)
@example(2**28)
def test_numbers_are_written_as_protobuf_writes_them(number: int) -> None:
    field = pb.MessageIdData(ledgerId=number & 2**64 - 1).SerializePartialToString()
    assert encode_varint(number) == field[1:]


@given(u64, u64, st.integers(1, 2**31 - 1), u64, blob)
def test_a_send_comes_back(producer: int, sequence: int, count: int, highest: int, entry: bytes) -> None:
    (send,) = CommandCutter().read(b"".join(encode_send(producer, sequence, count, highest, entry + b"!")))
    assert send == Send(producer, sequence, count, highest, False, False, 0, 0, entry + b"!")


@given(u64, u64, u64, u64, u64)
def test_a_receipt_is_written_as_protobuf_writes_it(
    producer: int, sequence: int, highest: int, ledger: int, entry: int
) -> None:
    place = pb.MessageIdData(ledgerId=ledger, entryId=entry)
    receipt = pb.CommandSendReceipt(producer_id=producer, sequence_id=sequence, message_id=place)
    if highest:
        receipt.highest_sequence_id = highest
    frame = encode_receipt(producer, sequence, highest, ledger, entry)
    assert frame == encode(receipt)
    assert CommandCutter().read(frame) == [SendReceipt(producer, sequence, highest, ledger, entry)]


@given(
    u64,
    u64,
    u64,
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**32 - 1),
    st.lists(i64, max_size=30),
    st.none() | u64,
    st.none() | st.tuples(u64, u64),
    blob,
)
@example(1, 2, 3, -1, 0, [-1] * 2000, None, None, b"x")
def test_a_delivery_is_written_as_protobuf_writes_it(
    consumer: int,
    ledger: int,
    entry: int,
    partition: int,
    redeliveries: int,
    words: list[int],
    epoch: int | None,
    stamp: tuple[int, int] | None,
    data: bytes,
) -> None:
    place = pb.MessageIdData(ledgerId=ledger, entryId=entry)
    if partition >= 0:
        place.partition = partition
    message = pb.CommandMessage(consumer_id=consumer, message_id=place, ack_set=words)
    if redeliveries:
        message.redelivery_count = redeliveries
    if epoch is not None:
        message.consumer_epoch = epoch
    prefix = b""
    if stamp is not None:
        prefix = packed_stamp(pb.BrokerEntryMetadata(broker_timestamp=stamp[0], index=stamp[1]))
    ack_set = tuple(words)
    # An entry never starts with the broker's own magic number.
    data = b"\x00" + data
    frame = b"".join(
        encode_delivery(consumer, ledger, entry, partition, redeliveries, ack_set, epoch, stamp, data)
    )
    assert frame == framed(message, prefix + data)
    timestamp, index = stamp or (None, None)
    assert CommandCutter().read(frame) == [
        Delivery(consumer, ledger, entry, partition, redeliveries, ack_set, epoch, timestamp, index, data)
    ]


keys = st.none() | text | st.binary(max_size=30)


@st.composite
def batch_messages(draw: st.DrawFn) -> dict[str, object]:
    message: dict[str, object] = {"value": draw(blob), "key": draw(keys)}
    if draw(st.integers(0, 3)) == 0:
        message["properties"] = draw(st.dictionaries(text, text, max_size=3))
        message["event_time_ms"] = draw(st.integers(0, 2**45))
        message["ordering_key"] = draw(st.none() | st.binary(max_size=10))
        message["null_value"] = draw(st.booleans())
    return message


@st.composite
def batches(draw: st.DrawFn) -> list[dict[str, object]]:
    made = draw(st.lists(batch_messages(), min_size=1, max_size=20))
    sequence_id = draw(u64.filter(lambda n: n < 2**63))
    for message in made:
        message["sequence_id"] = sequence_id
        sequence_id += draw(st.integers(1, 300))
    return made


def batch_of(messages: list[dict[str, object]]) -> MessageBatch:
    batch = MessageBatch()
    for message in messages:
        batch.add(**message)  # type: ignore[arg-type]
    return batch


def by_protobuf(entry: bytes) -> list[tuple[object, ...]]:
    """The messages of an uncompressed batch, each header through the generated code."""
    metadata_bytes, payload = split_entry(entry)
    metadata = pb.MessageMetadata.FromString(metadata_bytes)
    rows: list[tuple[object, ...]] = []
    position = 0
    for _ in range(metadata.num_messages_in_batch):
        start = position + 4
        end = start + int.from_bytes(payload[position:start], "big")
        header = pb.SingleMessageMetadata.FromString(bytes(payload[start:end]))
        position = end + header.payload_size
        rows.append(
            (
                None if header.null_value else bytes(payload[end:position]),
                header.sequence_id,
                header.event_time,
                {pair.key: pair.value for pair in header.properties},
                header.ordering_key if header.HasField("ordering_key") else None,
            )
        )
    assert position == len(payload)
    return rows


@given(batches(), st.sampled_from(Compression))
def test_a_batch_comes_back(made: list[dict[str, object]], compression: Compression) -> None:
    batch = batch_of(made)
    entry = batch.build("producer", 1_700_000_000_000, compression, (1, 2))
    columns = decode_columns(entry, LIMIT)
    assert columns.count == len(made) == batch.count
    for index, message in enumerate(made):
        key = message["key"]
        assert columns.keys[index] == (key.encode() if isinstance(key, str) else key)
        assert columns.values[index] == (None if message.get("null_value") else message["value"])
        assert columns.sequence_ids[index] == message["sequence_id"]
        assert (columns.event_times or [0] * 99)[index] == message.get("event_time_ms", 0)
        assert (columns.properties or [{}] * 99)[index] == message.get("properties", {})
        assert (columns.ordering_keys or [None] * 99)[index] == message.get("ordering_key")
    outer = read_outer(entry)
    assert outer.num_messages == len(made)
    assert outer.highest_sequence_id == outer.sequence_id == made[-1]["sequence_id"]
    assert (outer.bucket_hash, outer.bucket_hash_max) == (1, 2)


@given(batches())
def test_batches_are_read_as_protobuf_reads_them(made: list[dict[str, object]]) -> None:
    entry = batch_of(made).build("producer", 1)
    columns = decode_columns(entry, LIMIT)
    count = columns.count
    rows = zip(
        columns.values,
        columns.sequence_ids,
        columns.event_times or [0] * count,
        columns.properties or [{}] * count,
        columns.ordering_keys or [None] * count,
        strict=True,
    )
    assert list(rows) == by_protobuf(entry)


@settings(max_examples=300)
@given(batches(), st.integers(0, 2**16), st.integers(0, 255))
# The last byte of a sequence id becomes one that says that more bytes follow.
@example([{"value": b"", "key": None, "sequence_id": number} for number in (5, 200)], 16, 0xFF)
def test_a_damaged_batch_is_read_as_protobuf_reads_it_or_refused(
    made: list[dict[str, object]], place: int, byte: int
) -> None:
    # Without the sizes of messages, which a reader would trust instead of the headers.
    entry = restamped(batch_of(made).build("producer", 1), lambda outer: outer.ClearField("message_sizes"))
    metadata, payload = split_entry(entry)
    broken = bytearray(payload)
    broken[place % len(broken)] = byte
    entry = build_entry(metadata, bytes(broken))
    try:
        columns = decode_columns(entry, LIMIT)
    except CorruptDataError:
        return
    if columns.count != columns.batch_size:
        return
    position = 0
    for key, value, sequence_id in zip(columns.keys, columns.values, columns.sequence_ids, strict=True):
        end = position + 4 + int.from_bytes(broken[position : position + 4], "big")
        header = pb.SingleMessageMetadata.FromString(bytes(broken[position + 4 : end]))
        position = end + header.payload_size
        assert sequence_id == header.sequence_id or not header.HasField("sequence_id")
        if not header.partition_key_b64_encoded and not header.null_partition_key:
            # Protobuf hands out bytes for text that is not UTF-8.
            text_key: str | bytes = header.partition_key
            raw = text_key.encode() if isinstance(text_key, str) else text_key
            assert key == (raw if header.HasField("partition_key") else None)
        assert value == (None if header.null_value else bytes(broken[end:position]))


@given(st.binary(max_size=300))
def test_a_random_entry_is_read_or_refused(entry: bytes) -> None:
    for damaged in (entry, build_entry(entry[:20], entry[20:])):
        with suppress(ChecksumError, CompressionError, CorruptDataError, UnsupportedFeatureError):
            decode_columns(damaged, LIMIT)
        with suppress(RemoteProtocolError):
            read_outer(damaged)


@given(
    st.builds(
        pb.MessageMetadata,
        producer_name=text,
        sequence_id=u64,
        publish_time=u64,
        partition_key=st.none() | text,
        partition_key_b64_encoded=st.none() | st.booleans(),
        ordering_key=st.none() | st.binary(max_size=10),
        num_messages_in_batch=st.none() | i32,
        highest_sequence_id=st.none() | u64,
        deliver_at_time=st.none() | i64,
        marker_type=st.none() | i32,
        entry_hash_min=st.none() | st.integers(0, 65535),
        entry_hash_max=st.none() | st.integers(0, 65535),
    )
)
def test_outer_metadata_agrees_with_protobuf(metadata: pb.MessageMetadata) -> None:
    outer = read_outer(build_entry(metadata.SerializeToString(), b"payload"))
    assert outer.producer_name == metadata.producer_name
    assert outer.sequence_id == metadata.sequence_id
    assert outer.highest_sequence_id == metadata.highest_sequence_id
    assert outer.num_messages == metadata.num_messages_in_batch
    assert outer.is_batch == metadata.HasField("num_messages_in_batch")
    assert outer.marker == metadata.HasField("marker_type")
    assert outer.deliver_at_ms == metadata.deliver_at_time
    assert outer.publish_time == metadata.publish_time
    assert 1 <= outer.sticky_hash <= 65535
    stamped = metadata.HasField("entry_hash_min")
    low = metadata.entry_hash_min if stamped else outer.sticky_hash
    high = metadata.entry_hash_max if stamped and metadata.HasField("entry_hash_max") else low
    assert (outer.bucket_hash, outer.bucket_hash_max) == (low, high)


@given(blob, keys, u64, st.sampled_from(Compression))
def test_a_single_message_comes_back(
    value: bytes, key: str | bytes | None, sequence_id: int, compression: Compression
) -> None:
    entry = build_single(value * 50, key, sequence_id, "p", 1, compression=compression)
    columns = decode_columns(entry, LIMIT)
    assert columns.values == [value * 50]
    assert columns.keys == [key.encode() if isinstance(key, str) else key]
    assert columns.sequence_ids == [sequence_id]
