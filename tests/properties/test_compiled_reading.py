"""The compiled steps of a consumer do what their Python forms do."""

from __future__ import annotations

from struct import pack
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from anabranch import speedups
from anabranch.errors import AnabranchError
from anabranch.protocol.columns import Columns
from anabranch.protocol.entries import decode_columns
from anabranch.protocol.frames import build_entry
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import encode_varint
from anabranch.spark.entries import Payload
from anabranch.spark.spans import Spans, find_spans
from tests.properties.python_forms import FIRST, python_forms

pytestmark = pytest.mark.skipif(
    speedups.add_rows is None, reason="the package was built without a compiler, or runs from an archive"
)

COMPILED: Any = speedups


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
