"""Checkpoint: where a checkpoint consumer continues, and its byte form.

The byte form is that of the Java client, so an application can exchange checkpoints between clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

from anabranch.errors import InvalidConfigurationError
from anabranch.model.ids import LONG, BadBytes, ByteReader, MessageId, read_vector, vector_bytes


class CheckpointKind(IntEnum):
    """First byte of a checkpoint's byte form. Other clients know the first three."""

    REGULAR = 0
    EARLIEST = 1
    LATEST = 2
    AT_TIME = 3


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The point to continue reading: after the last message read, per segment, or at one of three starts.

    A segment without a position is newer than a regular checkpoint and is read from its beginning. A
    checkpoint of a reader that started at a time keeps that time for the segments without a position.
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
        """One checkpoint for a whole group: the latest position of each segment.

        A member that has received nothing still has the start it was given, and adds no position. If all
        members have the same start, that start is the result.
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
        """The byte form that other V5 clients read; only Anabranch knows AT_TIME."""
        if self.is_regular:
            return bytes((self.kind,)) + vector_bytes(tuple(self.positions.items()))
        if self.kind is CheckpointKind.AT_TIME:
            rest = vector_bytes(tuple(self.positions.items())) if self.positions else b""
            return bytes((self.kind,)) + LONG.pack(self.timestamp_ms) + rest
        return bytes((self.kind,))

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> Checkpoint:
        """Undo `to_bytes`; raises InvalidConfigurationError."""
        try:
            return _read_checkpoint(ByteReader(bytes(data)))
        except BadBytes as cause:
            raise InvalidConfigurationError(f"{len(data)} bytes are no checkpoint: {cause}") from cause


def _read_checkpoint(reader: ByteReader) -> Checkpoint:
    if not reader.left:
        raise BadBytes("no bytes")
    first = reader.take(1)[0]
    if first not in CheckpointKind._value2member_map_:
        raise BadBytes(f"unknown first byte {first}")
    kind = CheckpointKind(first)
    timestamp_ms = reader.int64() if kind is CheckpointKind.AT_TIME else 0
    placed = kind is CheckpointKind.REGULAR or (kind is CheckpointKind.AT_TIME and reader.left)
    positions = dict(read_vector(reader)) if placed else {}
    reader.end()
    return Checkpoint(positions, kind, timestamp_ms)
