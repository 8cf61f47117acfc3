"""Encodes messages into one entry, as a producer sends it.

Headers of the usual shape are written by hand, because a protobuf object per message would cost more than the
rest of the work. The client's `batcher` chooses the messages of an entry; `entries` decodes an entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from operator import itemgetter
from struct import Struct
from typing import Any, Final

from anabranch.protocol.entry.compression import Compression, packed
from anabranch.protocol.entry.message_fields import key_text, set_fields
from anabranch.protocol.entry.message_sizes import encode_sizes
from anabranch.protocol.frames import build_entry
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import MORE, SHORT, encode_varint

CACHED_KEYS_MAX: Final = 8192
_pack_size = Struct(">I").pack
_BASE64: Final = b"\x30\x01\x18"
"""Between a key in Base64 and the size of the value."""

_HEAD_MAX: Final = 200
"""Bytes of a header up to its sequence id; with the sequence id they still fit one byte."""

_ALIKE: Final = 4
_EACH: Final = 6
"""Parts of a message that `_add_alike` and `_add_each` append."""

_SIZES: Final = tuple(_pack_size(size) for size in range(0x100))

cached_key_headers: dict[str | bytes | None, bytes] = {None: b"\x18"}
"""Header bytes of recent keys, up to the tag of the payload size; a bounded cache."""

_base64_was_used = False
"""Whether this process has written a key in Base64; few do, and the others need not look for such keys."""

_Heads = dict[str | bytes | None, bytes]
_recent_heads: tuple[tuple[int, int], _Heads] = ((0, 0), {})
"""Header bytes of recent keys up to the sequence id, for one size of values and of sequence ids; bounded."""

_Values = Sequence[bytes]
_Keys = Sequence[bytes | str | None]


class MessageBatch:
    """Messages that will be stored as one entry, in the order they were added."""

    __slots__ = (
        "_first",
        "_parts",
        "_pieces",
        "_sizes",
        "_value_size",
        "count",
        "highest_sequence_id",
        "sample_key",
        "size",
    )

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._pieces = 0
        """Parts of each message, the value last, if all messages have headers of one usual shape; else 0."""
        self._value_size = -1
        """The size of all values, if they have one size."""
        self._sizes: bytes | None = None
        """The sizes of the messages that were added encoded; they hold if the batch has no others."""
        self._first: tuple[str | bytes | None, bytes | None] = (None, None)
        self.count = 0
        self.size = 0
        """Bytes of the payload before compression."""
        self.highest_sequence_id = 0
        self.sample_key: bytes | None = None
        """The key of one of the messages, empty if it has none; the broker samples the load of keys with
        it."""

    def add(
        self,
        value: bytes,
        key: bytes | str | None,
        sequence_id: int,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
        ordering_key: bytes | None = None,
        null_value: bool = False,
    ) -> None:
        """Append one message; a bytes key that is not UTF-8 is sent as Base64 and decoded by the reader."""
        if properties or event_time_ms or null_value or ordering_key is not None:
            fields = pb.SingleMessageMetadata(payload_size=len(value), sequence_id=sequence_id)
            set_fields(fields, key, ordering_key, properties, event_time_ms, null_value)
            header = fields.SerializeToString()
            self._use(0)
            self._parts += (_pack_size(len(header)), header, value)
            self._added(4 + len(header) + len(value), 1, sequence_id, (key, ordering_key))
        else:
            size_bytes = self._add_each((value,), (key,), (sequence_id,))
            self._added(size_bytes, 1, sequence_id, (key, None))

    def add_many(self, values: _Values, keys: _Keys, sequence_ids: Sequence[int]) -> None:
        """Append messages given as columns of one length; sequence ids must ascend."""
        if not values:
            return
        high = sequence_ids[0] >> 14
        length = len(values[0])
        if (
            len(values) > 1
            and 0 < high < 0x4000
            and high == sequence_ids[-1] >> 14
            and length < 0x4000
            and len(set(map(len, values))) == 1
        ):
            size_bytes = self._add_alike(values, keys, sequence_ids)
        else:
            size_bytes = self._add_each(values, keys, sequence_ids)
        self._added(size_bytes, len(values), sequence_ids[-1], (keys[0], None))

    def _add_alike(self, values: _Values, keys: _Keys, sequence_ids: Sequence[int]) -> int:
        """Append several values of one size whose sequence ids share their upper bytes; returns their bytes.

        The headers differ only in the key and in two bytes of the sequence id, which halves the work.
        """
        length, count = len(values[0]), len(values)
        self._use(_ALIKE, length)
        tail = SHORT[sequence_ids[0] >> 14]
        heads = _heads_for(length, 2 + len(tail))
        try:
            firsts: Sequence[bytes] = itemgetter(*keys)(heads)
        except KeyError:
            firsts = [heads.get(key) or _head(heads, key, length, 2 + len(tail)) for key in keys]
        # Work on whole columns: a step of the interpreter for each message would double the cost.
        parts: list[Any] = [tail] * (_ALIKE * count)
        parts[::_ALIKE] = firsts
        parts[1::_ALIKE] = [MORE[sequence_id & 0x3FFF] for sequence_id in sequence_ids]
        parts[3::_ALIKE] = values
        self._parts += parts
        return sum(map(len, firsts)) + count * (2 + len(tail) + length)

    def _add_each(self, values: _Values, keys: _Keys, sequence_ids: Sequence[int]) -> int:
        """Append messages with headers of the usual shape; returns the bytes added."""
        self._use(_EACH)
        parts = self._parts
        cached = cached_key_headers.get
        size_bytes = 4 * len(values)
        for value, key, sequence_id in zip(values, keys, sequence_ids, strict=True):
            prefix = cached(key) or _key_header(key)
            length = len(value)
            size = SHORT[length] if length < 0x4000 else encode_varint(length)
            high = sequence_id >> 14
            sequence = (
                MORE[sequence_id & 0x3FFF] + SHORT[high] if 0 < high < 0x4000 else encode_varint(sequence_id)
            )
            header_size = len(prefix) + len(size) + len(sequence) + 1
            header_size_bytes = _SIZES[header_size] if header_size < 0x100 else _pack_size(header_size)
            parts += (header_size_bytes, prefix, size, b"\x40", sequence, value)
            size_bytes += header_size + length
        return size_bytes

    def _use(self, pieces: int, value_size: int = -1) -> None:
        """Note the shape of the next messages: their number of parts, and the size of values of one size."""
        if not self._parts:
            self._pieces, self._value_size = pieces, value_size
        elif (self._pieces, self._value_size) != (pieces, value_size):
            self._pieces = 0

    def _message_sizes(self) -> bytes | None:
        """Return the sizes of all messages, for readers; None if a header may have an unusual shape."""
        pieces, parts = self._pieces, self._parts
        if not pieces or (_base64_was_used and _BASE64 in b"".join(parts[pieces == _EACH :: pieces])):
            return self._sizes if len(parts) == 1 else None
        if pieces == _ALIKE:
            # A header's size and the header up to its sequence id, then the sequence id in two parts.
            more = len(parts[1]) + len(parts[2]) - 4
            lengths = list(map(len, parts[::_ALIKE]))
            if max(lengths) > _HEAD_MAX:
                return None
            return encode_sizes(bytes(lengths).translate(_adding(more)), self._value_size)
        sizes = b"".join(parts[::_EACH])
        if sizes.count(0) != 3 * self.count:
            return None
        return encode_sizes(sizes[3::4], list(map(len, parts[_EACH - 1 :: _EACH])))

    def _added(
        self, size_bytes: int, count: int, highest: int, first: tuple[str | bytes | None, bytes | None]
    ) -> None:
        if not self.count:
            self._first = first
        self.count += count
        self.size += size_bytes
        self.highest_sequence_id = max(self.highest_sequence_id, highest)

    def add_encoded(
        self,
        messages: bytes,
        count: int,
        highest_sequence_id: int,
        first_key: bytes | str | None,
        sizes: bytes | None = None,
    ) -> None:
        """Append messages that are already encoded in the form of a batch, and tell readers their sizes."""
        self._sizes = sizes
        self._use(0)
        self._parts.append(messages)
        self._added(len(messages), count, highest_sequence_id, (first_key, None))

    def build(
        self,
        producer_name: str,
        publish_time_ms: int,
        compression: Compression = Compression.NONE,
        hash_range: tuple[int, int] | None = None,
        slot: int | None = None,
    ) -> bytes:
        """Return the entry to send; `hash_range` is the lowest and highest bucket hash of its messages.

        `slot` is the slot of the ring of a single message without a key.

        Both sequence ids are the highest one of the messages, as in Java's batches by bucket: entries of
        different buckets overlap in sequence ids, and only their highest ones are in send order.
        """
        payload = b"".join(self._parts)
        uncompressed_size = 0
        if (smaller := packed(compression, payload)) is not None:
            uncompressed_size, payload = len(payload), smaller
        key, ordering_key = self._first
        sequence = encode_varint(self.highest_sequence_id)
        name = producer_name.encode()
        published = encode_varint(publish_time_ms)
        # Fields in ascending order, as protobuf serializers write them.
        fields = [b"\x0a", encode_varint(len(name)), name, b"\x10", sequence, b"\x18", published]
        encoded = False
        if key is not None:
            text, encoded = key_text(key)
            fields += (b"\x32", encode_varint(len(text)), text)
        if uncompressed_size:
            fields += (b"\x40", SHORT[compression], b"\x48", encode_varint(uncompressed_size))
        fields += (b"\x58", encode_varint(self.count))
        if encoded:
            fields.append(b"\x88\x01\x01")
        if ordering_key is not None:
            fields += (b"\x92\x01", encode_varint(len(ordering_key)), ordering_key)
        fields += (b"\xc0\x01", sequence)
        if hash_range is not None:
            fields += (b"\x88\x02", encode_varint(hash_range[0]), b"\x90\x02", encode_varint(hash_range[1]))
        fields += _private_fields(slot, self.sample_key, self._message_sizes())
        return build_entry(b"".join(fields), payload)


def _private_fields(slot: int | None, sample_key: bytes | None, sizes: bytes | None) -> list[bytes]:
    """Return the fields of the metadata that clients and brokers of other vendors skip."""
    fields = [] if slot is None else [b"\xc8\x3e", encode_varint(slot)]
    if sample_key is not None:
        fields += (b"\xd2\x3e", encode_varint(len(sample_key)), sample_key)
    if sizes is not None:
        fields += (b"\xda\x3e", encode_varint(len(sizes)), sizes)
    return fields


@cache
def _adding(number: int) -> bytes:
    """Return a table that adds a number to each byte."""
    return bytes((byte + number) & 0xFF for byte in range(0x100))


def _key_header(key: str | bytes | None) -> bytes:
    """Return the header bytes of a key, kept for the next message with the same key."""
    global _base64_was_used
    if key is None:
        return b"\x18"
    text, encoded = key_text(key)
    header = b"\x12" + encode_varint(len(text)) + text + b"\x18"
    if encoded:
        # The flag has a higher number than the payload size, but fields may come in any order.
        header = header[:-1] + _BASE64
        _base64_was_used = True
    if len(cached_key_headers) >= CACHED_KEYS_MAX:
        cached_key_headers.clear()
    cached_key_headers[key] = header
    return header


def _heads_for(length: int, sequence_bytes: int) -> _Heads:
    """Return the cache for values and sequence ids of these sizes; a new size replaces it."""
    global _recent_heads
    sizes, heads = _recent_heads
    if sizes != (length, sequence_bytes) or len(heads) > CACHED_KEYS_MAX:
        heads = {}
        _recent_heads = ((length, sequence_bytes), heads)
    return heads


def _head(heads: _Heads, key: str | bytes | None, length: int, sequence_bytes: int) -> bytes:
    """Return a header's size and the header up to its sequence id."""
    fields = b"".join((cached_key_headers.get(key) or _key_header(key), SHORT[length], b"\x40"))
    head = heads[key] = _pack_size(len(fields) + sequence_bytes) + fields
    return head
