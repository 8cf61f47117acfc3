"""Stored entries to spans: where the key, the value and the rest of each message lie in the bytes.

The payloads of many entries are joined and taken apart by columns, a few passes over the bytes instead of a
few calls per message. A message starts with its header's size in four bytes, which are three zeros and one
more for any usual header, and then one of three tags: that pattern finds the candidates, and the sizes they
declare prove which of them are real. Knows the batch form of the wire and nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from anabranch.errors import CorruptDataError, UnsupportedFeatureError
from anabranch.protocol.compression import decompress
from anabranch.protocol.entries import checked_metadata
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import encode_varint
from anabranch.spark.columns import Bytes, Flags, Numbers

# Fields of the header of a message inside a batch, as tags on the wire.
_PROPERTIES, _KEY, _ORDERING_KEY = 0x0A, 0x12, 0x3A
_PAYLOAD_SIZE, _COMPACTED_OUT, _EVENT_TIME, _ENCODED, _SEQUENCE, _NULL_VALUE, _NULL_KEY = (
    0x18,
    0x20,
    0x28,
    0x30,
    0x40,
    0x48,
    0x50,
)
_FIRST_TAGS = (_KEY, _PAYLOAD_SIZE, _PROPERTIES)

_PAD = bytes(32)
"""Behind the joined payloads, so that a look ahead of a few bytes needs no check."""

_LARGE_MESSAGE_BYTES = 1536
"""Above this average, looking at every byte costs more than a call per message."""

_PIECE_BYTES = 128 * 1024

_pack_size = Struct(">I").pack
_read_size = Struct(">I").unpack_from


class Payload(NamedTuple):
    """The payload of one entry in the form of a batch, also when the entry holds a single message."""

    data: bytes | memoryview
    count: int  # type: ignore[assignment]
    publish_time_ms: int


def open_entry(entry: bytes, limit: int) -> Payload:
    """Check and unpack an entry; `limit` bounds its uncompressed bytes.

    Fails as `protocol.batches.decode_columns` does.
    """
    metadata, end = checked_metadata(entry)
    if metadata.encryption_keys:
        raise UnsupportedFeatureError("the entry is encrypted, which the Spark source cannot read")
    if metadata.num_chunks_from_msg > 1:
        raise UnsupportedFeatureError(
            "the entry is a chunk of a larger message, which the Spark source cannot read"
        )
    data: bytes | memoryview = memoryview(entry)[end:]
    if metadata.compression:
        data = decompress(metadata.compression, bytes(data), metadata.uncompressed_size, limit)
    if metadata.HasField("num_messages_in_batch"):
        return Payload(data, metadata.num_messages_in_batch, metadata.publish_time)
    return Payload(_as_batch(metadata, bytes(data)), 1, metadata.publish_time)


def _as_batch(metadata: pb.MessageMetadata, value: bytes) -> bytes:
    header = pb.SingleMessageMetadata(payload_size=len(value), sequence_id=metadata.sequence_id)
    header.properties.extend(metadata.properties)
    if metadata.HasField("partition_key") and not metadata.null_partition_key:
        key: str | bytes = metadata.partition_key
        if isinstance(key, bytes):
            # A peer's text that is not UTF-8 can be parsed but not set.
            header.MergeFromString(bytes((_KEY,)) + encode_varint(len(key)) + key)
        else:
            header.partition_key = key
        header.partition_key_b64_encoded = metadata.partition_key_b64_encoded
    if metadata.event_time:
        header.event_time = metadata.event_time
    if metadata.null_value:
        header.null_value = True
    packed = header.SerializeToString()
    return _pack_size(len(packed)) + packed + value


@dataclass(slots=True)
class Spans:
    """One row per message over the joined payloads; ends are not included."""

    raw: bytes
    data: Bytes
    """The same bytes through numpy, with a pad behind them."""
    header_starts: Numbers
    header_ends: Numbers
    """A value starts where its header ends."""
    value_ends: Numbers
    key_starts: Numbers
    key_ends: Numbers
    no_key: Flags
    encoded_key: Flags
    """The key is binary and stands here as Base64."""
    no_value: Flags
    event_times_ms: Numbers
    """0 where the message has none."""
    compacted: Flags
    """Taken out by compaction; the message keeps its index and nothing else."""
    properties: Flags
    sound: Flags
    """The header ends where it says, and declares a payload."""


def find_spans(payloads: Sequence[Payload]) -> Spans:
    """Take joined payloads apart; raises CorruptDataError when they are not what their counts say."""
    raw = b"".join([*(payload.data for payload in payloads), _PAD])
    data = np.frombuffer(raw, np.uint8)
    total = len(raw) - len(_PAD)
    counts = np.array([payload.count for payload in payloads], np.int64)
    bases = np.zeros(len(payloads), np.int64)
    np.cumsum([len(payload.data) for payload in payloads[:-1]], out=bases[1:])
    count = int(counts.sum())
    if count and total / count <= _LARGE_MESSAGE_BYTES:
        guessed = _spans_at(raw, data, _candidates(data, total))
        found = guessed if _is_chain(guessed, count, total) else _follow(guessed, count, total)
        if found is not None and _fits(found, bases, counts):
            return found
    spans = _spans_at(raw, data, _walk(raw, bases.tolist(), counts.tolist(), total))
    if not _is_chain(spans, count, total):
        raise CorruptDataError("the messages of a batch do not add up to its payload")
    return spans


def _candidates(data: Bytes, total: int) -> Numbers:
    """Where three zero bytes, any byte and one of the first tags stand."""
    found = []
    # Piece by piece, so that what is computed for one stays in the processor's cache.
    for start in range(0, total, _PIECE_BYTES):
        count = min(_PIECE_BYTES, total - start)
        piece = data[start : start + count + 2]
        zeros = piece[:count] | piece[1 : count + 1]
        zeros |= piece[2:]
        found.append(np.flatnonzero(zeros == 0) + start)
    starts = np.concatenate(found)
    tags = data[starts + 4]
    fitting = tags == _FIRST_TAGS[0]
    if not fitting.all():
        for tag in _FIRST_TAGS[1:]:
            fitting |= tags == tag
        starts = starts[fitting]
    return starts


def _is_chain(spans: Spans, count: int, total: int) -> bool:
    starts, ends = spans.header_starts - 4, spans.value_ends
    if len(starts) != count or not bool(spans.sound.all()):
        return False
    if count == 0:
        return total == 0
    return bool(starts[0] == 0 and ends[-1] == total and np.array_equal(starts[1:], ends[:-1]))


def _follow(spans: Spans, count: int, total: int) -> Spans | None:
    """The real messages among candidates of which some are bytes of values; None when the chain breaks."""
    starts = spans.header_starts - 4
    if len(starts) < count:
        return None
    after = np.searchsorted(starts, spans.value_ends)
    known = np.append(starts, total)
    after[(known[after] != spans.value_ends) | ~spans.sound] = -1
    steps: list[int] = after.tolist()
    rows = []
    at = 0 if starts[0] == 0 else -1
    for _ in range(count):
        if at < 0 or at == len(starts):
            return None
        rows.append(at)
        at = steps[at]
    return _rows(spans, np.array(rows, np.int64)) if at == len(starts) else None


def _fits(spans: Spans, bases: Numbers, counts: Numbers) -> bool:
    """Whether each payload starts at the message where the counts before it end."""
    filled = counts > 0
    firsts = (np.cumsum(counts) - counts)[filled]
    return bool(np.array_equal(spans.header_starts[firsts] - 4, bases[filled]))


def _walk(raw: bytes, bases: list[int], counts: list[int], total: int) -> Numbers:
    """Starts of all messages, header by header; right for every form, one call per message."""
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


def _rows(spans: Spans, rows: Numbers | Flags) -> Spans:
    picked = {name: getattr(spans, name)[rows] for name in Spans.__slots__ if name not in ("raw", "data")}
    return Spans(raw=spans.raw, data=spans.data, **picked)


def _spans_at(raw: bytes, data: Bytes, starts: Numbers) -> Spans:
    """Read the headers behind the four size bytes at `starts`, one field of all of them at a time."""
    count, last = len(starts), len(raw) - len(_PAD)
    size = data[starts + 3].astype(np.int64)
    if (data[starts] | data[starts + 1] | data[starts + 2]).any():
        size |= data[starts].astype(np.int64) << 24
        size |= data[starts + 1].astype(np.int64) << 16
        size |= data[starts + 2].astype(np.int64) << 8
    begins = starts + 4
    ends = begins + size
    fields = _HeaderFields(data, begins, ends, ends <= last)
    fields.read()
    value_ends = ends + fields.payload_size
    sound = fields.sound & (fields.payload_size >= 0) & (value_ends <= last)
    return Spans(
        raw=raw,
        data=data,
        header_starts=begins,
        header_ends=ends,
        value_ends=value_ends,
        key_starts=fields.key_starts,
        key_ends=fields.key_ends,
        no_key=fields.no_key,
        encoded_key=fields.flag(_ENCODED, count),
        no_value=fields.flag(_NULL_VALUE, count),
        event_times_ms=fields.event_times,
        compacted=fields.flag(_COMPACTED_OUT, count),
        properties=fields.properties,
        sound=sound,
    )


_ALL = slice(None)


class _HeaderFields:
    """The fields of many headers, read in step: each has a cursor, each round reads one field of each.

    Cursors never leave a header that ends inside the payloads, and the pad takes the few bytes that a number
    may run past the end.
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
        self.properties = np.zeros(count, np.bool_)

    def flag(self, tag: int, count: int) -> Flags:
        return self._flags.get(tag, np.zeros(count, np.bool_))

    def read(self) -> None:
        # All rows at once are a slice, which spares a look-up per row.
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
        # A header that says "null key" and still carries one has none.
        if _NULL_KEY in self._flags:
            self.no_key |= self._flags[_NULL_KEY]

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
        if tag in (_PROPERTIES, _KEY, _ORDERING_KEY):
            # No more than the whole payload, so that a wrong length cannot overflow.
            behind = after + np.minimum(number, len(self._data))
            if tag == _KEY:
                self.key_starts[rows] = after
                self.key_ends[rows] = behind
                self.no_key[rows] = False
            elif tag == _PROPERTIES:
                self.properties[rows] = True
            after = behind
        elif tag == _PAYLOAD_SIZE:
            self.payload_size[rows] = np.where(number < 2**31, number, -1)
        elif tag == _EVENT_TIME:
            self.event_times[rows] = number
        elif tag in (_COMPACTED_OUT, _ENCODED, _NULL_VALUE, _NULL_KEY):
            self._flags.setdefault(tag, np.zeros(len(self._cursor), np.bool_))[rows] = number != 0
        elif tag != _SEQUENCE:
            # Not a field of this header, so these are bytes of a value.
            after = self._ends[rows] + 1
        self._cursor[rows] = np.minimum(after, self._ends[rows] + 1)

    def _varint(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """Numbers that start at `at`, and where they end; only the low 63 bits are kept."""
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
