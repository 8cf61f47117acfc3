"""Laws of batching: each message leaves once, in order, bucket by bucket."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.client.decide.producing.batcher import SegmentBatcher, message_size
from anabranch.client.decide.producing.outgoing import Extras, Outgoing
from anabranch.client.decide.producing.sample_keys import sample_index, sample_key
from anabranch.client.options import Batching
from anabranch.model.hashing import bucket_index, bucket_ranges, equal_bucket_splits, key_hash
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.compression import Compression
from anabranch.protocol.entries import decode_columns
from anabranch.protocol.outer import read_outer, read_sample_key

KEYS = st.sampled_from([f"key-{n}" for n in range(12)])
MESSAGES = st.lists(st.tuples(KEYS, st.binary(max_size=40)), min_size=1, max_size=80)
LIMITS = st.builds(
    Batching, max_messages=st.integers(1, 30), max_bytes=st.integers(1, 600), max_delay=st.just(0.001)
)


def fill(
    messages: list[tuple[str, bytes]], buckets: int, limits: Batching, flush_after: set[int]
) -> list[Outgoing]:
    """Add messages as a producer does; close batches when full and where the case says so."""
    batcher = SegmentBatcher(equal_bucket_splits(buckets), limits)
    closed: list[Outgoing] = []
    for sequence, (key, value) in enumerate(messages):
        slot = key_hash(key) & 0xFFFF
        size = message_size(value, key)
        bucket = batcher.bucket_for(slot)
        if bucket.batch is not None and size > bucket.bytes_left:
            closed += batcher.take()
        batch = bucket.batch or batcher.begin(bucket, float(sequence))
        if bucket.add(batch, (value, key, sequence, slot), size) or sequence in flush_after:
            closed += batcher.take()
    closed += batcher.take()
    assert not batcher.opened
    for batch in closed:
        batch.build("producer", 1, Compression.NONE, batched=True)
    return closed


CASES = {
    "messages": MESSAGES,
    "buckets": st.sampled_from([1, 2, 4, 7]),
    "limits": LIMITS,
    "flush_after": st.sets(st.integers(0, 79), max_size=5),
}


@given(**CASES)
def test_every_message_leaves_once_and_each_key_in_order(
    messages: list[tuple[str, bytes]], buckets: int, limits: Batching, flush_after: set[int]
) -> None:
    sent: dict[bytes, list[tuple[int, bytes]]] = {}
    for batch in fill(messages, buckets, limits, flush_after):
        columns = decode_columns(batch.entry, 2**20)
        assert columns.count == batch.count
        for key, value, sequence in zip(columns.keys, columns.values, columns.sequence_ids, strict=True):
            assert key is not None
            assert value is not None
            sent.setdefault(key, []).append((sequence, value))
    expected: dict[bytes, list[tuple[int, bytes]]] = {}
    for sequence, (text, data) in enumerate(messages):
        expected.setdefault(text.encode(), []).append((sequence, data))
    assert sent == expected


@given(**CASES)
def test_sequence_ids_of_entries_only_rise(
    messages: list[tuple[str, bytes]], buckets: int, limits: Batching, flush_after: set[int]
) -> None:
    batches = fill(messages, buckets, limits, flush_after)
    sequences = [batch.sequence for batch in batches]
    assert sequences == sorted(set(sequences))
    for batch in batches:
        outer = read_outer(batch.entry)
        assert outer.sequence_id == outer.highest_sequence_id == batch.sequence
        assert max(decode_columns(batch.entry, 2**20).sequence_ids) == batch.sequence


@given(**CASES)
def test_no_entry_straddles_buckets_and_its_stamp_is_exact(
    messages: list[tuple[str, bytes]], buckets: int, limits: Batching, flush_after: set[int]
) -> None:
    splits = equal_bucket_splits(buckets)
    for batch in fill(messages, buckets, limits, flush_after):
        outer = read_outer(batch.entry)
        keys = decode_columns(batch.entry, 2**20).keys
        slots = [key_hash(key) & 0xFFFF for key in keys if key is not None]
        assert (outer.bucket_hash, outer.bucket_hash_max) == (min(slots), max(slots))
        bucket = bucket_ranges(splits)[bucket_index(splits, min(slots))]
        assert all(slot in bucket for slot in slots)


@given(**CASES)
def test_limits_hold_for_each_batch(
    messages: list[tuple[str, bytes]], buckets: int, limits: Batching, flush_after: set[int]
) -> None:
    for batch in fill(messages, buckets, limits, flush_after):
        assert batch.count <= limits.max_messages
        columns = decode_columns(batch.entry, 2**20)
        sizes = [message_size(v or b"", k) for v, k in zip(columns.values, columns.keys, strict=True)]
        assert len(sizes) == 1 or sum(sizes) <= limits.max_bytes


@given(buckets=st.integers(1, 70), limits=LIMITS)
def test_the_open_batches_of_a_segment_hold_four_full_batches_or_a_message_of_each_bucket(
    buckets: int, limits: Batching
) -> None:
    batcher = SegmentBatcher(equal_bucket_splits(buckets), limits)
    assert sum(bucket.room for bucket in batcher.buckets) <= max(4 * limits.max_messages, buckets)
    assert sum(bucket.bytes_left for bucket in batcher.buckets) <= max(4 * limits.max_bytes, buckets)
    if buckets <= 4:
        assert {bucket.room for bucket in batcher.buckets} == {limits.max_messages}


@given(
    value=st.binary(max_size=50),
    key=st.none() | st.text(max_size=10).map(lambda text: text.encode()) | st.binary(max_size=10),
    properties=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    event_time_ms=st.integers(0, 2**40),
    null_value=st.booleans(),
    deliver_at_ms=st.integers(0, 2**40),
    batched=st.booleans(),
)
def test_a_message_taken_back_from_its_entry_is_the_same(
    value: bytes,
    key: bytes | None,
    properties: dict[str, str],
    event_time_ms: int,
    null_value: bool,
    deliver_at_ms: int,
    batched: bool,
) -> None:
    extras = Extras(properties or None, event_time_ms, null_value, deliver_at_ms)
    batch = Outgoing(0.0)
    batch.rows.append((b"" if null_value else value, key, 7, 3))
    batch.extras = {0: extras}
    batch.build("producer", 1, Compression.NONE, batched)
    ((again, again_key, sequence, _),), found = batch.messages()
    again_extras = None if found is None else found[0]
    assert (again, again_key, sequence) == (b"" if null_value else value, key, 7)
    assert (again_extras or Extras()) == extras


@given(
    keys=st.lists(st.none() | st.text(max_size=4) | st.binary(max_size=4), min_size=1, max_size=30),
    sizes=st.just([3]) | st.lists(st.integers(0, 20_000), min_size=1, max_size=5),
    first=st.sampled_from([0, 100, 2**14 - 5, 2**14, 10**6, 2**28 - 5, 2**28, 2**40]),
    step=st.integers(1, 3),
)
@example(keys=[None] * 4, sizes=[3], first=2**14, step=1)
def test_messages_added_in_columns_are_those_added_one_by_one(
    keys: list[str | bytes | None], sizes: list[int], first: int, step: int
) -> None:
    values = [b"v" * sizes[index % len(sizes)] for index in range(len(keys))]
    sequences = [first + step * index for index in range(len(keys))]
    one, many = MessageBatch(), MessageBatch()
    for value, key, sequence in zip(values, keys, sequences, strict=True):
        one.add(value, key, sequence)
    many.add_many(values, keys, sequences)
    assert many.build("p", 1) == one.build("p", 1)
    assert (many.count, many.size) == (one.count, one.size)


@given(**CASES)
def test_the_sample_key_of_a_batch_is_a_key_of_the_batch(
    messages: list[tuple[str, bytes]], buckets: int, limits: Batching, flush_after: set[int]
) -> None:
    for batch in fill(messages, buckets, limits, flush_after):
        assert read_sample_key(batch.entry) in decode_columns(batch.entry, 2**20).keys


def test_sample_keys_follow_the_shares_of_the_keys_in_batches_that_begin_alike() -> None:
    messages = [("first", b""), *[("often", b"")] * 5, *[("seldom", b"")] * 2] * 500
    limits = Batching(max_messages=8, max_bytes=2**20, max_delay=1.0)
    found = Counter(read_sample_key(batch.entry) for batch in fill(messages, 1, limits, set()))
    assert 40 < found[b"first"] < 90
    assert 260 < found[b"often"] < 360
    assert found.total() == 500


def test_a_sample_without_a_key_and_a_long_key() -> None:
    assert sample_key(None, None) is None
    assert sample_key(None, "a") == b""
    assert sample_key(b"\xff", "a") == b"\xff"
    assert sample_key("b", None) == b"b"
    assert sample_key("b" * 999, "a") is None
    assert {sample_index(sequence, 3) for sequence in range(99)} == {0, 1, 2}
