"""Position, MessageId, Checkpoint, and their byte forms.

The bytes are those of the Java and C++ clients, so ids and checkpoints can be handed from one to another. The
classic id inside them is a protobuf message of plain fields, written and read by hand here because the
model knows nothing of the wire.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple, TypeVar, dataclass_transform

from anabranch.errors import InvalidConfigurationError

_I64_MAX = 2**63 - 1
_U64_MASK = 2**64 - 1
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_T = TypeVar("_T")


class Position(NamedTuple):
    """Where an entry is stored, as the wire shows it."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST = Position(-1, -1)
LATEST = Position(_I64_MAX, _I64_MAX)

Vector = tuple[tuple[int, "MessageId"], ...]


@dataclass_transform(frozen_default=True, eq_default=False)
def _value(cls: type[_T]) -> type[_T]:
    """A dataclass that type checkers hold frozen.

    Ids are made once per message, and freezing them at run time too takes five times as long.
    """
    return dataclass(slots=True, eq=False)(cls)


@_value
class MessageId:
    """Names one message for ever; compared by segment, position, partition and place in the batch.

    Between segments the order follows their ids and says nothing of time.
    """

    segment: int
    ledger: int
    entry: int
    batch_index: int = -1
    batch_size: int = 0
    partition: int = -1
    vector: Vector = ()
    """Last message delivered per segment, which makes one cumulative acknowledgement cover all of them."""
    topic: str | None = None
    cross: tuple[tuple[str, Vector], ...] | None = None
    """The same vector per topic, for consumers of a whole namespace."""
    first_chunk: Position | None = None
    """Where a message sent in chunks begins; the rest of the id is that of its last chunk."""
    next_index: int = -1
    """In a checkpoint: the number of the message that follows in its segment; -1 when that is not known."""

    @staticmethod
    def earliest() -> MessageId:
        """Stands for the beginning of any topic."""
        return MessageId(-1, *EARLIEST)

    @staticmethod
    def latest() -> MessageId:
        """Stands for the end of any topic."""
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
        """The byte form of a V5 client: segment, classic id, vector, topic, cross-topic vector."""
        pieces = [_LONG.pack(self.segment), _sized(self.classic_bytes()), _vector_bytes(self.vector)]
        pieces.append(_INT.pack(-1) if self.topic is None else _sized(self.topic.encode()))
        if self.cross is None:
            pieces.append(_INT.pack(-1))
        else:
            pieces.append(_INT.pack(len(self.cross)))
            for topic, vector in self.cross:
                pieces += (_sized(topic.encode()), _vector_bytes(vector))
        return b"".join(pieces)

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> MessageId:
        """Undo `to_bytes`; the last two parts may be missing. Raises InvalidConfigurationError."""
        try:
            return _read_message_id(_Reader(bytes(data)))
        except (_BadBytes, UnicodeDecodeError) as cause:
            raise InvalidConfigurationError(f"{len(data)} bytes are no message id: {cause}") from cause

    def classic_bytes(self) -> bytes:
        """The classic id (protobuf MessageIdData), without segment, vector and topic."""
        pieces = [b"\x08", _varint(self.ledger), b"\x10", _varint(self.entry)]
        if self.partition >= 0:
            pieces += (b"\x18", _varint(self.partition))
        if self.batch_index >= 0:
            pieces += (b"\x20", _varint(self.batch_index))
        pieces += (b"\x30", _varint(max(0, self.batch_size)))
        if self.first_chunk is not None:
            chunk = b"\x08" + _varint(self.first_chunk.ledger) + b"\x10" + _varint(self.first_chunk.entry)
            pieces += (b"\x3a", _varint(len(chunk)), chunk)
        if self.next_index >= 0:
            pieces += (_NEXT_INDEX_TAG, _varint(self.next_index))
        return b"".join(pieces)

    @staticmethod
    def from_classic(data: bytes | bytearray | memoryview, segment: int = -1) -> MessageId:
        """Read a classic id; unknown fields are skipped. Raises InvalidConfigurationError."""
        try:
            return _read_classic(bytes(data), segment)
        except _BadBytes as cause:
            raise InvalidConfigurationError(f"{len(data)} bytes are no message id: {cause}") from cause


class CheckpointKind(IntEnum):
    """First byte of a checkpoint. Others know the first three."""

    REGULAR = 0
    EARLIEST = 1
    LATEST = 2
    AT_TIME = 3


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where to go on reading: after the last message covered, per segment, or at one of three starts.

    A segment that a regular checkpoint does not name is newer than it and is read from its beginning. One
    taken by a reader that started at a time keeps that time, which still holds for segments it does not name.
    """

    positions: Mapping[int, MessageId] = field(default_factory=dict)
    kind: CheckpointKind = CheckpointKind.REGULAR
    timestamp_ms: int = 0
    """For AT_TIME: reading starts at the first message published then or later."""

    def __post_init__(self) -> None:
        if self.positions and self.kind in (CheckpointKind.EARLIEST, CheckpointKind.LATEST):
            raise InvalidConfigurationError("a checkpoint at an end of the topic has no positions")
        ordered = {segment: self.positions[segment] for segment in sorted(self.positions)}
        object.__setattr__(self, "positions", MappingProxyType(ordered))

    @staticmethod
    def earliest() -> Checkpoint:
        """The beginning of the topic."""
        return Checkpoint(kind=CheckpointKind.EARLIEST)

    @staticmethod
    def latest() -> Checkpoint:
        """The end of the topic at the time of opening."""
        return Checkpoint(kind=CheckpointKind.LATEST)

    @staticmethod
    def at_ms(timestamp_ms: int) -> Checkpoint:
        """The first message published at this time or later."""
        return Checkpoint(kind=CheckpointKind.AT_TIME, timestamp_ms=timestamp_ms)

    @property
    def is_regular(self) -> bool:
        return self.kind is CheckpointKind.REGULAR

    @property
    def is_latest(self) -> bool:
        return self.kind is CheckpointKind.LATEST

    def __hash__(self) -> int:
        return hash((self.kind, self.timestamp_ms, tuple(self.positions.items())))

    def __str__(self) -> str:
        if self.is_regular:
            return f"Checkpoint({', '.join(str(id_) for id_ in self.positions.values())})"
        return f"Checkpoint({self.kind.name.lower()})"

    def __reduce__(self) -> tuple[type[Checkpoint], tuple[dict[int, MessageId], CheckpointKind, int]]:
        return Checkpoint, (dict(self.positions), self.kind, self.timestamp_ms)

    @staticmethod
    def merge(checkpoints: Iterable[Checkpoint]) -> Checkpoint:
        """One checkpoint for a whole group: the later position of each segment.

        Members that have received nothing yet may still hold the start they were given; they add nothing.
        When all hold the same start, that start is the result.
        """
        given = list(checkpoints)
        if not given:
            raise InvalidConfigurationError("there is no checkpoint to merge")
        placed = [checkpoint for checkpoint in given if checkpoint.is_regular or checkpoint.positions]
        if not placed:
            if any(checkpoint != given[0] for checkpoint in given):
                raise InvalidConfigurationError("checkpoints with different starts cannot be merged")
            return given[0]
        positions: dict[int, MessageId] = {}
        for checkpoint in placed:
            for segment, id_ in checkpoint.positions.items():
                positions[segment] = max(id_, positions.get(segment, id_))
        times = sorted({c.timestamp_ms for c in given if c.kind is CheckpointKind.AT_TIME})
        if len(times) > 1:
            raise InvalidConfigurationError("checkpoints with different starts cannot be merged")
        return Checkpoint(positions, CheckpointKind.AT_TIME, times[0]) if times else Checkpoint(positions)

    def to_bytes(self) -> bytes:
        """The byte form other V5 clients read; AT_TIME is ours alone."""
        if self.is_regular:
            return bytes((self.kind,)) + _vector_bytes(tuple(self.positions.items()))
        if self.kind is CheckpointKind.AT_TIME:
            rest = _vector_bytes(tuple(self.positions.items())) if self.positions else b""
            return bytes((self.kind,)) + _LONG.pack(self.timestamp_ms) + rest
        return bytes((self.kind,))

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> Checkpoint:
        """Undo `to_bytes`; raises InvalidConfigurationError."""
        try:
            return _read_checkpoint(_Reader(bytes(data)))
        except _BadBytes as cause:
            raise InvalidConfigurationError(f"{len(data)} bytes are no checkpoint: {cause}") from cause


class _BadBytes(Exception):  # noqa: N818 - never leaves this module
    pass


class _Reader:
    """Reads fields one after another and never past the end."""

    __slots__ = ("data", "offset")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.offset

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            raise _BadBytes(f"a length of {length} where {self.left} bytes are left")
        self.offset += length
        return self.data[self.offset - length : self.offset]

    def int32(self) -> int:
        number: int = _INT.unpack(self.take(4))[0]
        return number

    def int64(self) -> int:
        number: int = _LONG.unpack(self.take(8))[0]
        return number

    def varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number & _U64_MASK
        raise _BadBytes("a number longer than ten bytes")

    def expect(self, count: int, item_bytes_min: int) -> int:
        """Refuse a count that the bytes left cannot hold, before anything is made of it."""
        if not 0 <= count * item_bytes_min <= self.left:
            raise _BadBytes(f"a count of {count} where {self.left} bytes are left")
        return count

    def end(self) -> None:
        if self.left:
            raise _BadBytes(f"{self.left} bytes too many")


def _read_message_id(reader: _Reader) -> MessageId:
    segment = reader.int64()
    classic = _read_classic(reader.take(reader.int32()), segment)
    vector = _read_vector(reader) if reader.left else ()
    topic: str | None = None
    cross: tuple[tuple[str, Vector], ...] | None = None
    if reader.left:
        length = reader.int32()
        topic = None if length == -1 else reader.take(length).decode()
    if reader.left:
        count = reader.int32()
        if count != -1:
            reader.expect(count, 8)
            cross = tuple((reader.take(reader.int32()).decode(), _read_vector(reader)) for _ in range(count))
    reader.end()
    return MessageId(
        segment,
        classic.ledger,
        classic.entry,
        classic.batch_index,
        classic.batch_size,
        classic.partition,
        vector,
        topic,
        cross,
        classic.first_chunk,
        classic.next_index,
    )


def _read_vector(reader: _Reader) -> Vector:
    found = []
    for _ in range(reader.expect(reader.int32(), 12)):
        segment = reader.int64()
        found.append((segment, _read_classic(reader.take(reader.int32()), segment)))
    return tuple(found)


def _read_checkpoint(reader: _Reader) -> Checkpoint:
    if not reader.left:
        raise _BadBytes("nothing there")
    first = reader.take(1)[0]
    if first not in CheckpointKind._value2member_map_:
        raise _BadBytes(f"unknown first byte {first}")
    kind = CheckpointKind(first)
    timestamp_ms = reader.int64() if kind is CheckpointKind.AT_TIME else 0
    placed = kind is CheckpointKind.REGULAR or (kind is CheckpointKind.AT_TIME and reader.left)
    positions = dict(_read_vector(reader)) if placed else {}
    reader.end()
    return Checkpoint(positions, kind, timestamp_ms)


def _read_classic(data: bytes, segment: int) -> MessageId:
    fields: dict[int, int] = {}
    first_chunk: Position | None = None
    reader = _Reader(data)
    while reader.left:
        tag = reader.varint()
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            fields[number] = reader.varint()
        elif wire_type == 2:
            inner = reader.take(reader.varint())
            if number == 7:
                first_chunk = _read_classic(inner, segment).position
        elif wire_type in (1, 5):
            reader.take(8 if wire_type == 1 else 4)
        else:
            raise _BadBytes(f"wire type {wire_type}")
    if 1 not in fields or 2 not in fields:
        raise _BadBytes("ledger or entry is missing")
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


def _vector_bytes(vector: Vector) -> bytes:
    pieces = [_INT.pack(len(vector))]
    for segment, id_ in vector:
        pieces += (_LONG.pack(segment), _sized(id_.classic_bytes()))
    return b"".join(pieces)


def _sized(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _varint(number: int) -> bytes:
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
    return number - 2**64 if number > _I64_MAX else number


_NEXT_INDEX = 1001
"""A field of ours in the classic id, which others skip."""
_NEXT_INDEX_TAG = _varint(_NEXT_INDEX << 3)
