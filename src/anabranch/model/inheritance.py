"""What a segment learns of producers' sequence ids from the segments it took over from.

A segment remembers the highest sequence id it stored per producer. Its successors inherit that, so that a
message sent again after a seal is recognised. A merged segment follows several others, which have seen
different ids of the same producer; so what is inherited is kept in *pieces* of the ring, and a message is
judged by the piece its key falls into. Where that is not known it must be a repetition in every piece.

One direction is safe: too low a number stores a message twice, too high a number loses one. Everything that
is forgotten or joined here, to keep the size bounded, goes the safe way. Knows nothing of storage or wire.
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
"""Below every sequence id: nothing is known of the producer."""

PIECES_MAX = 32
"""Pieces that a segment inherits; neighbours are joined beyond."""

BYTES_MAX = 512 * 1024
"""What all pieces take together, about, since they travel; producers longest unused are forgotten beyond."""

_SEQUENCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Piece:
    """Highest stored sequence id per producer, for messages whose key falls into the range."""

    range: HashRange
    sequences: Mapping[str, int]
    """Producers in the order of their last use, the latest one last."""


Pieces = tuple[Piece, ...]
"""In the order of their ranges, without overlaps; of what lies between them nothing is known."""


def handed_on(
    own_range: HashRange,
    own: Mapping[str, int],
    inherited: Iterable[Piece],
    *,
    bytes_max: int = BYTES_MAX,
) -> Pieces:
    """What the successors of a segment are told: its own sequence ids hold all over its range.

    A producer's ids rise on a segment, so below the last one nothing of it is missing there, in any piece.
    """
    pieces = [Piece(piece.range, _highest(piece.sequences, own)) for piece in _filled(inherited, own_range)]
    return tuple(_lightened(_coalesced(pieces), bytes_max))


def inherit(
    child: HashRange,
    told: Iterable[Piece],
    *,
    pieces_max: int = PIECES_MAX,
    bytes_max: int = BYTES_MAX,
) -> Pieces:
    """What a new segment is told by all that it follows; empty when that is nothing."""
    pieces = _lightened(_fewer(_coalesced(_filled(told, child)), pieces_max), bytes_max)
    return tuple(pieces) if any(piece.sequences for piece in pieces) else ()


class Known:
    """What is inherited of one producer, ready to judge its messages."""

    __slots__ = ("_ends", "_sequences", "_starts", "highest", "lowest")

    def __init__(self, pieces: Sequence[Piece], producer: str) -> None:
        self._starts = [piece.range.start for piece in pieces]
        self._sequences = [piece.sequences.get(producer, UNKNOWN) for piece in pieces]
        self._ends = [piece.range.end for piece in pieces]
        gapless = all(left.range.touches(right.range) for left, right in pairwise(pieces))
        self.highest = max(self._sequences, default=UNKNOWN)
        self.lowest = min(self._sequences, default=UNKNOWN) if gapless else UNKNOWN

    def is_duplicate(self, sequence: int, slot: int | None) -> bool:
        """Whether a message was stored before; `slot` is that of its key, None when it may be any."""
        if slot is None:
            return sequence <= self.lowest
        at = bisect_right(self._starts, slot) - 1
        return at >= 0 and slot <= self._ends[at] and sequence <= self._sequences[at]


def _filled(pieces: Iterable[Piece], whole: HashRange) -> list[Piece]:
    """The pieces cut to a range: empty ones where nothing is known, and what all say where several overlap.

    Only classic topics overlap, whose keys are spread over the ring: any of them may hold a message or not.
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
    """The pieces without the producers longest unused, as far as those do not fit."""
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
    """Two neighbours as one: of each producer what holds in both."""
    return Piece(HashRange(left.range.start, right.range.end), _lower(left.sequences, right.sequences))


def _lower(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {
        producer: min(sequence, other[producer]) for producer, sequence in one.items() if producer in other
    }


def _lost(left: Piece, right: Piece) -> int:
    """How many producers would be known less well if the two were joined."""
    same = sum(right.sequences.get(producer) == number for producer, number in left.sequences.items())
    return len(left.sequences.keys() | right.sequences.keys()) - same


def _highest(inherited: Mapping[str, int], own: Mapping[str, int]) -> dict[str, int]:
    found = {producer: sequence for producer, sequence in inherited.items() if producer not in own}
    for producer, sequence in own.items():
        found[producer] = max(sequence, inherited.get(producer, UNKNOWN))
    return found


def _without(sequences: Mapping[str, int], dropped: set[str]) -> dict[str, int]:
    return {producer: sequence for producer, sequence in sequences.items() if producer not in dropped}
