"""Sequence ids of producers that a segment inherits from its parents.

A segment remembers the highest sequence id that it stored per producer. Its children inherit these ids, so
that the owner recognises a message that a producer sends again after a seal. A merged segment has several
parents with different ids of the same producer. So inherited ids are kept per *piece* of the ring, and the
piece of a message's key decides whether it is a duplicate. A message with an unknown slot counts as a
duplicate only if it is one in every piece.

Too low an id stores a message twice; too high an id loses a message. So the functions that drop or join ids
to bound the size only lower them. This module knows nothing of storage or wire.

Example: producer p stored up to id 9 in segment 0000-7fff and up to 5 in 8000-ffff, and the two are merged.
The child inherits two pieces. Id 7 with a key in slot 0x1000 is a duplicate (7 <= 9); with a key in slot
0x9000 it is new (7 > 5). If the slot is unknown, 7 counts as new and 5 as a duplicate.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from anabranch.model.ranges import HashRange

UNKNOWN = -1
"""Below every sequence id: the producer is unknown."""

PIECES_MAX = 32
"""Most pieces that a segment inherits; above this, neighbours are joined."""

BYTES_MAX = 512 * 1024
"""Approximate limit for all pieces, because brokers send them; above it, the least recently used producers
go."""

_SEQUENCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Piece:
    """Highest stored sequence id per producer, for messages whose key falls into the range."""

    range: HashRange
    sequences: Mapping[str, int]
    """Producers in the order of their last use, the most recent last."""


Pieces = tuple[Piece, ...]
"""Ordered by range, without overlaps; in gaps between them no producer is known."""


def handed_on(
    own_range: HashRange,
    own: Mapping[str, int],
    inherited: Iterable[Piece],
    *,
    bytes_max: int = BYTES_MAX,
) -> Pieces:
    """Return the pieces that a segment passes to its children.

    Its own ids only rise, so each of them applies to its whole range.
    """
    pieces = [Piece(piece.range, _highest(piece.sequences, own)) for piece in _filled(inherited, own_range)]
    return tuple(_lightened(_coalesced(pieces), bytes_max))


def inherit(
    child: HashRange,
    passed_on: Iterable[Piece],
    *,
    pieces_max: int = PIECES_MAX,
    bytes_max: int = BYTES_MAX,
) -> Pieces:
    """Return the pieces that a new segment inherits from all its parents; empty when no producer is known."""
    pieces = _lightened(_fewer(_coalesced(_filled(passed_on, child)), pieces_max), bytes_max)
    return tuple(pieces) if any(piece.sequences for piece in pieces) else ()


class Known:
    """The inherited ids of one producer, which may have several names, prepared for `is_duplicate`."""

    __slots__ = ("_ends", "_sequences", "_starts", "highest", "lowest")

    def __init__(self, pieces: Sequence[Piece], *producer: str) -> None:
        self._starts = [piece.range.start for piece in pieces]
        self._sequences = [highest_of(producer, piece.sequences) for piece in pieces]
        self._ends = [piece.range.end for piece in pieces]
        gapless = all(left.range.touches(right.range) for left, right in pairwise(pieces))
        self.highest = max(self._sequences, default=UNKNOWN)
        self.lowest = min(self._sequences, default=UNKNOWN) if gapless else UNKNOWN

    def is_duplicate(self, sequence: int, slot: int | None) -> bool:
        """Return whether a message was stored before; `slot` is that of its key, None if unknown."""
        if slot is None:
            return sequence <= self.lowest
        at = bisect_right(self._starts, slot) - 1
        return at >= 0 and slot <= self._ends[at] and sequence <= self._sequences[at]


def highest_of(names: Iterable[str], sequences: Mapping[str, int]) -> int:
    """Return the highest sequence id that is known under one of these names."""
    return max((sequences.get(name, UNKNOWN) for name in names), default=UNKNOWN)


def _filled(pieces: Iterable[Piece], whole: HashRange) -> list[Piece]:
    """Return the pieces cut to a range, empty in gaps.

    If pieces of classic topics overlap, each producer keeps its lowest id.
    """
    given = [piece for piece in pieces if piece.range.overlaps(whole)]
    cuts = {whole.start, *(piece.range.start for piece in given), *(piece.range.end + 1 for piece in given)}
    starts = sorted(cut for cut in cuts if cut in whole)
    found: list[Piece] = []
    for start, following in pairwise([*starts, whole.end + 1]):
        here = [piece.sequences for piece in given if start in piece.range]
        found.append(Piece(HashRange(start, following - 1), reduce(_lower, here) if here else {}))
    return found


def _coalesced(pieces: Sequence[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].sequences == piece.sequences:
            piece = Piece(HashRange(joined.pop().range.start, piece.range.end), piece.sequences)
        joined.append(piece)
    return joined


def _fewer(pieces: list[Piece], pieces_max: int) -> list[Piece]:
    while len(pieces) > pieces_max:
        at = min(range(len(pieces) - 1), key=lambda at: _lost(pieces[at], pieces[at + 1]))
        pieces[at : at + 2] = [_joined(pieces[at], pieces[at + 1])]
    return pieces


def _lightened(pieces: list[Piece], bytes_max: int) -> list[Piece]:
    """Return the pieces without the least recently used producers, so that they fit."""
    age: dict[str, int] = {}
    uses: Counter[str] = Counter()
    for piece in pieces:
        uses.update(piece.sequences.keys())
        for place, producer in enumerate(reversed([*piece.sequences])):
            age[producer] = min(place, age.get(producer, place))
    sizes = {producer: (len(producer.encode()) + _SEQUENCE_BYTES) * uses[producer] for producer in uses}
    left = bytes_max - sum(sizes.values())
    if left >= 0:
        return pieces
    dropped: set[str] = set()
    for producer in sorted(age, key=lambda producer: (-age[producer], producer)):
        dropped.add(producer)
        left += sizes[producer]
        if left >= 0:
            break
    return _coalesced([Piece(piece.range, _without(piece.sequences, dropped)) for piece in pieces])


def _joined(left: Piece, right: Piece) -> Piece:
    """Join two neighbours; each producer keeps the lower id."""
    return Piece(HashRange(left.range.start, right.range.end), _lower(left.sequences, right.sequences))


def _lower(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {
        producer: min(sequence, other[producer]) for producer, sequence in one.items() if producer in other
    }


def _lost(left: Piece, right: Piece) -> int:
    """Return the number of producers whose ids a join would lower or drop."""
    same = sum(right.sequences.get(producer) == number for producer, number in left.sequences.items())
    return len(left.sequences.keys() | right.sequences.keys()) - same


def _highest(inherited: Mapping[str, int], own: Mapping[str, int]) -> dict[str, int]:
    found = {producer: sequence for producer, sequence in inherited.items() if producer not in own}
    for producer, sequence in own.items():
        found[producer] = max(sequence, inherited.get(producer, UNKNOWN))
    return found


def _without(sequences: Mapping[str, int], dropped: set[str]) -> dict[str, int]:
    return {producer: sequence for producer, sequence in sequences.items() if producer not in dropped}
