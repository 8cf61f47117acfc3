"""The compiled steps of Spark's source and sink do what their Python forms do."""

from __future__ import annotations

from struct import pack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructField, StructType

from anabranch import speedups
from anabranch.errors import AnabranchError
from anabranch.model.hashing import key_hash
from anabranch.model.ranges import FULL
from anabranch.spark.columns import hash_column
from anabranch.spark.decide.source.topology import Slice
from anabranch.spark.decode.entries import Payload
from anabranch.spark.decode.rows import RowBuilder
from anabranch.spark.sink.message_columns import MessageColumns
from anabranch.spark.source.data_source import COLUMNS
from anabranch.spark.topics import OutgoingRows
from tests.properties.python_forms import FIRST, python_forms
from tests.properties.raw_batches import BATCHES, LIES

pytestmark = pytest.mark.skipif(
    speedups.copy_messages is None, reason="the package was built without a compiler, or runs from an archive"
)

COMPILED: Any = speedups
SCHEMA = StructType([StructField(name, COLUMNS[name]) for name in ("value", "position", "key")])
MESSAGE = pack(">I", 7) + b"\x12\x01k\x18\x02\x40\x01" + b"vv"


def rows_of(payloads: list[Payload], lo: int, hi: int) -> object:
    builder, first = RowBuilder(SCHEMA, "orders"), 0
    for payload in payloads:
        builder.add(payload, first, Slice("orders", 0, FULL, lo, hi), None)
        first += payload.count
    try:
        batch = builder.take()
    except AnabranchError as error:
        return type(error)
    if batch is None:
        return None
    batch.validate(full=True)
    return batch.to_pylist()


@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
@given(
    batches=st.lists(st.tuples(BATCHES, LIES, LIES), min_size=1, max_size=3),
    lo=st.sampled_from([0, 0, 0, 2]),
    hi=st.sampled_from([99, 99, 99, 3]),
)
def test_a_task_gets_the_same_rows(batches: list[tuple[list[bytes], int, int]], lo: int, hi: int) -> None:
    payloads = []
    for batch, cut, count in batches:
        joined = b"".join(batch)
        payloads.append(Payload(joined[: len(joined) - max(0, cut)], max(0, len(batch) + count), 1))
    with python_forms():
        expected = rows_of(payloads, lo, hi)
    assert rows_of(payloads, lo, hi) == expected


KEYS = st.one_of(
    st.none(),
    st.lists(st.text(max_size=9), min_size=20, max_size=20),
    st.lists(st.one_of(st.none(), st.binary(max_size=5), st.just(b"k" * 200)), min_size=20, max_size=20),
)
VALUES = st.lists(st.binary(max_size=30) | st.binary(min_size=120, max_size=300), min_size=20, max_size=20)
TIMES = st.one_of(st.none(), st.lists(st.sampled_from([0, 1, 2**42, 2**62]), min_size=20, max_size=20))


def outgoing(keys: list[Any] | None, values: list[bytes], times: list[int] | None, skip: int) -> OutgoingRows:
    """The columns without their first rows, as Arrow cuts them."""
    encoded = None if keys is None else [key.encode() if isinstance(key, str) else key for key in keys]
    column = None if encoded is None else pa.array(encoded, pa.binary()).slice(skip)
    of_rows = None if times is None else np.array(times[skip:], np.int64)
    return OutgoingRows(pa.array(values, pa.binary()).slice(skip), column, event_times_ms=of_rows)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(KEYS, VALUES, TIMES, st.integers(0, 20), st.none() | FIRST)
def test_rows_become_the_same_messages(
    keys: list[Any] | None, values: list[bytes], times: list[int] | None, skip: int, first: int | None
) -> None:
    order = np.array(sorted(range(20 - skip), key=lambda row: row * 7 % 20), np.int64)
    rows = outgoing(keys, values, times, skip)

    def messages() -> list[bytes]:
        content, starts = MessageColumns(rows).joined(order, first)
        return [bytes(content[starts[row] : starts[row + 1]]) for row in range(len(order))]

    with python_forms():
        expected = messages()
    assert messages() == expected


@given(st.lists(st.none() | st.binary(max_size=9) | st.binary(min_size=60, max_size=70), max_size=20))
def test_keys_have_the_same_hashes(keys: list[bytes | None]) -> None:
    expected = [0 if key is None else key_hash(key) for key in keys]
    assert hash_column(pa.array(keys, pa.binary())).tolist() == expected


def columns(rows: int = 1, room: int = 20) -> list[Any]:
    """The columns that a call fills: offsets of keys, keys, flags, offsets of values, values."""
    offsets = [np.empty(rows + 1, np.int32) for _ in range(2)]
    content = [np.empty(room, np.uint8) for _ in range(2)]
    return [offsets[0], content[0], np.zeros(1, np.uint8), offsets[1], content[1]]


def test_columns_of_another_size_take_no_message() -> None:
    assert COMPILED.copy_messages([MESSAGE], [1], *columns()) == (1, 2, 0)
    assert COMPILED.copy_messages([MESSAGE], [1], *columns(room=1)) is None
    assert COMPILED.copy_messages([MESSAGE], [1], *columns(rows=2)) is None
    assert COMPILED.copy_messages([MESSAGE * 2], [2], *columns()) is None
    assert COMPILED.copy_messages([MESSAGE], [-1], *columns()) is None


@pytest.mark.parametrize("wrong", [0, 1, 2, 3, 4])
def test_a_column_that_cannot_be_filled_is_refused(wrong: int) -> None:
    for column in (b"", np.empty(0, np.int64), "text"):
        given = columns()
        given[wrong] = column
        with pytest.raises((TypeError, ValueError, BufferError)):
            COMPILED.copy_messages([MESSAGE], [1], *given)
    with pytest.raises((TypeError, ValueError)):
        COMPILED.copy_messages([MESSAGE], [], *columns())


def joined(order: list[int], offsets: list[int], room: int, first: int | None = 0) -> object:
    data, starts = np.zeros(4, np.uint8), np.empty(len(order) + 1, np.int64)
    spans = data, np.array(offsets, np.int64)
    out = np.empty(room, np.uint8)
    return COMPILED.join_messages(np.array(order, np.int64), spans, spans, None, first, out, starts)


def test_rows_that_do_not_exist_become_no_message() -> None:
    assert joined([0], [0, 4], 56) is True
    assert joined([0], [0, 4], 55) is False
    assert joined([1], [0, 4], 100) is False
    assert joined([-1], [0, 4], 100) is False
    for offsets in ([0, 5], [-1, 4], [3, 2]):
        assert joined([0], offsets, 100) is False
        hashes = np.empty(1, np.uint32)
        assert COMPILED.hash_rows(np.zeros(4, np.uint8), np.array(offsets, np.int64), hashes) is False
    for wrong in (
        ([0], [0], 100, 0),
        ([0], [0, 1, 2], 100, 0),
        ([0], [0, 4], 100, -1),
        ([0], [0, 4], 100, 2**63),
    ):
        with pytest.raises((ValueError, OverflowError)):
            joined(*wrong)
