"""Reads the headers of many messages at once: one field of every header per round.

This is the general reader. It handles every field in any order, and costs one pass over the columns per
field; `usual_headers` is faster for the headers that most producers write.
"""

from __future__ import annotations

import numpy as np

from anabranch.spark.columns import Bytes, Flags, Numbers

# Tags of the header of a message inside a batch.
PROPERTIES, KEY, ORDERING_KEY = 0x0A, 0x12, 0x3A
PAYLOAD_SIZE, COMPACTED_OUT, EVENT_TIME, ENCODED = 0x18, 0x20, 0x28, 0x30
SEQUENCE, NULL_VALUE, NULL_KEY = 0x40, 0x48, 0x50

_ALL = slice(None)


class HeaderFields:
    """The fields of many headers. Each header has a cursor; each round reads one field of every header.

    A cursor stays inside its header. A number may extend a few bytes past the end of the last header, so the
    caller pads `data`.
    """

    def __init__(self, data: Bytes, begins: Numbers, ends: Numbers, sound: Flags) -> None:
        count = len(begins)
        self._data = data
        self._ends = ends
        self._cursor = begins.copy()
        self._flags: dict[int, Flags] = {}
        self.sound = sound
        self.payload_size = np.full(count, -1, np.int64)
        self.key_starts = begins.copy()
        self.key_ends = begins.copy()
        self.no_key = np.ones(count, np.bool_)
        self.event_times = np.zeros(count, np.int64)
        self.sequences = np.full(count, -1, np.int64)
        self.properties = np.zeros(count, np.bool_)

    def flag(self, tag: int, count: int) -> Flags:
        return self._flags.get(tag, np.zeros(count, np.bool_))

    def read(self) -> None:
        # A slice means all rows, and saves an indexed lookup per row.
        rows: Numbers | slice = _ALL if self.sound.all() else np.flatnonzero(self.sound)
        while True:
            left = self._ends[rows] - self._cursor[rows]
            if not (left > 0).all():
                numbers = np.arange(len(self._cursor)) if isinstance(rows, slice) else rows
                self.sound[numbers[left < 0]] = False
                rows = numbers[left > 0]
            if len(left) == 0 or (not isinstance(rows, slice) and len(rows) == 0):
                break
            self._read_round(rows)
        # The flag "null key" overrides a key in the same header.
        if NULL_KEY in self._flags:
            self.no_key |= self._flags[NULL_KEY]

    def _read_round(self, rows: Numbers | slice) -> None:
        tags = self._data[self._cursor[rows]]
        first = int(tags[0])
        if (tags == first).all():
            self._read_field(first, rows)
            return
        numbers = np.arange(len(self._cursor)) if isinstance(rows, slice) else rows
        for tag in np.unique(tags).tolist():
            self._read_field(tag, numbers[tags == tag])

    def _read_field(self, tag: int, rows: Numbers | slice) -> None:
        number, after = self._varint(self._cursor[rows] + 1)
        if tag in (PROPERTIES, KEY, ORDERING_KEY):
            # Limited to the size of the payload, so that a wrong length cannot overflow.
            behind = after + np.minimum(number, len(self._data))
            if tag == KEY:
                self.key_starts[rows] = after
                self.key_ends[rows] = behind
                self.no_key[rows] = False
            elif tag == PROPERTIES:
                self.properties[rows] = True
            after = behind
        elif tag == PAYLOAD_SIZE:
            self.payload_size[rows] = np.where(number < 2**31, number, -1)
        elif tag == EVENT_TIME:
            self.event_times[rows] = number
        elif tag == SEQUENCE:
            self.sequences[rows] = number
        elif tag in (COMPACTED_OUT, ENCODED, NULL_VALUE, NULL_KEY):
            self._flags.setdefault(tag, np.zeros(len(self._cursor), np.bool_))[rows] = number != 0
        else:
            # An unknown tag: these bytes are part of a value, not a header.
            after = self._ends[rows] + 1
        self._cursor[rows] = np.minimum(after, self._ends[rows] + 1)

    def _varint(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """Return the numbers that start at `at`, at most 63 bits of each, and the offsets after them."""
        data = self._data
        low = data[at]
        number = low.astype(np.int64)
        after = at + 1
        rows: Numbers | slice = _ALL
        shift = 7
        while True:
            more = low >= 0x80
            if not more.any():
                return number, after
            if not more.all():
                rows = np.flatnonzero(more) if isinstance(rows, slice) else rows[more]
            if shift == 7:
                number[rows] &= 0x7F
            elif shift == 70:
                return number, after
            low = data[after[rows]]
            if shift < 63:
                number[rows] |= (low & 0x7F).astype(np.int64) << shift
            after[rows] += 1
            shift += 7
