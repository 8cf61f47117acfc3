"""Spilled entries of lanes: their form in a side log, the note that names the side logs, and when to spill.

A side log has copies of entries of one subscription, in the order of the main log. Its messages count the
ordinals of the main log: the index after an entry tells the ordinal of the original. So the copies are found
without a scan, also after a restart.

For example, a side log whose first original is 70 has copies of 70, 75 and 76. They claim 1, 5 and 1
messages, so the indexes after them are 1, 6 and 7, and 70 - 1 + 6 = 75 is the original of the second copy. A
spill is due if lanes keep more than the limit, say 100 MiB, and at most 7 of 8 entries of that part are
pending; it ends below 75 MiB.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

import msgspec

from anabranch.errors import CorruptDataError
from anabranch.model.ids import Position

_ORIGIN = struct.Struct("<BQQQQQq")
_VERSION = 1

DENSE = 7 / 8
"""Share of pending entries above which a spill is of no use: the copies take as much room as the log."""

ENOUGH = 3 / 4
"""Share of the limit at which a spill ends, so that the next one has more to do than a few entries."""


class SideRecord(msgspec.Struct, frozen=True, array_like=True):
    """A side log, and the ordinal of its first original."""

    name: str
    first: int


class SpillNote(msgspec.Struct, frozen=True, array_like=True):
    """The note of a cursor: the note of its reading, and where its spilled entries are."""

    reading: bytes = b""
    sides: tuple[SideRecord, ...] = ()
    ledgers: tuple[tuple[int, int], ...] = ()
    """Ledgers of the main log with spilled entries, by id, and the ordinal of entry 0 of each."""


_EMPTY = SpillNote()
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SpillNote)


def encode_note(note: SpillNote) -> bytes:
    return b"" if note == _EMPTY else _encoder.encode(note)


def decode_note(data: bytes) -> SpillNote:
    """Undo `encode_note`; CorruptDataError for anything else."""
    if not data:
        return _EMPTY
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"the note of a cursor cannot be decoded: {error}") from error


def side_logs_in(note: bytes) -> list[str]:
    """Return the names of the side logs in the note of a cursor."""
    return [record.name for record in decode_note(note).sides]


class SpillOrigin(NamedTuple):
    """The place of an entry in the main log, and its numbers there."""

    position: Position
    ordinal: int
    index: int  # type: ignore[assignment]
    count: int  # type: ignore[assignment]
    timestamp_ms: int


def encode_copy(origin: SpillOrigin, data: bytes) -> bytes:
    """Return the data of a copy in the side log."""
    (ledger, entry), ordinal, index, count, timestamp_ms = origin
    return _ORIGIN.pack(_VERSION, ledger, entry, ordinal, index, count, timestamp_ms) + data


def decode_copy(data: bytes) -> tuple[SpillOrigin, bytes]:
    """Undo `encode_copy`; CorruptDataError for anything else."""
    if len(data) < _ORIGIN.size or data[0] != _VERSION:
        raise CorruptDataError("an entry of a side log has an unknown form")
    _, ledger, entry, ordinal, index, count, timestamp_ms = _ORIGIN.unpack_from(data)
    origin = SpillOrigin(Position(ledger, entry), ordinal, index, count, timestamp_ms)
    return origin, data[_ORIGIN.size :]


class OldLedgers:
    """Ledgers of the main log that may be trimmed: converts between positions and ordinals in them."""

    def __init__(self, known: tuple[tuple[int, int], ...] = ()) -> None:
        self.known: tuple[tuple[int, int], ...] = tuple(sorted(known))

    def add(self, position: Position, ordinal: int) -> bool:
        """Note the ledger of an entry; whether it is new. Ledgers come in ascending order."""
        if self.known and self.known[-1][0] >= position.ledger:
            return False
        self.known += ((position.ledger, ordinal - position.entry),)
        return True

    def clear(self) -> None:
        self.known = ()

    def ordinal_of(self, position: Position) -> int | None:
        """Return the ordinal at a position; in an unknown ledger, the first of the next known one."""
        at = bisect_right(self.known, (position.ledger, -1))
        if at == len(self.known):
            return None
        ledger, first = self.known[at]
        return first + max(position.entry, 0) if ledger == position.ledger else first

    def position_of(self, ordinal: int) -> Position | None:
        """Return the position of an ordinal, if it is in a known ledger or behind one."""
        at = bisect_right(self.known, ordinal, key=lambda known: known[1]) - 1
        if at < 0:
            return None
        ledger, first = self.known[at]
        return Position(ledger, ordinal - first)


class Retained(NamedTuple):
    """The part of a log that only the lanes of one subscription keep from being dropped."""

    size_bytes: int
    entries: int
    pending: int


def spill_is_due(retained: Retained, limit_bytes: int) -> bool:
    """Return whether a log keeps more than the limit and copies of its pending entries would free room."""
    return retained.size_bytes > limit_bytes and retained.pending <= DENSE * retained.entries


def spill_is_done(retained: Retained, limit_bytes: int) -> bool:
    """Return whether a spill that is under way may end."""
    return retained.size_bytes <= ENOUGH * limit_bytes or not retained.pending
