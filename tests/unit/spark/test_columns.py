from __future__ import annotations

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.spark.columns import binary_column, binary_parts, hash_column, number_column, repeated_text

KEYS = st.lists(
    st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=200)), max_size=40
)


@given(KEYS, st.integers(0, 5), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_the_hash_of_a_column_is_the_hash_of_each_key(
    keys: list[bytes | None], skip: int, kind: object
) -> None:
    column = pa.array(keys, kind).slice(skip)
    expected = [0 if key is None else mmh3.hash(key, 0, False) for key in keys[skip:]]
    assert hash_column(column).tolist() == expected


@pytest.mark.parametrize(
    ("key", "raw"),
    [("", 0), ("a", 0x3C2569B2), ("k1", 0xFDC6602A), ("key01", 0x825DBA24), ("日本語", 0xA5A47297)],
)
def test_the_hash_of_text_is_that_of_its_utf8(key: str, raw: int) -> None:
    assert hash_column(pa.array([key], pa.string())).tolist() == [raw]


@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=30), st.booleans()), max_size=30))
def test_spans_of_one_buffer_become_a_column(rows: list[tuple[bytes, bytes, bool]]) -> None:
    data = b"".join(gap + value for gap, value, _ in rows)
    lengths = np.array([len(gap) + len(value) for gap, value, _ in rows], np.int64)
    ends = np.cumsum(lengths)
    starts = ends - np.array([len(value) for _, value, _ in rows], np.int64)
    missing = np.array([null for _, _, null in rows], np.bool_)
    column = binary_column(data, starts, ends, missing)
    assert column.type == pa.binary()
    assert column.to_pylist() == [None if null else value for _, value, null in rows]
    column.validate(full=True)


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=30), st.integers(0, 3))
def test_numbers_become_a_column(numbers: list[int | None], skip: int) -> None:
    given = np.array([number or 0 for number in numbers], np.int64)[skip:]
    missing = np.array([number is None for number in numbers], np.bool_)[skip:]
    column = number_column(given, pa.int64(), missing)
    assert column.to_pylist() == numbers[skip:]
    column.validate(full=True)
    # Every other number lies apart from the next one in memory.
    assert number_column(given[::2], pa.int64()).to_pylist() == given[::2].tolist()


@pytest.mark.parametrize("text", ["", "orders", "日本語"])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_text_is_repeated(text: str, count: int) -> None:
    column = repeated_text(text, count)
    assert column.to_pylist() == [text] * count
    column.validate(full=True)


def test_a_column_without_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        binary_parts(pa.array([1, 2]))
