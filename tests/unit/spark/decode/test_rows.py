from __future__ import annotations

from datetime import UTC, datetime
from itertools import permutations
from typing import Any

import mmh3
import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from anabranch.errors import InvalidConfigurationError
from anabranch.model.ranges import FULL, HashRange
from anabranch.protocol.entry.batches import MessageBatch
from anabranch.protocol.frames import build_entry, metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.spark.decide.source.topology import Slice
from anabranch.spark.decode.entries import open_entry
from anabranch.spark.decode.rows import RowBuilder, arrow_schema
from anabranch.spark.source.data_source import COLUMNS, check_source_schema, source_schema

ALL = source_schema(event_time=True, headers=True, key_hash=True, producer=True)
PUBLISHED_MS = 1_700_000_000_123


def schema_of(*names: str) -> Any:
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def entry(*messages: dict[str, Any]) -> Any:
    batch = MessageBatch()
    for number, message in enumerate(messages):
        batch.add(**{"value": b"v", "key": None, "sequence_id": number, **message})
    return open_entry(batch.build("p", PUBLISHED_MS), 2**20)


def numbered(first: int, count: int, key: str = "k") -> Any:
    return entry(*({"value": str(first + n).encode(), "key": key} for n in range(count)))


def taken(builder: RowBuilder) -> list[dict[str, Any]]:
    batch = builder.take()
    if batch is None:
        return []
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def test_a_row_has_every_column_of_its_message() -> None:
    builder = RowBuilder(ALL, "orders")
    message = {"value": b"v", "key": "k1", "event_time_ms": 1_600_000_000_001, "properties": {"a": "b"}}
    builder.add(entry(message, {"value": b"", "null_value": True}), 40, Slice("orders", 7, FULL, 0, 99), None)
    first, second = taken(builder)
    assert first == {
        "key": b"k1",
        "value": b"v",
        "topic": "orders",
        "segment": 7,
        "position": 40,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
        "eventTime": datetime(2020, 9, 13, 12, 26, 40, 1000, UTC),
        "headers": [{"key": "a", "value": b"b"}],
        "keyHash": mmh3.hash("k1", 0, True),
        "producer": "p",
        "sequence": 0,
    }
    assert second["position"] == 41
    assert [second[name] for name in ("key", "value", "eventTime", "keyHash")] == [None] * 4
    assert second["headers"] == []


@pytest.mark.parametrize(
    "names", [*permutations(["key", "position", "headers"], 2), tuple(COLUMNS), ("topic",)]
)
def test_any_subset_and_order_of_columns_has_exactly_the_schema_spark_expects(names: tuple[str, ...]) -> None:
    schema = schema_of(*names)
    check_source_schema(schema)
    builder = RowBuilder(schema, "orders")
    builder.add(numbered(0, 3), 0, Slice("orders", 0, FULL, 0, 3), None)
    batch = builder.take()
    assert batch.schema == arrow_schema(schema)
    assert batch.schema.names == list(names)
    batch.validate(full=True)


@pytest.mark.parametrize(("lo", "hi"), [(0, 10), (3, 10), (0, 7), (4, 5), (2, 9)])
def test_a_slice_may_begin_and_end_inside_an_entry(lo: int, hi: int) -> None:
    builder = RowBuilder(schema_of("value", "position"), "orders")
    for first in (0, 4):
        builder.add(numbered(first, 4 if first == 0 else 6), first, Slice("orders", 0, FULL, lo, hi), None)
    assert [(int(row["value"]), row["position"]) for row in taken(builder)] == [(n, n) for n in range(lo, hi)]


def test_entries_outside_the_slice_add_nothing() -> None:
    builder = RowBuilder(schema_of("value"), "orders")
    builder.add(numbered(0, 4), 0, Slice("orders", 0, FULL, 4, 8), None)
    builder.add(numbered(8, 4), 8, Slice("orders", 0, FULL, 4, 8), None)
    assert builder.take() is None


def test_runs_share_the_messages_of_a_slice_without_remainder() -> None:
    keys = [*(f"key-{n}" for n in range(50)), None, b"\xff\xfe"]
    payload = entry(*({"value": str(n).encode(), "key": key} for n, key in enumerate(keys)))
    part = Slice("orders", 0, FULL, 0, len(keys))
    seen: list[int] = []
    for run in FULL.parts(5):
        builder = RowBuilder(schema_of("value", "keyHash"), "orders")
        builder.add(payload, 0, part, (run,))
        for row in taken(builder):
            seen.append(int(row["value"]))
            if row["keyHash"] is not None:
                assert (row["keyHash"] & 0xFFFFFFFF) >> 16 in run
    assert sorted(seen) == list(range(len(keys)))


@pytest.mark.parametrize(
    "stamp", [None, FULL, HashRange(0, 40_000), HashRange(20_000, 30_000), HashRange(7, 7)]
)
def test_bucket_hashes_share_the_messages_of_an_entry_without_remainder(stamp: HashRange | None) -> None:
    # A stamp that is not true costs the order of its entry, and no message.
    keys = [*(f"key-{n}" for n in range(50)), None, b"\xff\xfe"]
    payload = entry(*({"value": str(n).encode(), "key": key} for n, key in enumerate(keys)))
    payload = payload._replace(bucket_hashes=stamp)
    seen: list[int] = []
    for piece in FULL.parts(5):
        builder = RowBuilder(schema_of("value", "keyHash"), "orders")
        builder.add(payload, 0, Slice("orders", 0, FULL, 0, len(keys), bucket_hashes=piece), None)
        for row in taken(builder):
            seen.append(int(row["value"]))
            if row["keyHash"] is not None and stamp in (None, FULL):
                assert row["keyHash"] & 0xFFFF in piece
    assert sorted(seen) == list(range(len(keys)))


def test_a_key_outside_its_segment_still_belongs_to_one_run() -> None:
    # Another client may route by another rule; its messages must not vanish between runs.
    narrow = FULL.parts(4)[2]
    payload = entry(*({"value": str(n).encode(), "key": f"key-{n}"} for n in range(40)))
    seen = []
    for run in narrow.halves():
        builder = RowBuilder(schema_of("value"), "orders")
        builder.add(payload, 0, Slice("orders", 0, narrow, 0, 40), (run,))
        seen += [int(row["value"]) for row in taken(builder)]
    assert sorted(seen) == list(range(40))


def test_each_message_has_the_producer_and_sequence_id_of_its_own_entry() -> None:
    builder = RowBuilder(schema_of("producer", "sequence"), "orders")
    part = Slice("orders", 0, FULL, 1, 99)
    for at, (name, ids) in enumerate({"one": [7, 300, 2**40], "two": [5]}.items()):
        batch = MessageBatch()
        for id_ in ids:
            batch.add(b"v", "k", id_)
        builder.add(open_entry(batch.build(name, PUBLISHED_MS), 2**20), 3 * at, part, None)
    single = pb.MessageMetadata(producer_name="three", sequence_id=9, publish_time=1)
    builder.add(open_entry(build_entry(single.SerializeToString(), b"v"), 2**20), 4, part, None)
    unnumbered = pb.SingleMessageMetadata(payload_size=1).SerializeToString()
    batched = pb.MessageMetadata(
        producer_name="four", sequence_id=3, publish_time=1, num_messages_in_batch=2
    ).SerializeToString()
    payload = 2 * (len(unnumbered).to_bytes(4, "big") + unnumbered + b"v")
    builder.add(open_entry(build_entry(batched, payload), 2**20), 5, part, None)
    found = [(row["producer"], row["sequence"]) for row in taken(builder)]
    assert found == [("one", 300), ("one", 2**40), ("two", 5), ("three", 9), ("four", 3), ("four", 4)]


def test_an_entry_with_consecutive_ids_outside_has_them_for_its_messages() -> None:
    batch = MessageBatch()
    for id_ in (0, 1, 2):
        batch.add(b"v", "k", id_)
    staged = batch.build("task", PUBLISHED_MS)
    # The sink publishes a staged entry under its own name and numbers, without opening it.
    start, end = metadata_span(staged)
    outer = pb.MessageMetadata.FromString(staged[start:end])
    outer.producer_name, outer.sequence_id, outer.highest_sequence_id = "sink", 70, 72
    builder = RowBuilder(schema_of("producer", "sequence"), "orders")
    published = open_entry(build_entry(outer.SerializeToString(), staged[end:]), 2**20)
    builder.add(published, 0, Slice("orders", 0, FULL, 1, 3), None)
    assert [(row["producer"], row["sequence"]) for row in taken(builder)] == [("sink", 71), ("sink", 72)]


def test_binary_keys_come_back_as_they_were() -> None:
    builder = RowBuilder(schema_of("key", "keyHash"), "orders")
    builder.add(entry({"key": b"\xff\x00\xfe"}, {"key": b"plain"}), 0, Slice("orders", 0, FULL, 0, 2), None)
    rows = taken(builder)
    assert [row["key"] for row in rows] == [b"\xff\x00\xfe", b"plain"]
    assert rows[0]["keyHash"] == mmh3.hash(b"\xff\x00\xfe", 0, True)


def test_a_builder_asks_to_be_emptied_when_a_batch_is_large_enough() -> None:
    builder = RowBuilder(schema_of("value"), "orders")
    for first in range(0, 10_000, 1000):
        assert not builder.full
        builder.add(numbered(first, 1000), first, Slice("orders", 0, FULL, 0, 10_000), None)
    assert builder.full
    assert len(taken(builder)) == 10_000
    assert not builder.full


def test_columns_the_source_does_not_have_are_refused_at_planning() -> None:
    for field, words in (
        (StructField("offset", LongType()), "no column offset"),
        (StructField("segment", BinaryType()), "bigint"),
        (StructField("key", BinaryType(), nullable=False), "NOT NULL"),
    ):
        with pytest.raises(InvalidConfigurationError, match=words):
            check_source_schema(StructType([field]))
    with pytest.raises(InvalidConfigurationError, match="twice"):
        check_source_schema(schema_of("key", "key"))


def test_optional_columns_are_off_by_default() -> None:
    names = source_schema(event_time=False, headers=False, key_hash=False).names
    assert names == ["key", "value", "topic", "segment", "position", "timestamp"]


def test_text_of_a_peer_that_is_not_utf8_is_read_as_the_client_reads_it() -> None:
    pair = b"\x0a\x01\xff\x12\x02\xfe\x01"
    batch = MessageBatch()
    header = b"\x0a" + bytes([len(pair)]) + pair + b"\x12\x01\xff\x18\x01\x40\x01"
    batch.add_encoded(len(header).to_bytes(4, "big") + header + b"v", 1, 1, None)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=PUBLISHED_MS)
    outside = metadata.SerializeToString() + b"\x22" + bytes([len(pair)]) + pair + b"\x32\x01\xff"
    for stored in (batch.build("p", PUBLISHED_MS), build_entry(outside, b"v")):
        builder = RowBuilder(ALL, "orders")
        builder.add(open_entry(stored, 2**20), 0, Slice("orders", 0, FULL, 0, 1), None)
        (row,) = taken(builder)
        assert (row["key"], row["value"]) == (b"\xff", b"v")
        assert row["headers"] == [{"key": "\ufffd", "value": b"\xfe\x01"}]
