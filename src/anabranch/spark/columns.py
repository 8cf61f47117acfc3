"""Works on whole columns at once: Arrow buffers as numpy arrays, and the key hash of a column.

No function makes a Python object per row, except for very long keys. This module must not know topics or
Spark.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.model.hashing import key_hash
from anabranch.speedups import hash_rows

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_LONG_KEY_BYTES = 64
"""Longer keys are hashed one by one: each further word would cost a pass over the columns for few rows."""

_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)


def binary_parts(column: Any) -> tuple[Bytes, Numbers]:
    """Return the bytes of a binary or string column, and the offsets before and after each row."""
    kind = column.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not (wide or pa.types.is_binary(kind) or pa.types.is_string(kind)):
        raise TypeError(f"a column of type {kind} holds no bytes")
    _, starts, data = column.buffers()
    if starts is None or len(column) == 0:
        return np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int64)
    stored: Any = np.frombuffer(starts, np.int64 if wide else np.int32)
    offsets: Numbers = stored[column.offset : column.offset + len(column) + 1].astype(np.int64)
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return content, offsets


def binary_column(data: Any, starts: Numbers, ends: Numbers, missing: Flags | None) -> Any:
    """Return a binary column of the spans `starts` to `ends` in `data`; spans ascend without overlap.

    Spans and the gaps between them alternate, so together they form one Arrow column over the same bytes
    without a copy. Taking every other row of it then copies just the spans, in one pass of compiled code.
    """
    count = len(starts)
    kind = pa.binary()
    if count == 0:
        return pa.nulls(0, kind)
    borders = np.empty(2 * count, np.int32)
    borders[0::2] = starts
    borders[1::2] = ends
    spans_and_gaps = pa.Array.from_buffers(
        kind, 2 * count - 1, [None, pa.py_buffer(borders), pa.py_buffer(data)]
    )
    rows: Any = np.arange(0, 2 * count, 2, dtype=np.int64)
    return spans_and_gaps.take(number_column(rows, pa.int64(), missing))


def number_column(numbers: Any, kind: Any, missing: Flags | None = None) -> Any:
    """Return a column of these numbers, which have the width of `kind`; `missing` rows are null.

    `pa.array` does the same, but its first call loads pandas, which takes 0.2 s in each worker that Spark
    starts.
    """
    valid = None
    if missing is not None and missing.any():
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [valid, pa.py_buffer(np.ascontiguousarray(numbers))])


def repeated_text(text: str, count: int) -> Any:
    """Return a string column with the same text in all rows, without loading pandas as `pa.scalar` does."""
    content = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(content))
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(content * count)]
    )


def hash_spans(data: Bytes, starts: Numbers, lengths: Numbers) -> Words:
    """Return the raw key hash of each span of bytes."""
    count = len(starts)
    hashes = np.zeros(count, np.uint32)
    if count == 0:
        return hashes
    longest = int(lengths.max())
    if longest > _LONG_KEY_BYTES:
        long_rows = np.flatnonzero(lengths > _LONG_KEY_BYTES)
        short_rows = np.flatnonzero(lengths <= _LONG_KEY_BYTES)
        hashes[short_rows] = hash_spans(data, starts[short_rows], lengths[short_rows])
        view = data.data
        for row in long_rows.tolist():
            start = int(starts[row])
            hashes[row] = key_hash(bytes(view[start : start + int(lengths[row])]))
        return hashes
    # Spans are read in words of four bytes, so the last read may reach three bytes past the end.
    padded = np.zeros(len(data) + 4, np.uint8)
    padded[: len(data)] = data
    words: Words = np.ndarray((len(data) + 1,), "<u4", padded.data, strides=(1,))
    blocks = lengths >> 2
    fewest = int(blocks.min())
    for block in range(longest >> 2):
        if block < fewest:
            hashes = _round(hashes, words[starts + 4 * block])
        else:
            rows = np.flatnonzero(blocks > block)
            hashes[rows] = _round(hashes[rows], words[starts[rows] + 4 * block])
    tails = words[starts + 4 * blocks] & _TAIL_MASKS[lengths & 3]
    # A tail of no bytes mixes to zero and changes nothing.
    hashes ^= _mix(tails)
    return _finish(hashes ^ lengths.astype(np.uint32))


def hash_column(column: Any) -> Words:
    """Return the raw key hash of each row of a binary or string column; 0 for a null row."""
    data, offsets = binary_parts(column)
    hashes = np.empty(len(column), np.uint32)
    if hash_rows is None or not hash_rows(data, offsets, hashes):
        hashes = hash_spans(data, offsets[:-1], np.diff(offsets))
    if column.null_count:
        hashes[np.asarray(column.is_null())] = 0
    return hashes


def _rotate(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _mix(words: Words) -> Words:
    return _rotate(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _round(hashes: Words, words: Words) -> Words:
    return _rotate(hashes ^ _mix(words), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(hashes: Words) -> Words:
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes
