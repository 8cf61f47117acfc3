from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.client.bulk.encoded_rows import EncodedPart
from anabranch.errors import MessageTooBigError
from anabranch.model.hashing import bucket_hash, bucket_index, key_hash
from anabranch.model.layout import Layout
from anabranch.model.routing import Router
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.columns import Columns
from anabranch.protocol.entries import decode_columns
from anabranch.spark.columns import hash_column
from anabranch.spark.decode.entries import open_entry
from anabranch.spark.sink.encoding import RowEncoder
from anabranch.spark.topics import OutgoingRows

ONE = Layout.initial(1, now_ms=0, bucket_budget=4)
MANY = Layout.initial(5, now_ms=0, bucket_budget=11).split(2, now_ms=0)
BY_LOW_HALF = replace(MANY, by_low_half=True)

ROWS = st.lists(
    st.tuples(
        st.one_of(
            st.none(), st.text(max_size=9), st.binary(max_size=5), st.text("k", min_size=126, max_size=131)
        ),
        st.one_of(st.none(), st.binary(max_size=30), st.binary(min_size=120, max_size=300)),
        st.one_of(st.just(0), st.integers(0, 2**42)),
        st.one_of(st.none(), st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)),
    ),
    max_size=30,
)


def columns(
    keys: list[Any] | None, values: list[Any], times: list[int] | None = None, headers: Any = None
) -> OutgoingRows:
    column = None
    if keys is not None:
        column = pa.array([k.encode() if isinstance(k, str) else k for k in keys], pa.binary())
    return OutgoingRows(
        values=pa.array(values, pa.binary()),
        keys=column,
        hashes=None if column is None else hash_column(column),
        event_times_ms=None if times is None else np.array(times, np.int64),
        headers=None if headers is None else [row and tuple(row.items()) for row in headers],
    )


def opened(part: EncodedPart) -> Columns:
    batch = MessageBatch()
    batch.add_encoded(part.messages, part.message_count, part.sequence_id, part.first_key)
    return decode_columns(batch.build("p", 1, hash_range=part.hash_range), 2**30)


def as_bytes(key: Any) -> bytes | None:
    return key.encode() if isinstance(key, str) else key


@settings(max_examples=300)
@given(
    ROWS,
    st.sampled_from([ONE, MANY, BY_LOW_HALF]),
    st.sampled_from([0, 127, 2**21 - 5, 2**40]),
    st.booleans(),
    st.booleans(),
)
def test_rows_come_back_from_the_parts_of_their_buckets(
    rows: list[tuple[Any, Any, int, Any]], layout: Layout, first: int, with_times: bool, with_headers: bool
) -> None:
    keys, values = [row[0] for row in rows], [row[1] for row in rows]
    given_rows = columns(
        keys,
        values,
        [row[2] for row in rows] if with_times else None,
        [row[3] for row in rows] if with_headers else None,
    )
    parts = RowEncoder(given_rows, entry_bytes=2000, rotation=3).encode(layout, first, 2**20)
    router = Router(layout)
    found: dict[int, tuple[Any, Any, int, Any]] = {}
    last_of_segment: dict[int, int] = defaultdict(lambda: -1)
    for part in parts:
        batch = opened(part)
        segment = layout.segment(part.segment)
        assert part.sequence_id > last_of_segment[part.segment], "the broker takes rising sequence ids only"
        last_of_segment[part.segment] = part.sequence_id
        assert batch.sequence_ids == sorted(batch.sequence_ids)
        assert batch.sequence_ids[-1] == part.sequence_id
        assert as_bytes(part.first_key) == batch.keys[0]
        buckets = {bucket_index(segment.bucket_splits, bucket_hash(slot)) for slot in part.hash_range}
        assert len(buckets) == 1
        for at in range(batch.count):
            key = batch.keys[at]
            if key is not None:
                assert router.segment_for(key_hash(key)).id == part.segment
                assert bucket_index(segment.bucket_splits, bucket_hash(key_hash(key))) in buckets
            found[batch.sequence_ids[at]] = (
                key,
                batch.values[at],
                batch.event_times[at] if batch.event_times else 0,
                (batch.properties[at] if batch.properties else None) or None,
            )
    assert [found[n] for n in sorted(found)] == [
        (as_bytes(key), value, time if with_times else 0, (pairs or None) if with_headers else None)
        for key, value, time, pairs in rows
    ]
    assert sorted(found) == list(range(first, first + len(rows)))


def test_a_plain_message_is_encoded_as_the_client_encodes_it() -> None:
    keys = [f"key-{n}" for n in range(50)]
    (part,) = RowEncoder(columns(keys, [b"v%d" % n for n in range(50)]), 2**20).encode(
        Layout.initial(1, now_ms=0, bucket_budget=1), 16_380, 2**20
    )
    batch = MessageBatch()
    for n, key in enumerate(keys):
        batch.add(b"v%d" % n, key, 16_380 + n)
    entry = batch.build(producer_name="p", publish_time_ms=1)
    assert part.messages == bytes(open_entry(entry, 2**20).data)


def test_rows_without_keys_share_a_bucket_and_take_turns() -> None:
    rows = columns(None, [b"v"] * 10)
    used = []
    for rotation in range(8):
        (part,) = RowEncoder(rows, 2**20, rotation).encode(MANY, 0, 2**20)
        used.append((part.segment, part.hash_range))
    assert len(set(used)) == 8
    assert part.first_key is None


def test_large_rows_are_cut_into_several_entries() -> None:
    rows = columns(["k"] * 9, [b"v" * 900] * 9)
    parts = RowEncoder(rows, entry_bytes=2000).encode(ONE, 0, 10_000)
    assert [part.message_count for part in parts] == [2, 2, 2, 2, 1]
    assert all(len(part.messages) <= 2000 for part in parts)


def test_many_small_rows_make_entries_of_like_size() -> None:
    rows = columns([f"k{n}" for n in range(1000)], [b"v" * 100] * 1000)
    one_bucket = Layout.initial(1, now_ms=0, bucket_budget=1)
    sizes = [len(part.messages) for part in RowEncoder(rows, entry_bytes=50_000).encode(one_bucket, 0, 2**20)]
    assert max(sizes) <= 50_000
    assert min(sizes) > 0.8 * max(sizes)


def test_a_row_above_the_brokers_limit_is_refused() -> None:
    with pytest.raises(MessageTooBigError, match="at most 5000"):
        RowEncoder(columns(["k"], [b"v" * 6000]), 2**20).encode(ONE, 0, 5000)


def test_text_and_large_columns_are_taken_as_they_come() -> None:
    keys = pa.array(["k1", "k2"], pa.large_string())
    rows = OutgoingRows(values=pa.array(["a", "ü"], pa.large_string()), keys=keys, hashes=hash_column(keys))
    found: dict[bytes | None, bytes | None] = {}
    for part in RowEncoder(rows, 2**20).encode(ONE, 0, 2**20):
        batch = opened(part)
        found.update(zip(batch.keys, batch.values, strict=True))
    assert found == {b"k1": b"a", b"k2": "ü".encode()}


def test_a_key_that_is_not_text_travels_as_base64_in_a_large_column_too() -> None:
    keys = pa.array([b"\xff\xfe", b"k"], pa.large_binary())
    rows = OutgoingRows(pa.array([b"1", b"2"], pa.large_binary()), keys, hash_column(keys))
    parts = RowEncoder(rows, 2**20).encode(Layout.initial(1, now_ms=0, bucket_budget=1), 0, 2**20)
    assert b"//4=" in parts[0].messages
    assert [key for part in parts for key in opened(part).keys] == [b"\xff\xfe", b"k"]


def test_no_rows_make_no_parts() -> None:
    assert RowEncoder(columns([], []), 2**20).encode(ONE, 0, 2**20) == []


def test_the_sample_keys_of_parts_are_spread_over_their_messages() -> None:
    keys = [f"k{number % 10}" for number in range(1000)]
    parts = RowEncoder(columns(keys, [b"v" * 50] * 1000), 600).encode(ONE, 0, 2**20)
    assert all(as_bytes(part.sample_key) in opened(part).keys for part in parts)
    assert {as_bytes(part.sample_key) for part in parts} == {key.encode() for key in keys}
