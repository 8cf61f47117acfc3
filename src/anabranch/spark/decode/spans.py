"""Finds the messages in opened entries: the offsets of each key, value and header in the joined bytes.

The payloads of many entries are read by columns, with a few passes over the bytes instead of a few calls per
message. A batch has no index: the start of a message follows only from the sizes of those before it, which
would need a loop over messages. So this module guesses. A message starts with the size of its header in four
bytes, usually three zeros and one other byte, followed by one of three tags. This pattern finds candidates,
some of which lie inside values. The sizes that the candidates declare then prove which ones form a chain from
the first byte to the last, and only a complete chain is accepted. If there is none, a slow loop reads the
messages one by one. It knows the batch format of the wire and nothing about Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import Struct
from struct import error as struct_error

import numpy as np
from google.protobuf.message import DecodeError

from anabranch.errors import CorruptDataError
from anabranch.protocol.claims import MESSAGE_BYTES_MIN
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.spark.columns import Bytes, Flags, Numbers
from anabranch.spark.decode.entries import Payload
from anabranch.spark.decode.message_headers import (
    COMPACTED_OUT,
    ENCODED,
    KEY,
    NULL_VALUE,
    PAYLOAD_SIZE,
    PROPERTIES,
    HeaderFields,
)
from anabranch.spark.decode.usual_headers import REACH_BYTES, UsualHeaders, last_numbers, read_usual
from anabranch.speedups import find_messages

_IS_FIRST_TAG = np.zeros(256, np.bool_)
_IS_FIRST_TAG[[KEY, PAYLOAD_SIZE, PROPERTIES]] = True

_PAD = bytes(REACH_BYTES)
"""Appended to the joined payloads, so that reading a few bytes ahead needs no check."""

_LARGE_MESSAGE_BYTES = 1536
"""Above this average size, reading every byte costs more than a call per message."""

_ALL = slice(None)

_read_size = Struct(">I").unpack_from


@dataclass(slots=True)
class Spans:
    """Offsets in the joined payloads, one row per message; an end is the offset after the last byte."""

    raw: bytes
    data: Bytes
    """The same bytes as a numpy array."""
    header_starts: Numbers
    header_ends: Numbers
    """The value starts here."""
    value_ends: Numbers
    key_starts: Numbers
    key_ends: Numbers
    no_key: Flags
    encoded_key: Flags
    """The key is binary; the bytes are its Base64 text."""
    no_value: Flags
    event_times_ms: Numbers
    """0 for a message without an event time."""
    sequences: Numbers | None
    """-1 for a message without a sequence id; None if every header ends with one, which is read on demand."""
    compacted: Flags
    """Compaction removed the message; only its index is left."""
    properties: Flags

    def sequence_ids(self) -> Numbers:
        """Return the sequence ids, which few queries ask for; -1 for a message without one."""
        return last_numbers(self.data, self.header_ends) if self.sequences is None else self.sequences


def find_spans(payloads: Sequence[Payload]) -> Spans:
    """Return the spans of all messages; raises CorruptDataError if the payloads contradict their counts."""
    raw = b"".join([*(payload.data for payload in payloads), _PAD])
    data = np.frombuffer(raw, np.uint8)
    total = len(raw) - len(_PAD)
    counts = np.array([payload.count for payload in payloads], np.int64)
    bases = np.zeros(len(payloads), np.int64)
    np.cumsum([len(payload.data) for payload in payloads[:-1]], out=bases[1:])
    count = int(counts.sum())
    if (found := _read_compiled(raw, data, counts, bases, total)) is not None:
        return found
    if count and total / count <= _LARGE_MESSAGE_BYTES:
        found = _search(raw, data, count, total)
        if found is not None and _fits(found, bases, counts):
            return found
    spans, sound = _spans_at(raw, data, _walk(raw, bases.tolist(), counts.tolist(), total))
    if follow(spans.header_starts - 4, np.where(sound, spans.value_ends, -1), count, total) is None:
        raise CorruptDataError("the messages of a batch do not add up to its payload")
    return spans


def _read_compiled(raw: bytes, data: Bytes, counts: Numbers, bases: Numbers, total: int) -> Spans | None:
    """Return the messages, or None if the compiled reader is missing or a header has an unusual shape."""
    count = int(counts.sum())
    if find_messages is None or count * MESSAGE_BYTES_MIN > total:
        return None
    columns = np.empty((6, count), np.int64)
    if not find_messages(raw, counts.tolist(), [*bases[1:].tolist(), total], columns):
        return None
    starts, header_ends, key_starts, key_ends, value_ends, event_times = columns
    usual = UsualHeaders(header_ends, value_ends, key_starts, key_ends, key_starts == starts, event_times)
    return _usual_spans(raw, data, starts, usual)


def _search(raw: bytes, data: Bytes, count: int, total: int) -> Spans | None:
    """Return the messages, or None if not all of them match the pattern of candidates."""
    starts = _candidates(data, total)
    usual = read_usual(data, starts, total)
    rows = follow(starts, usual.value_ends, count, total)
    if rows is not None:
        return _rows(_usual_spans(raw, data, starts + 4, usual), rows)
    spans, sound = _spans_at(raw, data, starts)
    rows = follow(starts, np.where(sound, spans.value_ends, -1), count, total)
    return None if rows is None else _rows(spans, rows)


def _candidates(data: Bytes, total: int) -> Numbers:
    """Return the offsets of three zero bytes, any byte and one of the first tags."""
    # Three zero bytes in a row always contain a zero pair at an even offset, and there are only half as many
    # of those to look at.
    pairs = np.frombuffer(data.data, "<u2", (total + 1) // 2)
    even = np.flatnonzero(pairs == 0) * 2
    near = np.empty((len(even), 2), np.int64)
    near[:, 0] = even - 1
    near[:, 1] = even
    # For offset 0, numpy takes the last byte of the padding as the byte before, which must not count.
    zero = np.empty((len(even), 2), np.bool_)
    zero[:, 0] = (data[near[:, 0]] == 0) & (even > 0)
    zero[:, 1] = data[even + 2] == 0
    starts: Numbers = near[zero]
    return starts[_IS_FIRST_TAG[data[starts + 4]]]


def follow(starts: Numbers, ends: Numbers, count: int, total: int) -> Numbers | slice | None:
    """Return the rows that lead from offset 0 to `total`, each starting where the one before ends.

    Some candidates lie inside values; the others must be `count` messages, or the result is None. A row with
    a negative end is not a message. Consecutive rows are taken together, so that only the gaps between them
    cost a step of the loop.
    """
    rows = len(starts)
    if rows < count or rows == 0 or starts[0] != 0:
        return _ALL if rows == count == total == 0 else None
    lasts = np.flatnonzero(ends[:-1] != starts[1:])
    if len(lasts) == 0 and rows == count and ends[-1] == total:
        return _ALL
    lasts = np.append(lasts, rows - 1)
    nexts = np.searchsorted(starts, ends[lasts])
    nexts[np.append(starts, total)[nexts] != ends[lasts]] = -1
    next_run = np.searchsorted(lasts, nexts).tolist()
    next_row = nexts.tolist()
    taken = [0]
    run = 0
    while (row := next_row[run]) != rows:
        if row < 0:
            return None
        run = next_run[run]
        taken.append(run)
    marks = np.zeros(rows + 1, np.int8)
    marks[np.append(0, nexts[taken[:-1]])] = 1
    marks[lasts[taken] + 1] = -1
    found = np.flatnonzero(np.cumsum(marks[:-1], dtype=np.int8))
    return found if len(found) == count else None


def _fits(spans: Spans, bases: Numbers, counts: Numbers) -> bool:
    """Whether each payload starts at the message that the counts before it predict."""
    filled = counts > 0
    firsts = (np.cumsum(counts) - counts)[filled]
    return bool(np.array_equal(spans.header_starts[firsts] - 4, bases[filled]))


def _walk(raw: bytes, bases: list[int], counts: list[int], total: int) -> Numbers:
    """Return the start of each message by reading header after header: slow, but correct for every form."""
    starts = []
    read = pb.SingleMessageMetadata.FromString
    try:
        for base, count, end in zip(bases, counts, [*bases[1:], total], strict=True):
            position = base
            for _ in range(count):
                starts.append(position)
                after = position + 4 + _read_size(raw, position)[0]
                if after > end:
                    raise CorruptDataError("a message of a batch ends inside its header")
                position = after + read(raw[position + 4 : after]).payload_size
            if position != end:
                raise CorruptDataError("the messages of a batch do not add up to its payload")
    except (DecodeError, struct_error) as error:
        raise CorruptDataError(f"a batch cannot be read: {error}") from error
    return np.array(starts, np.int64)


def _rows(spans: Spans, rows: Numbers | slice) -> Spans:
    if rows is _ALL:
        return spans
    picked = {
        name: column[rows]
        for name in Spans.__slots__
        if name not in ("raw", "data") and (column := getattr(spans, name)) is not None
    }
    return replace(spans, **picked)


def _usual_spans(raw: bytes, data: Bytes, header_starts: Numbers, usual: UsualHeaders) -> Spans:
    none = np.zeros(len(header_starts), np.bool_)
    return Spans(
        raw=raw,
        data=data,
        header_starts=header_starts,
        header_ends=usual.header_ends,
        value_ends=usual.value_ends,
        key_starts=usual.key_starts,
        key_ends=usual.key_ends,
        no_key=usual.no_key,
        encoded_key=none,
        no_value=none,
        event_times_ms=usual.event_times,
        sequences=None,
        compacted=none,
        properties=none,
    )


def _spans_at(raw: bytes, data: Bytes, starts: Numbers) -> tuple[Spans, Flags]:
    """Read the headers that follow the four size bytes at `starts`.

    The flags tell which headers end at their declared size and declare a payload within the bytes.
    """
    count, last = len(starts), len(raw) - len(_PAD)
    size = data[starts + 3].astype(np.int64)
    if (data[starts] | data[starts + 1] | data[starts + 2]).any():
        size |= data[starts].astype(np.int64) << 24
        size |= data[starts + 1].astype(np.int64) << 16
        size |= data[starts + 2].astype(np.int64) << 8
    begins = starts + 4
    ends = begins + size
    fields = HeaderFields(data, begins, ends, ends <= last)
    fields.read()
    value_ends = ends + fields.payload_size
    sound = fields.sound & (fields.payload_size >= 0) & (value_ends <= last)
    spans = Spans(
        raw=raw,
        data=data,
        header_starts=begins,
        header_ends=ends,
        value_ends=value_ends,
        key_starts=fields.key_starts,
        key_ends=fields.key_ends,
        no_key=fields.no_key,
        encoded_key=fields.flag(ENCODED, count),
        no_value=fields.flag(NULL_VALUE, count),
        event_times_ms=fields.event_times,
        sequences=fields.sequences,
        compacted=fields.flag(COMPACTED_OUT, count),
        properties=fields.properties,
    )
    return spans, sound
