"""Position and MessageId, and the byte form of a message id.

The byte form is that of the Java and C++ clients, so an application can exchange ids between clients. The
classic id inside it is a protobuf message of plain fields, written and read by hand because the model must
not know the wire.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar, dataclass_transform

from anabranch.arguments import of_kind
from anabranch.errors import InvalidConfigurationError

_U64_MASK = 2**64 - 1
INT = struct.Struct(">i")
LONG = struct.Struct(">q")
_I64_MAX = 2**63 - 1
_T = TypeVar("_T")


class Position(NamedTuple):
    """The ledger and entry number of a stored entry, as on the wire."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST = Position(-1, -1)
LATEST = Position(_I64_MAX, _I64_MAX)

Vector = tuple[tuple[int, "MessageId"], ...]


@dataclass_transform(frozen_default=True, eq_default=False)
def _value(cls: type[_T]) -> type[_T]:
    """Make a dataclass frozen for type checkers only: at run time, creation would be five times slower."""
    return dataclass(slots=True, eq=False)(cls)


@_value
class MessageId:
    """Identifies one message; ordered by segment id (not time), position, partition and batch index.

    Example:
        first = MessageId.earliest()
        assert MessageId.from_bytes(first.to_bytes()) == first
    """

    segment: int
    ledger: int
    entry: int
    batch_index: int = -1
    batch_size: int = 0
    partition: int = -1
    vector: Vector = ()
    """Last message delivered per segment, so that one cumulative acknowledgement covers all segments."""
    topic: str | None = None
    cross: tuple[tuple[str, Vector], ...] | None = None
    """A vector per topic, for consumers of a whole namespace."""
    first_chunk: Position | None = None
    """Position of the first chunk of a chunked message; the other fields are those of its last chunk."""
    next_index: int = -1
    """In a checkpoint: the index of the next message of the segment; -1 when unknown."""

    @staticmethod
    def earliest() -> MessageId:
        """Return the id before all messages of any topic."""
        return MessageId(-1, *EARLIEST)

    @staticmethod
    def latest() -> MessageId:
        """Return the id after all messages of any topic."""
        return MessageId(-1, *LATEST)

    @property
    def position(self) -> Position:
        """The entry that holds the message."""
        return Position(self.ledger, self.entry)

    def __str__(self) -> str:
        batch = f":{self.batch_index}" if self.batch_index >= 0 else ""
        return f"{self.segment}/{self.ledger}:{self.entry}{batch}"

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, MessageId) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.segment, self.ledger, self.entry, self.batch_index))

    def __lt__(self, other: MessageId) -> bool:
        return self._key() < other._key() if isinstance(other, MessageId) else NotImplemented

    def __le__(self, other: MessageId) -> bool:
        return self._key() <= other._key() if isinstance(other, MessageId) else NotImplemented

    def __gt__(self, other: MessageId) -> bool:
        return self._key() > other._key() if isinstance(other, MessageId) else NotImplemented

    def __ge__(self, other: MessageId) -> bool:
        return self._key() >= other._key() if isinstance(other, MessageId) else NotImplemented

    def _key(self) -> tuple[int, int, int, int, int]:
        return (self.segment, self.ledger, self.entry, self.partition, self.batch_index)

    def to_bytes(self) -> bytes:
        """Return the byte form of a V5 client: segment, classic id, vector, topic, cross-topic vector."""
        pieces = [LONG.pack(self.segment), sized(self.classic_bytes()), vector_bytes(self.vector)]
        pieces.append(INT.pack(-1) if self.topic is None else sized(self.topic.encode()))
        if self.cross is None:
            pieces.append(INT.pack(-1))
        else:
            pieces.append(INT.pack(len(self.cross)))
            for topic, vector in self.cross:
                pieces += (sized(topic.encode()), vector_bytes(vector))
        return b"".join(pieces)

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> MessageId:
        """Undo `to_bytes`; the last two parts may be missing. Raises InvalidConfigurationError."""
        of_kind("data", data, (bytes, bytearray, memoryview), "bytes that to_bytes made")
        try:
            return _read_message_id(ByteReader(bytes(data)))
        except (BadBytes, UnicodeDecodeError) as cause:
            raise InvalidConfigurationError(
                f"these {len(data)} bytes are not a message id: {cause}"
            ) from cause

    def classic_bytes(self) -> bytes:
        """Return the classic id (protobuf MessageIdData), without segment, vector and topic."""
        pieces = [b"\x08", varint_bytes(self.ledger), b"\x10", varint_bytes(self.entry)]
        if self.partition >= 0:
            pieces += (b"\x18", varint_bytes(self.partition))
        if self.batch_index >= 0:
            pieces += (b"\x20", varint_bytes(self.batch_index))
        pieces += (b"\x30", varint_bytes(max(0, self.batch_size)))
        if self.first_chunk is not None:
            chunk = (
                b"\x08"
                + varint_bytes(self.first_chunk.ledger)
                + b"\x10"
                + varint_bytes(self.first_chunk.entry)
            )
            pieces += (b"\x3a", varint_bytes(len(chunk)), chunk)
        if self.next_index >= 0:
            pieces += (_NEXT_INDEX_TAG, varint_bytes(self.next_index))
        return b"".join(pieces)


class BadBytes(Exception):  # noqa: N818 - never leaves the decoders of ids and checkpoints
    """The bytes cannot be decoded; the decoder turns this into an error for its caller."""


class ByteReader:
    """Reads fields one after another; refuses to read past the end."""

    __slots__ = ("data", "offset")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.offset

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            raise BadBytes(f"a length of {length}, but only {self.left} bytes are left")
        self.offset += length
        return self.data[self.offset - length : self.offset]

    def int32(self) -> int:
        number: int = INT.unpack(self.take(4))[0]
        return number

    def int64(self) -> int:
        number: int = LONG.unpack(self.take(8))[0]
        return number

    def varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number & _U64_MASK
        raise BadBytes("a number longer than ten bytes")

    def expect(self, count: int, item_bytes_min: int) -> int:
        """Refuse a count of items that the remaining bytes cannot hold."""
        if not 0 <= count * item_bytes_min <= self.left:
            raise BadBytes(f"a count of {count}, but only {self.left} bytes are left")
        return count

    def end(self) -> None:
        if self.left:
            raise BadBytes(f"{self.left} bytes too many")


def _read_message_id(reader: ByteReader) -> MessageId:
    segment = reader.int64()
    classic = read_classic(reader.take(reader.int32()), segment)
    vector = read_vector(reader) if reader.left else ()
    topic: str | None = None
    cross: tuple[tuple[str, Vector], ...] | None = None
    if reader.left:
        length = reader.int32()
        topic = None if length == -1 else reader.take(length).decode()
    if reader.left:
        count = reader.int32()
        if count != -1:
            reader.expect(count, 8)
            cross = tuple((reader.take(reader.int32()).decode(), read_vector(reader)) for _ in range(count))
    reader.end()
    return replace(classic, vector=vector, topic=topic, cross=cross)


def read_vector(reader: ByteReader) -> Vector:
    found = []
    for _ in range(reader.expect(reader.int32(), 12)):
        segment = reader.int64()
        found.append((segment, read_classic(reader.take(reader.int32()), segment)))
    return tuple(found)


def read_classic(data: bytes, segment: int, own: Mapping[int, list[bytes]] | None = None) -> MessageId:
    """Return the classic id in `data`; the contents of Anabranch's own fields are added to `own`."""
    fields: dict[int, int] = {}
    chunks: list[bytes] = []
    read_fields(ByteReader(data), fields, {7: chunks, **(own or {})})
    first_chunk = read_classic(chunks[-1], segment).position if chunks else None
    if 1 not in fields or 2 not in fields:
        raise BadBytes("ledger or entry is missing")
    return MessageId(
        segment,
        _signed(fields[1]),
        _signed(fields[2]),
        _signed(fields.get(4, _U64_MASK)),
        _signed(fields.get(6, 0)),
        _signed(fields.get(3, _U64_MASK)),
        first_chunk=first_chunk,
        next_index=_signed(fields.get(_NEXT_INDEX, _U64_MASK)),
    )


def read_fields(reader: ByteReader, numbers: dict[int, int], contents: Mapping[int, list[bytes]]) -> None:
    """Read a protobuf message: all plain numbers, and the contents of the fields that are asked for."""
    while reader.left:
        tag = reader.varint()
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            numbers[number] = reader.varint()
        elif wire_type == 2:
            inner = reader.take(reader.varint())
            if number in contents:
                contents[number].append(inner)
        elif wire_type in (1, 5):
            reader.take(8 if wire_type == 1 else 4)
        else:
            raise BadBytes(f"wire type {wire_type}")


def vector_bytes(vector: Vector) -> bytes:
    pieces = [INT.pack(len(vector))]
    for segment, id_ in vector:
        pieces += (LONG.pack(segment), sized(id_.classic_bytes()))
    return b"".join(pieces)


def sized(data: bytes) -> bytes:
    return INT.pack(len(data)) + data


def varint_bytes(number: int) -> bytes:
    number &= _U64_MASK
    if number < 0x80:
        return bytes((number,))
    pieces = bytearray()
    while number >= 0x80:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)


def _signed(number: int) -> int:
    return number - 2**64 if number > 2**63 - 1 else number


_NEXT_INDEX = 1001
"""Anabranch's own field of the classic id; other clients skip it."""
_NEXT_INDEX_TAG = varint_bytes(_NEXT_INDEX << 3)
