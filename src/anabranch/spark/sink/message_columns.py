"""Encodes outgoing messages as columns of bytes, joined by Arrow without a Python object per row.

It knows the header of a message in a batch, and must not know segments and buckets.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.spark.columns import Bytes, Flags, Numbers, binary_parts
from anabranch.spark.topics import Headers, OutgoingRows
from anabranch.speedups import join_messages

_HEADER_BYTES_MAX = 40
"""Most bytes of a header, not counting the key and the properties."""

HEADER_BYTES = 24
"""The same for a message without an event time whose sequence id is small or comes from its entry."""

EVENT_TIME_BYTES = 8

JOINED_HEADER_BYTES = 48
"""Room that the compiled function requires for a header, not counting the key."""


class MessageColumns:
    """The values, keys and headers of outgoing messages."""

    def __init__(self, rows: OutgoingRows) -> None:
        values = _binary(rows.values)
        self._no_value = np.asarray(values.is_null()) if values.null_count else None
        self._values = pc.fill_null(values, b"") if values.null_count else values
        self._event_times = rows.event_times_ms
        self._keys = None
        self._no_key: Flags | None = None
        self._encoded: Flags | None = None
        if rows.keys is not None:
            self._set_keys(rows.keys)
        self._headers = None
        if rows.headers is not None and any(rows.headers):
            self._headers = pa.array([_properties(pairs) for pairs in rows.headers], pa.binary())

    def _set_keys(self, keys: Any) -> None:
        if keys.null_count:
            self._no_key = np.asarray(keys.is_null())
        binary = _binary(keys)
        is_string = pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)
        if not is_string and not _is_text(binary):
            # The wire has keys as text. A key that is not UTF-8 is sent as Base64, with a flag that says so.
            raw = binary.to_pylist()
            texts = [key if key is None or _is_utf8(key) else b64encode(key) for key in raw]
            self._encoded = np.array([text is not key for text, key in zip(texts, raw, strict=True)])
            binary = pa.array(texts, pa.binary())
        self._raw_keys = keys
        self._keys = pc.fill_null(binary, b"") if binary.null_count else binary

    def key(self, row: int) -> str | bytes | None:
        found: str | bytes | None = None if self._keys is None else self._raw_keys[row].as_py()
        return found

    def sizes(self, first_sequence_id: int | None) -> Numbers:
        """Return an upper bound of the bytes of each message."""
        last = (first_sequence_id or 0) + len(self._values)
        sizes = _lengths(self._values) + (_HEADER_BYTES_MAX if last >= 2**35 else HEADER_BYTES)
        if self._event_times is not None:
            sizes += EVENT_TIME_BYTES
        for column in (self._keys, self._headers):
            if column is not None:
                sizes += _lengths(column)
        return sizes

    def joined(self, order: Numbers, first_sequence_id: int | None) -> tuple[Bytes, Numbers]:
        """Return the bytes of all messages in this order, and the offsets before and after each message.

        Without a first sequence id, the messages have none; their entry numbers them.
        """
        return self._joined_compiled(order, first_sequence_id) or self._joined(order, first_sequence_id)

    def _joined_compiled(self, order: Numbers, first_sequence_id: int | None) -> tuple[Bytes, Numbers] | None:
        """Return the same from the compiled function, or None if it is missing or a header is unusual."""
        unusual = (self._no_key, self._encoded, self._no_value, self._headers)
        if join_messages is None or any(column is not None for column in unusual):
            return None
        values, keys = binary_parts(self._values), None if self._keys is None else binary_parts(self._keys)
        sizes = [offsets[-1] - offsets[0] for _, offsets in (values, *([] if keys is None else [keys]))]
        messages = np.empty(int(sum(sizes)) + JOINED_HEADER_BYTES * len(order), np.uint8)
        starts = np.empty(len(order) + 1, np.int64)
        times = self._event_times
        if join_messages(order, keys, values, times, first_sequence_id, messages, starts):
            return messages, starts
        return None

    def _joined(self, order: Numbers, first_sequence_id: int | None) -> tuple[Bytes, Numbers]:
        rows = pa.array(order)
        values = self._values.take(rows)
        keys = None if self._keys is None else self._keys.take(rows)
        headers = None if self._headers is None else self._headers.take(rows)
        count = len(order)

        before, behind = _RowFields(count), _RowFields(count)
        before.skip(4)
        if keys is not None:
            present = None if self._no_key is None else ~self._no_key[order]
            before.number(0x12, _lengths(keys), present)
        behind.number(0x18, _lengths(values))
        if self._event_times is not None:
            times = self._event_times[order]
            behind.number(0x28, times, times != 0)
        if self._encoded is not None:
            behind.number(0x30, np.ones(count, np.int64), self._encoded[order])
        if first_sequence_id is not None:
            behind.number(0x40, order + first_sequence_id)
        if self._no_value is not None:
            behind.number(0x48, np.ones(count, np.int64), self._no_value[order])

        sizes = before.lengths + behind.lengths - 4
        for column in (keys, headers):
            if column is not None:
                sizes += _lengths(column)
        before.size(sizes)
        if headers is None:
            pieces = [before.column(), *([] if keys is None else [keys]), behind.column(), values]
        else:
            # Properties have the lowest field number, so they come between the size and the key.
            head: list[Any] = [] if keys is None else [before.column(4), keys]
            pieces = [before.column(0, 4), headers, *head, behind.column(), values]
        return binary_parts(pc.binary_join_element_wise(*pieces, b""))


class _RowFields:
    """A short byte string per row, built field by field for all rows at once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._bytes: list[Any] = []
        self._there: list[Flags | None] = []
        """The rows that have the byte; None means all rows."""
        self.lengths: Numbers = np.zeros(count, np.int64)

    def skip(self, width: int) -> None:
        """Reserve bytes that the caller fills later."""
        for _ in range(width):
            self._put(0, None)

    def number(self, tag: int, numbers: Numbers, present: Flags | None = None) -> None:
        """Add a tag and a number (or the length of the bytes that follow) to the rows that are `present`."""
        there = None if present is None or present.all() else present
        self._put(tag, there)
        left = numbers
        while True:
            left, low = left >> 7, left & 0x7F
            more = left > 0
            if not more.any():
                self._put(low.astype(np.uint8), there)
                return
            self._put((low | (more << 7)).astype(np.uint8), there)
            if not more.all():
                there = more if there is None else more & there

    def _put(self, values: Any, there: Flags | None) -> None:
        self._bytes.append(values)
        self._there.append(there)
        self.lengths += 1 if there is None else there

    def size(self, sizes: Numbers) -> None:
        """Fill the first four bytes with a number, highest byte first."""
        for index, shift in enumerate((24, 16, 8, 0)):
            self._bytes[index] = (sizes >> shift).astype(np.uint8)

    def column(self, begin: int = 0, end: int | None = None) -> Any:
        """Return the strings, or the bytes `begin` to `end` of each, as an Arrow column."""
        values, there = self._bytes[begin:end], self._there[begin:end]
        width = len(values)
        data = np.empty((self._count, width), np.uint8)
        for index, value in enumerate(values):
            data[:, index] = value
        starts: Any = np.arange(0, (self._count + 1) * width, max(width, 1), dtype=np.int32)
        if any(rows is not None for rows in there):
            used = np.ones((self._count, width), np.bool_)
            for index, rows in enumerate(there):
                if rows is not None:
                    used[:, index] = rows
            data = data[used]
            np.cumsum(used.sum(axis=1), out=starts[1:])
        return pa.Array.from_buffers(
            pa.binary(), self._count, [None, pa.py_buffer(starts), pa.py_buffer(np.ascontiguousarray(data))]
        )


def _binary(column: Any) -> Any:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _lengths(column: Any) -> Numbers:
    _, starts = binary_parts(column)
    return np.diff(starts)


def _is_text(column: Any) -> bool:
    data, offsets = binary_parts(column)
    if not (data[offsets[0] : offsets[-1]] & 0x80).any():
        return True
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_utf8(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _properties(pairs: Headers | None) -> bytes:
    if not pairs:
        return b""
    header = pb.SingleMessageMetadata()
    for name, text in pairs:
        header.properties.add(key=name, value=text)
    return header.SerializePartialToString()
