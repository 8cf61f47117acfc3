"""The compiled functions do what their Python forms do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from struct import pack
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from anabranch import speedups
from anabranch.client.decide.batcher import OpenBucket, SegmentBatcher, message_size
from anabranch.client.decide.outgoing import Outgoing
from anabranch.client.options import Batching
from anabranch.client.produce.adding import MessageAdding, PlainRows
from anabranch.client.produce.futures import BulkFuture
from anabranch.errors import AnabranchError
from anabranch.model.hashing import equal_bucket_splits, key_hash
from anabranch.protocol.columns import Columns
from anabranch.protocol.compression import Compression
from anabranch.protocol.entries import decode_columns
from anabranch.protocol.frames import build_entry
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import encode_varint
from anabranch.spark.entries import Payload
from anabranch.spark.spans import Spans, find_spans

pytestmark = pytest.mark.skipif(
    speedups.encode_rows is None, reason="the package was built without a compiler, or runs from an archive"
)

COMPILED: Any = speedups
KEYS = (
    st.none()
    | st.text(max_size=8)
    | st.binary(max_size=4)
    | st.sampled_from(["k" * size for size in (*range(122, 129), 200)])
)
VALUES = st.binary(max_size=30) | st.sampled_from(
    [bytes(size) for size in (20, 127, 128, 255, 256, 65_535, 65_536)]
)
FIRST = st.sampled_from([0, 1, 127, 128, 2**14 - 3, 2**21, 2**28 - 2, 2**40, 2**62])
ROWS = st.lists(st.tuples(VALUES, KEYS), min_size=1, max_size=40)


@contextmanager
def python_forms() -> Iterator[None]:
    with (
        patch("anabranch.client.decide.outgoing.encode_rows", None),
        patch("anabranch.protocol.entries.split_messages", None),
        patch("anabranch.client.produce.adding.add_rows", None),
        patch("anabranch.spark.spans.find_messages", None),
    ):
        yield


def built(rows: Sequence[tuple[bytes, Any]], first: int) -> bytes:
    batch = Outgoing(0.0)
    batch.rows = [(value, key, first + n, 40_503 * n % 65_536) for n, (value, key) in enumerate(rows)]
    batch.build("producer", 1, Compression.NONE, batched=True)
    return batch.entry


@given(rows=ROWS, first=FIRST)
@example(rows=[(bytes(255), "k"), (bytes(256), "k")] * 2, first=0)
@example(rows=[(bytes(65_535), "k"), (bytes(65_536), "k")] * 2, first=0)
@example(rows=[(b"v", "k" * 127)] * 4, first=0)
@example(rows=[(b"v", "k" * 127)] * 4, first=128)
@example(rows=[(b"v", "k" * 127)] * 4, first=2**14)
@example(rows=[(b"v", "k" * 128)] * 4, first=0)
@example(rows=[(b"v", "k"), (b"", "k")] * 1600, first=0)
def test_rows_become_the_same_entry(rows: list[tuple[bytes, Any]], first: int) -> None:
    with python_forms():
        expected = built(rows, first)
    assert built(rows, first) == expected


@pytest.mark.parametrize("row", [(bytearray(b"v"), "k", 1, 2), (b"v", b"\xff", 1, 2), (b"v", "k", 1)])
def test_unusual_rows_are_left_to_python(row: Any) -> None:
    assert COMPILED.encode_rows([(b"v", "k", 0, 2), row]) is None


@pytest.mark.parametrize("row", [(b"v", "\ud800", 1, 2), (b"v", "k", 2**70, 2), (b"v", "k", "1", 2)])
def test_a_row_that_no_form_can_encode_raises(row: Any) -> None:
    with pytest.raises((UnicodeEncodeError, OverflowError, TypeError)):
        COMPILED.encode_rows([row])


def read(entry: bytes) -> Columns | type[AnabranchError]:
    try:
        found = decode_columns(entry, 2**20)
        # These columns are read on first use.
        assert len(found.keys) == len(found.sequence_ids) == found.count
        return found
    except AnabranchError as error:
        return type(error)


def contents(found: Columns | type[AnabranchError]) -> object:
    if isinstance(found, type):
        return found
    assert not found.properties
    times = found.event_times or [0] * found.count
    return found.values, found.keys, found.sequence_ids, times, list(found.batch_indexes), found.batch_size


LIES = st.sampled_from([0] * 12 + [-1, 1, 100])
TIMES = st.sampled_from([0, 5, 2**40, 2**42 - 1, 2**42, 2**62])


@st.composite
def messages(draw: st.DrawFn, usual: bool) -> bytes:
    """One message of a batch; others than usual ones have headers of other shapes, and wrong sizes."""
    lies = st.just(0) if usual else LIES
    odd = st.just(False) if usual else st.sampled_from([False] * 4 + [True])
    value = bytes(draw(st.sampled_from([0, 1, 5, 127, 128, 300])))
    key = bytes(draw(st.sampled_from([0, 1, 3, 120] if usual else [0, 3, 127, 128])))
    fields = []
    if draw(st.booleans()):
        fields.append(b"\x12" + encode_varint(max(0, len(key) + draw(lies))) + key)
    fields.append(b"\x18" + encode_varint(max(0, len(value) + draw(lies))))
    if draw(st.sampled_from([False] * 3 + [True])):
        fields.append(b"\x28" + encode_varint(draw(TIMES)))
    if not draw(odd):
        number = encode_varint(draw(FIRST | st.just(2**63))) + b"\x80" * draw(lies)
        fields.append((b"\x38" if draw(odd) else b"\x40") + number)
    if draw(odd):
        fields.insert(draw(st.integers(0, len(fields))), b"\x30\x00")
    header = b"".join(fields)
    return pack(">I", len(header) + draw(lies)) + header + value


BATCHES = st.booleans().flatmap(lambda usual: st.lists(messages(usual), min_size=1, max_size=5))


@settings(max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
@given(batch=BATCHES, cut=LIES, count=LIES)
@example(batch=[pack(">I", 15) + b"\x18\x00\x40" + b"\x81" * 11 + b"\x01"], cut=0, count=0)
@example(batch=[pack(">I", 4) + b"\x18\x01\x40\x01"], cut=0, count=0)
@example(batch=[pack(">I", 100) + b"\x18\x00\x40\x01"], cut=0, count=0)
@example(batch=[pack(">I", 6) + b"\x12\x09\x18\x00\x40\x01"], cut=0, count=0)
def test_a_batch_is_read_alike(batch: list[bytes], cut: int, count: int) -> None:
    payload = b"".join(batch)
    payload = payload[: len(payload) - max(0, cut)]
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=7, publish_time=1, num_messages_in_batch=max(1, len(batch) + count)
    )
    entry = build_entry(metadata.SerializeToString(), payload)
    with python_forms():
        expected = contents(read(entry))
    assert contents(read(entry)) == expected


def spans_of(payloads: list[Payload]) -> object:
    try:
        spans = find_spans(payloads)
    except AnabranchError as error:
        return type(error)
    taken = {
        name: getattr(spans, name) for name in Spans.__slots__ if name not in ("raw", "data", "sequences")
    }
    # The place of a missing key means nothing.
    keys = [
        None if none else pair
        for none, *pair in zip(
            taken.pop("no_key"), taken.pop("key_starts"), taken.pop("key_ends"), strict=True
        )
    ]
    return keys, spans.sequence_ids().tolist(), {name: column.tolist() for name, column in taken.items()}


@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(BATCHES, LIES, LIES), min_size=1, max_size=3))
def test_spark_finds_the_same_messages(batches: list[tuple[list[bytes], int, int]]) -> None:
    payloads = []
    for batch, cut, count in batches:
        joined = b"".join(batch)
        payloads.append(Payload(joined[: len(joined) - max(0, cut)], max(0, len(batch) + count), 1))
    with python_forms():
        expected = spans_of(payloads)
    assert spans_of(payloads) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        (b"", [1], [], np.empty((6, 1), np.int64)),
        (b"", [1], [0], np.empty(5, np.int64)),
        (b"", [1], [0], np.empty((6, 1), np.int32)),
        (b"", [1], [0], b""),
        (b"", ["1"], [0], np.empty((6, 1), np.int64)),
    ],
)
def test_wrong_columns_are_refused(arguments: Any) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        COMPILED.find_messages(*arguments)


@pytest.mark.parametrize(
    ("count", "end"), [(2, 8), (2, 16), (1, 9), (1, -1), (-1, 8), (2**40, 8), (0, 8), (0, 0)]
)
def test_counts_and_ends_that_do_not_fit_find_nothing(count: int, end: int) -> None:
    message = pack(">I", 4) + b"\x18\x00\x40\x01"
    assert COMPILED.find_messages(message, [1], [8], np.empty((6, 1), np.int64))
    assert not COMPILED.find_messages(message * 2, [count], [end], np.empty((6, 1), np.int64))


@given(st.binary(max_size=60), st.integers(-1, 70), st.integers(-1, 12))
def test_any_bytes_can_be_split(payload: bytes, start: int, count: int) -> None:
    found = COMPILED.split_messages(payload, start, count)
    if found is not None:
        starts, values = found
        assert len(starts) == len(values) == count
        assert starts[0] == start
        assert payload.endswith(values[-1])


class Owner:
    """A segment whose closed batches stay here."""

    def __init__(self, buckets: int, limits: Batching) -> None:
        self.batcher = SegmentBatcher(equal_bucket_splits(buckets), limits, self)
        self.closed: list[list[Any]] = []

    def begin(self, bucket: OpenBucket) -> Outgoing:
        return self.batcher.begin(bucket, 0.0)

    def close_batches(self) -> None:
        self.closed.append([(batch.rows, batch.trackers) for batch in self.batcher.take()])


class Routes:
    """Two segments; each takes the keys of one half of the ring."""

    def __init__(self, buckets: int, limits: Batching) -> None:
        self.owners = [Owner(buckets, limits), Owner(buckets, limits)]
        self.by_key: dict[Any, Any] = {}

    def route(self, key: Any) -> tuple[OpenBucket, int, int]:
        hashed = 0 if key is None else key_hash(key)
        batcher = self.owners[hashed >> 16 & 1].batcher
        found = batcher.bucket_for(hashed & 0xFFFF), hashed & 0xFFFF, message_size(b"", key)
        return self.by_key.setdefault(key, found)  # type: ignore[no-any-return]

    def join_open(self, first: int, bulk: Any) -> None:
        for owner in self.owners:
            for batch in owner.batcher.opened.values():
                if batch.rows and batch.rows[-1][2] > first:
                    batch.trackers = [bulk]


class Adding(MessageAdding):
    """A producer that only adds."""

    def __init__(self, buckets: int, limits: Batching) -> None:
        self.routes = Routes(buckets, limits)
        self._routes = cast(Any, self.routes)
        self._sequence = -1

    def all_closed(self, runs: list[list[tuple[Any, Any]]]) -> list[Any]:
        """Add each run, and return what the segments sent and where the adding of a run paused."""
        pauses = []
        for number, run in enumerate(runs):
            rows = PlainRows.of([value for value, _ in run], [key for _, key in run])
            while self._add_run(rows, cast(BulkFuture, number)):
                pauses.append((number, rows.at, self._sequence))
        for owner in self.routes.owners:
            owner.close_batches()
        return [pauses, *(owner.closed for owner in self.routes.owners)]


@given(
    runs=st.lists(st.lists(st.tuples(st.binary(max_size=20), KEYS), max_size=30), min_size=1, max_size=3),
    buckets=st.sampled_from([1, 3, 9]),
    limits=st.builds(Batching, max_messages=st.integers(1, 12), max_bytes=st.integers(1, 300)),
)
def test_messages_are_added_to_the_same_batches(
    runs: list[list[tuple[bytes, Any]]], buckets: int, limits: Batching
) -> None:
    with python_forms():
        expected = Adding(buckets, limits).all_closed(runs)
    assert Adding(buckets, limits).all_closed(runs) == expected


def test_messages_without_keys_and_of_other_types_are_added() -> None:
    adding = Adding(1, Batching(max_messages=3))
    pauses, (first, last), _ = adding.all_closed(
        [[(value, None) for value in (b"a", bytearray(b"b"), b"c", b"d")]]
    )
    assert [[bytes(row[0]) for row in batch] for batch, _ in (*first, *last)] == [[b"a", b"b", b"c"], [b"d"]]
    assert pauses == [(0, 3, 2)]


@pytest.mark.parametrize(
    "arguments",
    [
        ({}, [b"v"], ["k"], -1, 0),
        ({}, [b"v"], "k", 0, 0),
        ({}, (b"v",), None, 0, 0),
        ({}, [b"v"], None, 0, 2**70),
    ],
)
def test_wrong_arguments_raise(arguments: Any) -> None:
    with pytest.raises((TypeError, OverflowError)):
        COMPILED.add_rows(*arguments)
