"""Columns to encoded messages, a whole Arrow batch at once: the way back of `entries`.

Rows are sorted by segment and bucket, their headers made as columns of bytes, and everything joined by Arrow,
so that the bytes of an entry are a slice of one buffer. Sending them is the client's business.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.client.produce.encoded_rows import EncodedPart
from anabranch.errors import MessageTooBigError
from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.spark.columns import Bytes, Flags, Numbers, binary_parts
from anabranch.spark.topics import OutgoingRows

_HEADER_BYTES_MAX = 40
"""Most bytes of a header besides key and properties."""


class RowEncoder:
    """The rows of one Arrow batch, encoded when the client says where they go."""

    def __init__(self, rows: OutgoingRows, entry_bytes: int, turn: int = 0) -> None:
        self._rows = rows
        self._entry_bytes = entry_bytes
        self._turn = turn

    @property
    def row_count(self) -> int:
        return len(self._rows.values)

    def encode(self, layout: Layout, first_sequence_id: int, bytes_max: int) -> Sequence[EncodedPart]:
        """All rows as parts of one bucket each; see `anabranch.client.bulk`."""
        count = self.row_count
        if count == 0:
            return []
        lanes = _Lanes(layout, self._turn)
        lane_of_row, slots = lanes.of_rows(self._rows, count)
        messages = _Messages(self._rows)
        windows = _windows(messages.sizes(first_sequence_id), self._entry_bytes, bytes_max)
        group = windows * len(lanes) + lane_of_row
        # Small numbers are sorted by radix, which is several times faster.
        small = int(windows[-1] + 1) * len(lanes) < 2**15
        order: Numbers = np.argsort(group.astype(np.int16) if small else group, kind="stable")
        data, starts = messages.joined(order, first_sequence_id)
        ends = np.append(np.flatnonzero(np.diff(group[order])) + 1, count).tolist()
        parts = []
        begin = 0
        for end in ends:
            of_part = order[begin:end]
            window, lane = divmod(int(group[of_part[0]]), len(lanes))
            of_slots = slots[of_part]
            part = EncodedPart(
                segment=lanes.segments[lane],
                messages=data[starts[begin] : starts[end]].tobytes(),
                message_count=end - begin,
                sequence_id=first_sequence_id + int(of_part[-1]),
                first_key=messages.key(int(of_part[0])),
                hash_range=(int(of_slots.min()), int(of_slots.max())),
            )
            parts.append((window, part))
            begin = end
        # Inside a window the buckets of a segment leave in the order of their highest sequence ids.
        parts.sort(key=lambda item: (item[0], item[1].sequence_id))
        return [part for _, part in parts]


class _Lanes:
    """The buckets of all active segments, numbered."""

    def __init__(self, layout: Layout, turn: int) -> None:
        # A layout made only of classic topics stands for their partitions, see `model.routing`.
        self._by_modulo = all(segment.is_classic for segment in layout.active)
        active = sorted(layout.active, key=lambda s: s.id) if self._by_modulo else layout.active
        self._starts = np.array([segment.range.start for segment in active])
        self._splits = [segment.bucket_splits for segment in active]
        self._first_lane = np.cumsum([0, *(segment.bucket_count for segment in active)])
        self.segments = [segment.id for segment in active for _ in range(segment.bucket_count)]
        first_slots = [bucket.start for splits in self._splits for bucket in bucket_ranges(splits)]
        self._keyless = turn % len(self.segments)
        self._keyless_slot = first_slots[self._keyless]

    def __len__(self) -> int:
        return len(self.segments)

    def of_rows(self, rows: OutgoingRows, count: int) -> tuple[Numbers, Numbers]:
        """The lane and the bucket hash of each row; rows without a key share one lane."""
        if rows.keys is None or rows.hashes is None:
            return np.full(count, self._keyless), np.full(count, self._keyless_slot)
        hashes = rows.hashes.astype(np.int64)
        if self._by_modulo:
            owners = (hashes & 0x7FFFFFFF) % len(self._starts)
        else:
            owners = np.searchsorted(self._starts, hashes >> 16, side="right") - 1
        slots = hashes & 0xFFFF
        lanes: Numbers = self._first_lane[owners]
        for owner, splits in enumerate(self._splits):
            if splits:
                mine = owners == owner if len(self._splits) > 1 else slice(None)
                lanes[mine] += np.searchsorted(np.array(splits), slots[mine], side="right")
        if rows.keys.null_count:
            without = np.asarray(rows.keys.is_null())
            lanes[without] = self._keyless
            slots[without] = self._keyless_slot
        return lanes, slots


def _windows(sizes: Numbers, entry_bytes: int, bytes_max: int) -> Numbers:
    """Number runs of rows, in their order, such that a run fits one entry whatever buckets it falls into."""
    largest = int(sizes.max())
    if largest > bytes_max:
        raise MessageTooBigError(
            f"a row makes a message of {largest} bytes; the broker takes up to {bytes_max}"
        )
    limit = min(entry_bytes, bytes_max)
    before = np.cumsum(sizes) - sizes
    total = int(before[-1] + sizes[-1])
    if largest * 4 <= limit:
        # Equal runs, so that no small entry is left at the end.
        runs = -(-total // (limit - largest))
        windows: Numbers = before * runs // total
        return windows
    window, used = 0, 0
    found = []
    for size in sizes.tolist():
        if used and used + size > limit:
            window, used = window + 1, 0
        used += size
        found.append(window)
    return np.array(found, np.int64)


class _Messages:
    """The messages as columns of bytes."""

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
            # A key that is not UTF-8 travels as Base64, marked as such.
            raw = binary.to_pylist()
            texts = [key if key is None or _is_utf8(key) else b64encode(key) for key in raw]
            self._encoded = np.array([text is not key for text, key in zip(texts, raw, strict=True)])
            binary = pa.array(texts, pa.binary())
        self._raw_keys = keys
        self._keys = pc.fill_null(binary, b"") if binary.null_count else binary

    def key(self, row: int) -> str | bytes | None:
        found: str | bytes | None = None if self._keys is None else self._raw_keys[row].as_py()
        return found

    def sizes(self, first_sequence_id: int) -> Numbers:
        """About how many bytes each message takes, never too few."""
        last = first_sequence_id + len(self._values)
        sizes = _lengths(self._values) + (_HEADER_BYTES_MAX if last >= 2**35 else 24)
        if self._event_times is not None:
            sizes += 8
        for column in (self._keys, self._headers):
            if column is not None:
                sizes += _lengths(column)
        return sizes

    def joined(self, order: Numbers, first_sequence_id: int) -> tuple[Bytes, Numbers]:
        """The bytes of all messages in the given order, and where each starts; one more ends the last."""
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
            # Properties have the lowest field number and stand between the size and the key.
            head: list[Any] = [] if keys is None else [before.column(4), keys]
            pieces = [before.column(0, 4), headers, *head, behind.column(), values]
        return binary_parts(pc.binary_join_element_wise(*pieces, b""))


class _RowFields:
    """Short byte strings, one per row, built field by field for all rows."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._bytes: list[Any] = []
        self._there: list[Flags | None] = []
        """Which rows have the byte; None when all do."""
        self.lengths: Numbers = np.zeros(count, np.int64)

    def skip(self, width: int) -> None:
        """Leave room to be filled later."""
        for _ in range(width):
            self._put(0, None)

    def number(self, tag: int, numbers: Numbers, present: Flags | None = None) -> None:
        """A field of a number, or the head of one of bytes; left out where `present` says so."""
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
        """The strings, or a part of each that starts and ends at the same field in all rows."""
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


def _properties(pairs: dict[str, str] | None) -> bytes:
    if not pairs:
        return b""
    header = pb.SingleMessageMetadata()
    for name, text in pairs.items():
        header.properties.add(key=name, value=text)
    return header.SerializePartialToString()
