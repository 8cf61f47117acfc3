"""Encodes columns as messages, a whole Arrow batch at once: the reverse of `decode`.

Rows are sorted by segment and bucket and joined by Arrow, so that the bytes of an entry are a slice of one
buffer. The client sends the entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anabranch.client.bulk.encoded_rows import EncodedPart
from anabranch.client.decide.producing.sample_keys import sample_index
from anabranch.errors import MessageTooBigError
from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout
from anabranch.spark.columns import Numbers
from anabranch.spark.sink.message_columns import MessageColumns
from anabranch.spark.topics import OutgoingRows

_COMPARED_MAX = 8
"""With at most this many borders, comparing all rows with each border is faster than a binary search."""


class RowEncoder:
    """The rows of one Arrow batch; the client asks for them when it knows the layout."""

    def __init__(
        self, rows: OutgoingRows, entry_bytes: int, rotation: int = 0, *, numbered: bool = True
    ) -> None:
        """Messages that are not `numbered` get their sequence ids when their entry is published."""
        self._rows = rows
        self._numbered = numbered
        self._entry_bytes = entry_bytes
        self._rotation = rotation

    @property
    def row_count(self) -> int:
        return len(self._rows.values)

    def encode(self, layout: Layout, first_sequence_id: int, bytes_max: int) -> Sequence[EncodedPart]:
        """Return all rows as parts of one bucket each; see `anabranch.client.bulk.encoded_rows`."""
        # One stable sort groups the rows by window (consecutive rows that fit into one entry even if all are
        # of one bucket), then by bucket. Rows of a key are in one bucket, so they keep their order.
        count = self.row_count
        if count == 0:
            return []
        buckets = _Buckets(layout, self._rotation)
        bucket_of_row, slots = buckets.of_rows(self._rows, count)
        messages = MessageColumns(self._rows)
        numbers = first_sequence_id if self._numbered else None
        windows = _windows(messages.sizes(numbers), self._entry_bytes, bytes_max)
        group = windows * len(buckets) + bucket_of_row
        # Numpy sorts 16-bit numbers by radix, which is several times faster.
        small = int(windows[-1] + 1) * len(buckets) < 2**15
        order: Numbers = np.argsort(group.astype(np.int16) if small else group, kind="stable")
        data, starts = messages.joined(order, numbers)
        ends = np.append(np.flatnonzero(np.diff(group[order])) + 1, count).tolist()
        parts = []
        begin = 0
        for end in ends:
            of_part = order[begin:end]
            window, bucket = divmod(int(group[of_part[0]]), len(buckets))
            of_slots = slots[of_part]
            highest = first_sequence_id + int(of_part[-1])
            part = EncodedPart(
                segment=buckets.segments[bucket],
                messages=data[starts[begin] : starts[end]].tobytes(),
                message_count=end - begin,
                sequence_id=highest,
                first_key=messages.key(int(of_part[0])),
                hash_range=(int(of_slots.min()), int(of_slots.max())),
                sample_key=messages.key(int(of_part[sample_index(highest, end - begin)])),
            )
            parts.append((window, part))
            begin = end
        # Within a window, parts are sent in the order of their highest sequence ids.
        parts.sort(key=lambda item: (item[0], item[1].sequence_id))
        return [part for _, part in parts]


class _Buckets:
    """The buckets of all active segments, numbered."""

    def __init__(self, layout: Layout, rotation: int) -> None:
        # If all segments are classic, they are the partitions of a classic topic; see `model.layout`.
        self._by_modulo = all(segment.is_classic for segment in layout.active)
        self._by_low_half = layout.by_low_half
        active = sorted(layout.active, key=lambda s: s.id) if self._by_modulo else layout.active
        self._starts = np.array([segment.range.start for segment in active])
        self._splits = [segment.bucket_splits for segment in active]
        self._first_bucket = np.cumsum([0, *(segment.bucket_count for segment in active)])
        self.segments = [segment.id for segment in active for _ in range(segment.bucket_count)]
        first_slots = [bucket.start for splits in self._splits for bucket in bucket_ranges(splits)]
        self._keyless = rotation % len(self.segments)
        self._keyless_slot = first_slots[self._keyless]

    def __len__(self) -> int:
        return len(self.segments)

    def of_rows(self, rows: OutgoingRows, count: int) -> tuple[Numbers, Numbers]:
        """Return the bucket number and bucket hash of each row; rows without a key share one bucket."""
        if rows.keys is None or rows.hashes is None:
            return np.full(count, self._keyless), np.full(count, self._keyless_slot)
        hashes = rows.hashes.astype(np.int64)
        slots = hashes & 0xFFFF
        if self._by_modulo:
            owners = (hashes & 0x7FFFFFFF) % len(self._starts)
        else:
            places = slots if self._by_low_half else hashes >> 16
            owners = _interval(places, self._starts[1:])
        buckets: Numbers = self._first_bucket[owners]
        for owner, splits in enumerate(self._splits):
            if splits:
                mine = owners == owner if len(self._splits) > 1 else slice(None)
                buckets[mine] += _interval(slots[mine], splits)
        if rows.keys.null_count:
            without = np.asarray(rows.keys.is_null())
            buckets[without] = self._keyless
            slots[without] = self._keyless_slot
        return buckets, slots


def _interval(numbers: Numbers, starts: Sequence[int] | Numbers) -> Numbers:
    """Return, for each number, how many of the ascending starts are at most that number."""
    if len(starts) > _COMPARED_MAX:
        found: Numbers = np.searchsorted(np.asarray(starts), numbers, side="right")
        return found
    counts = np.zeros(len(numbers), np.int64)
    for start in starts:
        counts += numbers >= start
    return counts


def _windows(sizes: Numbers, entry_bytes: int, bytes_max: int) -> Numbers:
    """Return the window of each row; a window fits into one entry even if all of it is of one bucket."""
    largest = int(sizes.max())
    if largest > bytes_max:
        raise MessageTooBigError(
            f"a row becomes a message of {largest} bytes, but the broker accepts at most {bytes_max}"
        )
    limit = min(entry_bytes, bytes_max)
    before = np.cumsum(sizes) - sizes
    total = int(before[-1] + sizes[-1])
    if largest * 4 <= limit:
        # Windows of equal size leave no small entry at the end.
        count = -(-total // (limit - largest))
        windows: Numbers = before * count // total
        return windows
    window, used = 0, 0
    found = []
    for size in sizes.tolist():
        if used and used + size > limit:
            window, used = window + 1, 0
        used += size
        found.append(window)
    return np.array(found, np.int64)
