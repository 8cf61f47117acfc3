"""Checkpoint: where a checkpoint consumer continues, and its byte form.

The byte form is that of the Java client, so an application can exchange checkpoints between clients. Other
clients see the lowest position of each segment; positions by bucket are in a field that they skip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

from anabranch.arguments import listed, of_kind, whole
from anabranch.errors import InvalidConfigurationError, LayoutError
from anabranch.model.ids import (
    INT,
    LONG,
    BadBytes,
    ByteReader,
    MessageId,
    read_classic,
    read_fields,
    sized,
    varint_bytes,
)
from anabranch.model.ranges import FULL, HashRange
from anabranch.model.slot_positions import SlotPositions


class CheckpointKind(IntEnum):
    """First byte of a checkpoint's byte form. Other clients know the first three."""

    REGULAR = 0
    EARLIEST = 1
    LATEST = 2
    AT_TIME = 3


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place to continue reading: per segment after the last message read, or at one of three starts.

    A segment without a position is newer than a regular checkpoint and is read from its beginning. A
    checkpoint of a reader that started at a time keeps that time for the segments without a position.

    Example:
        kept = Checkpoint.earliest().to_bytes()
        assert Checkpoint.from_bytes(kept) == Checkpoint.earliest()
    """

    positions: Mapping[int, MessageId] = field(default_factory=dict)
    kind: CheckpointKind = CheckpointKind.REGULAR
    timestamp_ms: int = 0
    """For AT_TIME: reading starts at the first message published then or later."""
    parts: Mapping[int, SlotPositions] = field(default_factory=dict)
    """Positions by bucket, for segments whose buckets were read to different points. `positions` has the
    lowest."""

    def __post_init__(self) -> None:
        parts = {id_: self.parts[id_] for id_ in sorted(self.parts) if not self.parts[id_].is_whole}
        found = {**self.positions, **{id_: slots.lowest for id_, slots in self.parts.items()}}
        if found and self.kind in (CheckpointKind.EARLIEST, CheckpointKind.LATEST):
            raise InvalidConfigurationError(
                "a checkpoint at the beginning or end of a topic cannot have positions"
            )
        ordered = {segment: found[segment] for segment in sorted(found)}
        object.__setattr__(self, "positions", MappingProxyType(ordered))
        object.__setattr__(self, "parts", MappingProxyType(parts))

    @staticmethod
    def earliest() -> Checkpoint:
        """Return the beginning of the topic."""
        return Checkpoint(kind=CheckpointKind.EARLIEST)

    @staticmethod
    def latest() -> Checkpoint:
        """Return the end of the topic at the time of opening."""
        return Checkpoint(kind=CheckpointKind.LATEST)

    @staticmethod
    def at_ms(timestamp_ms: int) -> Checkpoint:
        """Return the first message published at this time or later."""
        whole("timestamp_ms", timestamp_ms, most=2**63 - 1)
        return Checkpoint(kind=CheckpointKind.AT_TIME, timestamp_ms=timestamp_ms)

    @property
    def is_regular(self) -> bool:
        """Whether it holds positions, rather than standing for the beginning, the end or a time."""
        return self.kind is CheckpointKind.REGULAR

    @property
    def is_latest(self) -> bool:
        """Whether it stands for the end of the topic."""
        return self.kind is CheckpointKind.LATEST

    def slots(self, segment: int) -> SlotPositions | None:
        """Return the positions inside one segment; None if the checkpoint does not name it."""
        if segment in self.parts:
            return self.parts[segment]
        id_ = self.positions.get(segment)
        return None if id_ is None else SlotPositions.whole(id_)

    def __hash__(self) -> int:
        return hash((self.kind, self.timestamp_ms, tuple(self.positions.items())))

    def __str__(self) -> str:
        if self.is_regular:
            found = (_text(self.slots(id_) or SlotPositions.unknown(id_)) for id_ in self.positions)
            return f"Checkpoint({', '.join(found)})"
        return f"Checkpoint({self.kind.name.lower()})"

    def __reduce__(self) -> tuple[type[Checkpoint], tuple[object, ...]]:
        return Checkpoint, (dict(self.positions), self.kind, self.timestamp_ms, dict(self.parts))

    @staticmethod
    def merge(checkpoints: Iterable[Checkpoint]) -> Checkpoint:
        """Return one checkpoint for a whole group: the latest position of each bucket of each segment.

        A member that has received nothing still has the start it was given, and adds no position. If all
        members have the same start, that start is the result.
        """
        given = listed("checkpoints", checkpoints, Checkpoint, "a list of Checkpoint objects")
        if not given:
            raise InvalidConfigurationError("merge needs at least one checkpoint")
        placed = [checkpoint for checkpoint in given if checkpoint.is_regular or checkpoint.positions]
        if not placed:
            if any(checkpoint != given[0] for checkpoint in given):
                raise InvalidConfigurationError("checkpoints with different starts cannot be merged")
            return given[0]
        slots: dict[int, SlotPositions] = {}
        for checkpoint in placed:
            for segment in checkpoint.positions:
                found = checkpoint.slots(segment) or SlotPositions.unknown(segment)
                slots[segment] = slots[segment].merged(found) if segment in slots else found
        times = sorted({c.timestamp_ms for c in given if c.kind is CheckpointKind.AT_TIME})
        if len(times) > 1:
            raise InvalidConfigurationError("checkpoints with different starts cannot be merged")
        kind = CheckpointKind.AT_TIME if times else CheckpointKind.REGULAR
        return Checkpoint({}, kind, times[0] if times else 0, slots)

    def to_bytes(self) -> bytes:
        """Return the byte form that other V5 clients read; only Anabranch knows AT_TIME."""
        if self.is_regular:
            return bytes((self.kind,)) + self._position_bytes()
        if self.kind is CheckpointKind.AT_TIME:
            rest = self._position_bytes() if self.positions else b""
            return bytes((self.kind,)) + LONG.pack(self.timestamp_ms) + rest
        return bytes((self.kind,))

    def _position_bytes(self) -> bytes:
        pieces = [INT.pack(len(self.positions))]
        for segment, id_ in self.positions.items():
            parts = self.parts[segment].parts if segment in self.parts else ()
            pieces += (LONG.pack(segment), sized(id_.classic_bytes() + b"".join(map(_part_bytes, parts))))
        return b"".join(pieces)

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> Checkpoint:
        """Undo `to_bytes`; raises InvalidConfigurationError."""
        of_kind("data", data, (bytes, bytearray, memoryview), "bytes that to_bytes made")
        try:
            return _read_checkpoint(ByteReader(bytes(data)))
        except BadBytes as cause:
            raise InvalidConfigurationError(
                f"these {len(data)} bytes are not a checkpoint: {cause}"
            ) from cause


def _read_checkpoint(reader: ByteReader) -> Checkpoint:
    if not reader.left:
        raise BadBytes("no bytes")
    first = reader.take(1)[0]
    if first not in CheckpointKind._value2member_map_:
        raise BadBytes(f"unknown first byte {first}")
    kind = CheckpointKind(first)
    timestamp_ms = reader.int64() if kind is CheckpointKind.AT_TIME else 0
    placed = kind is CheckpointKind.REGULAR or (kind is CheckpointKind.AT_TIME and reader.left)
    positions: dict[int, MessageId] = {}
    parts: dict[int, SlotPositions] = {}
    for _ in range(reader.expect(reader.int32(), 12) if placed else 0):
        segment = reader.int64()
        inner: list[bytes] = []
        positions[segment] = read_classic(reader.take(reader.int32()), segment, {_PART: inner})
        if inner:
            parts[segment] = _read_parts(inner, segment)
    reader.end()
    return Checkpoint(positions, kind, timestamp_ms, parts)


def _part_bytes(part: tuple[HashRange, MessageId]) -> bytes:
    range_, id_ = part
    classic = id_.classic_bytes()
    first, last = varint_bytes(range_.start), varint_bytes(range_.end)
    inner = b"\x08" + first + b"\x10" + last + b"\x1a" + varint_bytes(len(classic)) + classic
    return _PART_TAG + varint_bytes(len(inner)) + inner


def _read_parts(found: Iterable[bytes], segment: int) -> SlotPositions:
    parts: list[tuple[HashRange, MessageId]] = []
    for data in found:
        fields: dict[int, int] = {}
        ids: list[bytes] = []
        read_fields(ByteReader(data), fields, {3: ids})
        if not {1, 2} <= fields.keys() or len(ids) != 1:
            raise BadBytes("a part without slots or position")
        try:
            parts.append((HashRange(fields[1], fields[2]), read_classic(ids[0], segment)))
        except LayoutError as error:
            raise BadBytes(str(error)) from error
    starts = (0, *(range_.end + 1 for range_, _ in parts))
    if [range_.start for range_, _ in parts] + [FULL.end + 1] != list(starts):
        raise BadBytes("parts that do not tile all slots")
    return SlotPositions.tiling(parts)


def _text(slots: SlotPositions) -> str:
    if slots.is_whole:
        return str(slots.parts[0][1])
    return " ".join(f"{id_}@{range_}" for range_, id_ in slots.parts)


_PART = 1002
"""Anabranch's own field of the ids in a checkpoint: the position of a range of slots."""
_PART_TAG = varint_bytes(_PART << 3 | 2)
