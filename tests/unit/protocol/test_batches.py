from __future__ import annotations

import pytest

from anabranch.errors import (
    ChecksumError,
    CompressionError,
    CorruptDataError,
    UnsupportedFeatureError,
)
from anabranch.protocol.entry import batches
from anabranch.protocol.entry.batches import MessageBatch
from anabranch.protocol.entry.columns import last_varint
from anabranch.protocol.entry.compression import Compression
from anabranch.protocol.entry.entries import decode_columns
from anabranch.protocol.entry.singles import build_single
from anabranch.protocol.frames import build_entry
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.fakes.entries import split_entry

LIMIT = 5 * 2**20
NOW_MS = 1_700_000_000_000
GOLDEN = bytes.fromhex("00000008 12026b311802400a 7631 00000008 12026b321803400b 763232")


def batch(*messages: tuple[bytes, str | bytes | None, int]) -> MessageBatch:
    made = MessageBatch()
    for value, key, sequence_id in messages:
        made.add(value, key, sequence_id)
    return made


def entry_of(payload: bytes, count: int, **fields: object) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=NOW_MS, num_messages_in_batch=count
    )
    for name, value in fields.items():
        setattr(metadata, name, value)
    return build_entry(metadata.SerializeToString(), payload)


def header_of(**fields: object) -> bytes:
    header = pb.SingleMessageMetadata(payload_size=1)
    for name, value in fields.items():
        setattr(header, name, value)
    packed = header.SerializeToString()
    return len(packed).to_bytes(4, "big") + packed


def test_golden_batch() -> None:
    made = batch((b"v1", "k1", 10), (b"v22", b"k2", 11))
    assert made.size == len(GOLDEN)
    metadata, payload = split_entry(made.build("p", NOW_MS))
    assert payload == GOLDEN
    assert pb.MessageMetadata.FromString(metadata) == pb.MessageMetadata(
        producer_name="p",
        sequence_id=11,
        publish_time=NOW_MS,
        partition_key="k1",
        num_messages_in_batch=2,
        highest_sequence_id=11,
    )


def test_the_metadata_of_a_batch_is_written_as_protobuf_would() -> None:
    made = MessageBatch()
    made.add(b"v" * 500, b"\xff\xfe", 2**40, ordering_key=b"order")
    for compression in Compression:
        metadata, _ = split_entry(made.build("prödücer", NOW_MS, compression, (7, 65535)))
        parsed = pb.MessageMetadata.FromString(metadata)
        assert parsed.SerializeToString() == metadata
        assert parsed.partition_key_b64_encoded
        assert parsed.ordering_key == b"order"
        assert (parsed.entry_hash_min, parsed.entry_hash_max) == (7, 65535)
        assert int(parsed.compression) == int(compression)
        assert parsed.uncompressed_size == (made.size if compression else 0)


def test_columns_come_back_in_order() -> None:
    columns = decode_columns(
        batch((b"v1", "k1", 10), (b"", None, 300), (b"v3", "", 70000)).build("p", NOW_MS), LIMIT
    )
    assert columns.count == columns.batch_size == 3
    assert columns.values == [b"v1", b"", b"v3"]
    assert columns.keys == [b"k1", None, b""]
    assert columns.sequence_ids == [10, 300, 70000]
    assert list(columns.batch_indexes) == [0, 1, 2]
    assert (columns.event_times, columns.properties, columns.ordering_keys) == (None, None, None)
    assert (columns.producer_name, columns.publish_time_ms) == ("p", NOW_MS)


def test_optional_columns_appear_when_one_message_has_them() -> None:
    made = batch((b"first", "a", 1))
    made.add(b"second", "b", 2, properties={"x": "1", "y": "ü"}, event_time_ms=5, ordering_key=b"")
    made.add(b"", "c", 3, null_value=True)
    columns = decode_columns(made.build("p", NOW_MS), LIMIT)
    assert columns.values == [b"first", b"second", None]
    assert columns.event_times == [0, 5, 0]
    assert columns.properties == [{}, {"x": "1", "y": "ü"}, {}]
    assert columns.ordering_keys == [None, b"", None]


def test_bytes_after_a_sequence_id_are_not_part_of_it() -> None:
    made = MessageBatch()
    for sequence_id in (0x85, 0x86, 0x87):
        made.add(b"", None, sequence_id, null_value=True)
    columns = decode_columns(made.build("p", NOW_MS), LIMIT)
    assert columns.values == [None, None, None]
    assert columns.sequence_ids == [0x85, 0x86, 0x87]


@pytest.mark.parametrize("key_size", [120, 127, 128, 240, 250, 300, 20_000])
@pytest.mark.parametrize("value_size", [0, 127, 128, 16_383, 16_384, 2**20 + 5])
def test_sizes_of_any_length_come_back(key_size: int, value_size: int) -> None:
    key, value = "k" * key_size, b"v" * value_size
    made = MessageBatch()
    made.add(value, key, 1)
    made.add_many([value], [key], [2])
    columns = decode_columns(made.build("p", NOW_MS), LIMIT)
    assert columns.keys == [key.encode()] * 2
    assert columns.values == [value] * 2
    assert columns.sequence_ids == [1, 2]


def test_a_single_message_comes_back() -> None:
    entry = build_single(
        b"value",
        "key",
        9,
        "p",
        NOW_MS,
        properties={"a": "b"},
        event_time_ms=4,
        ordering_key=b"o",
        hash_range=(3, 3),
        deliver_at_ms=NOW_MS + 1,
    )
    columns = decode_columns(entry, LIMIT)
    assert (columns.count, columns.batch_size, columns.batch_indexes) == (1, 0, [-1])
    assert (columns.values, columns.keys, columns.sequence_ids) == ([b"value"], [b"key"], [9])
    assert (columns.properties, columns.event_times, columns.ordering_keys) == ([{"a": "b"}], [4], [b"o"])


def test_a_null_message_has_no_value() -> None:
    entry = build_single(b"", None, 9, "p", NOW_MS, null_value=True)
    columns = decode_columns(entry, LIMIT)
    assert (columns.values, columns.keys) == ([None], [None])


@pytest.mark.parametrize("compression", Compression)
def test_compressed_entries_come_back(compression: Compression) -> None:
    values = [b"value %d " % n * 20 for n in range(50)]
    made = batch(*((value, f"key-{n}", n) for n, value in enumerate(values)))
    entry = made.build("p", NOW_MS, compression)
    assert decode_columns(entry, LIMIT).values == values
    single = build_single(values[0] * 9, "k", 1, "p", NOW_MS, compression=compression)
    assert decode_columns(single, LIMIT).values == [values[0] * 9]
    if compression:
        assert len(entry) < made.size
        with pytest.raises(CompressionError):
            decode_columns(entry, made.size - 1)


def test_a_payload_that_compression_would_not_shrink_is_sent_plain() -> None:
    entry = build_single(b"ab", None, 1, "p", NOW_MS, compression=Compression.ZSTD)
    assert pb.MessageMetadata.FromString(split_entry(entry)[0]).compression == pb.NONE


def test_adding_columns_is_the_same_as_adding_messages() -> None:
    values = [b"x" * n for n in (0, 5, 20_000)]
    keys: list[str | bytes | None] = ["a", None, b"\xff"]
    one_by_one, at_once = MessageBatch(), MessageBatch()
    for value, key, sequence_id in zip(values, keys, (5, 6, 99_999), strict=True):
        one_by_one.add(value, key, sequence_id)
    at_once.add_many([], [], [])
    at_once.add_many(values[:1], keys[:1], [5])
    at_once.add_many(values[1:], keys[1:], [6, 99_999])
    assert (at_once.count, at_once.size) == (one_by_one.count, one_by_one.size)
    assert at_once.build("p", NOW_MS) == one_by_one.build("p", NOW_MS)


def test_many_keys_do_not_fill_the_memory() -> None:
    made = MessageBatch()
    for number in range(20_000):
        made.add(b"", f"key-{number}", number)
    assert len(batches.cached_key_headers) <= batches.CACHED_KEYS_MAX
    assert decode_columns(made.build("p", NOW_MS), LIMIT).keys[-1] == b"key-19999"


def test_messages_taken_out_by_compaction_are_skipped_and_keep_their_place() -> None:
    payload = header_of(sequence_id=1) + b"a" + header_of(sequence_id=2, compacted_out=True) + b"b"
    payload += header_of(sequence_id=3, event_time=4) + b"c"
    columns = decode_columns(entry_of(payload, 3), LIMIT)
    assert (columns.count, columns.batch_size) == (2, 3)
    assert columns.values == [b"a", b"c"]
    assert columns.batch_indexes == [0, 2]
    assert columns.sequence_ids == [1, 3]
    assert columns.event_times == [0, 4]


def test_a_null_key_is_no_key() -> None:
    payload = header_of(partition_key="x", null_partition_key=True) + b"a"
    assert decode_columns(entry_of(payload, 1), LIMIT).keys == [None]


def test_the_entry_numbers_messages_without_a_sequence_id() -> None:
    plain, keyed = header_of() + b"a", header_of(partition_key="x") + b"b"
    timed, numbered = header_of(event_time=5) + b"c", header_of(sequence_id=900) + b"d"
    for messages, ids in (
        ([plain, keyed, plain], [7, 8, 9]),
        ([keyed, timed, plain], [7, 8, 9]),
        ([timed, keyed, numbered], [7, 8, 900]),
        ([numbered, plain, timed], [900, 8, 9]),
    ):
        columns = decode_columns(entry_of(b"".join(messages), 3, sequence_id=7), LIMIT)
        assert columns.sequence_ids == ids
        assert columns.values == [message[-1:] for message in messages]


def test_sequence_ids_of_any_length_come_back() -> None:
    numbers = [number for bits in range(0, 64, 7) for number in (2**bits - 1, 2**bits)][:-1]
    made = batch(*((b"v", "k", number) for number in numbers))
    assert decode_columns(made.build("p", NOW_MS), LIMIT).sequence_ids == numbers


def test_a_header_that_ends_with_something_long_is_not_read_as_one_number() -> None:
    """It would take seconds for every message."""
    ordering_key = b"\xff" * 1000
    columns = decode_columns(entry_of(header_of(ordering_key=ordering_key) + b"a", 1), LIMIT)
    assert (columns.sequence_ids, columns.ordering_keys) == ([1], [ordering_key])
    assert last_varint(ordering_key, 1000) < 2**64


def test_text_that_is_not_utf8_does_not_stop_a_reader() -> None:
    payload = header_of(partition_key="abc", event_time=1).replace(b"abc", b"\xff\xfea") + b"a"
    assert decode_columns(entry_of(payload, 1), LIMIT).keys == [b"\xff\xfea"]


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (GOLDEN, 3),
        (GOLDEN[:-1], 2),
        (GOLDEN[:20], 2),
        (GOLDEN[:15], 2),
        (b"", 1),
        (GOLDEN, 0),
        (GOLDEN, -1),
        (GOLDEN, 2**31 - 1),
        (b"\xff\xff\xff\xff" + GOLDEN[4:], 2),
        (b"\x00\x00\x00\x00" + GOLDEN[4:], 2),
        (bytes.fromhex("00000002 400a"), 1),
        (bytes.fromhex("0000000b 18ffffffffffffffffff01"), 1),
        (bytes.fromhex("00000003 18ffff"), 1),
        # A number without an end and one that ends early, after a cached number.
        (bytes.fromhex("00000004 18014005 61 00000004 18014085 61"), 2),
        (bytes.fromhex("00000005 1801408501 61 00000005 1801400501 61"), 2),
        # A sequence id of eleven bytes.
        (bytes.fromhex("0000000e 180140 8080808080808080808001 61"), 1),
        # A size of three bytes whose last one looks like the tag of a sequence id.
        (bytes.fromhex("00000006 18808040c801") + bytes(16_384), 1),
    ],
)
def test_a_broken_batch_is_refused(payload: bytes, count: int) -> None:
    with pytest.raises(CorruptDataError):
        decode_columns(entry_of(payload, count), LIMIT)


def test_a_broken_entry_is_refused() -> None:
    entry = build_single(b"value", "key", 9, "p", NOW_MS)
    with pytest.raises(ChecksumError):
        decode_columns(entry[:-1] + b"!", LIMIT)
    for broken in (b"", b"\x00\x00\x00\x09", b"\x00\x00\x00\x01\xff", b"\x00\x00\x00\x00"):
        with pytest.raises(CorruptDataError):
            decode_columns(broken, LIMIT)


def test_encrypted_and_chunked_entries_are_refused() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=NOW_MS)
    metadata.encryption_keys.add(key="k", value=b"v")
    with pytest.raises(UnsupportedFeatureError, match="encrypted"):
        decode_columns(build_entry(metadata.SerializeToString(), b""), LIMIT)
    with pytest.raises(UnsupportedFeatureError, match="chunk"):
        decode_columns(entry_of(b"", 1, num_chunks_from_msg=2, chunk_id=0), LIMIT)


def test_a_batch_may_end_with_an_empty_value_without_a_sequence_id() -> None:
    for key in (None, "k"):
        header = pb.SingleMessageMetadata(payload_size=0)
        if key is not None:
            header.partition_key = key
        packed = header.SerializeToString()
        columns = decode_columns(entry_of(len(packed).to_bytes(4, "big") + packed, 1), LIMIT)
        assert (columns.values, columns.keys) == ([b""], [None if key is None else key.encode()])
