"""From stored entries to spans: the offsets of key, value and header of each message in the bytes.

The payloads of many entries are joined and read by columns: a few passes over the bytes instead of a few
calls per message. A message starts with the size of its header in four bytes, usually three zeros and one
other byte, followed by one of three tags. This pattern finds candidates; the sizes that they declare prove
which of them are messages. Knows the batch form of the wire and nothing of Spark.
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
from anabranch.protocol.claims import TIME_MS_MAX, fault_in_count
from anabranch.protocol.compression import decompress
from anabranch.protocol.entries import checked_metadata
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import encode_varint
from anabranch.spark.columns import Bytes, Flags, Numbers
from anabranch.spark.message_headers import (
    COMPACTED_OUT,
    ENCODED,
    KEY,
    NULL_VALUE,
    PAYLOAD_SIZE,
    PROPERTIES,
    HeaderFields,
)

_FIRST_TAGS = (KEY, PAYLOAD_SIZE, PROPERTIES)

_PAD = bytes(32)
"""Follows the joined payloads, so that reading a few bytes ahead needs no check."""

_LARGE_MESSAGE_BYTES = 1536
"""Above this average size, reading every byte costs more than a call per message."""

_PIECE_BYTES = 128 * 1024

_pack_size = Struct(">I").pack
_read_size = Struct(">I").unpack_from


class Payload(NamedTuple):
    """The payload of one entry in the form of a batch, also when the entry holds a single message."""

    data: bytes | memoryview
    count: int  # type: ignore[assignment]
    publish_time_ms: int
    producer: str = ""


def open_entry(entry: bytes, limit: int) -> Payload:
    """Check and unpack an entry; raises the errors of `protocol.batches.decode_columns`."""
    metadata, end = checked_metadata(entry)
    if metadata.encryption_keys:
        raise UnsupportedFeatureError("the entry is encrypted, which the Spark source cannot read")
    if metadata.num_chunks_from_msg > 1:
        raise UnsupportedFeatureError(
            "the entry is a chunk of a larger message, which the Spark source cannot read"
        )
    data: bytes | memoryview = memoryview(entry)[end:]
    fault = fault_in_count(metadata, len(data))
    if metadata.HasField("marker_type"):
        fault = "a marker, which no broker delivers"
    if fault is not None:
        raise CorruptDataError(fault)
    published = min(metadata.publish_time, TIME_MS_MAX)
    if metadata.compression:
        data = decompress(metadata.compression, bytes(data), metadata.uncompressed_size, limit)
    if metadata.HasField("num_messages_in_batch"):
        return Payload(data, metadata.num_messages_in_batch, published, metadata.producer_name)
    return Payload(_as_batch(metadata, bytes(data)), 1, published, metadata.producer_name)


def _as_batch(metadata: pb.MessageMetadata, value: bytes) -> bytes:
    header = pb.SingleMessageMetadata(payload_size=len(value), sequence_id=metadata.sequence_id)
    header.properties.extend(metadata.properties)
    if metadata.HasField("partition_key") and not metadata.null_partition_key:
        key: str | bytes = metadata.partition_key
        if isinstance(key, bytes):
            # Protobuf parses text of a peer that is not UTF-8, but refuses to set it.
            header.MergeFromString(bytes((KEY,)) + encode_varint(len(key)) + key)
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
    """Offsets in the joined payloads, one row per message; an end is the offset behind the last byte."""

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
    sequences: Numbers
    """-1 for a message without a sequence id."""
    compacted: Flags
    """Compaction removed the message; only its index is left."""
    properties: Flags
    sound: Flags
    """The header ends at its declared size and declares a payload."""


def find_spans(payloads: Sequence[Payload]) -> Spans:
    """Return the spans of all messages; raises CorruptDataError when the payloads contradict their counts."""
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
    """Return the offsets of three zero bytes, any byte and one of the first tags."""
    found = []
    # One piece at a time stays in the processor's cache.
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
    """Return the messages among the candidates, some of which lie inside values; None for a broken chain."""
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
    """Whether each payload starts at the message that the counts before it predict."""
    filled = counts > 0
    firsts = (np.cumsum(counts) - counts)[filled]
    return bool(np.array_equal(spans.header_starts[firsts] - 4, bases[filled]))


def _walk(raw: bytes, bases: list[int], counts: list[int], total: int) -> Numbers:
    """Return the start of each message by reading header after header: slow, and right for every form."""
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
    """Read the headers that follow the four size bytes at `starts`."""
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
    return Spans(
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
        sound=sound,
    )
