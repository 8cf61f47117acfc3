"""Cuts a range so that each part takes an equal share of its traffic.

Traffic is given as cells: ranges with a weight, spread evenly inside each. The cuts serve splits of segments
and boundaries of buckets alike; this module knows neither.

Example: slots 0 to 9 of the range 0-99 carry a weight of 60 and the others 30. A cut into two parts is made
at slot 8, and one into three at slots 5 and 10, so that each part carries 30. If slot 50 alone carries 80% of
the weight, three parts are cut at 50 and 51: the hot slot gets a part of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf

from anabranch.errors import LayoutError, counted
from anabranch.model.ranges import FULL, LAST_SLOT, HashRange

Cells = Sequence[tuple[HashRange, float]]


def balanced_points(whole: HashRange, cells: Cells, count: int) -> tuple[int, ...]:
    """Return the first slots of parts 1 to count - 1, which share the weight as evenly as slots allow.

    Without any weight the parts are equally wide. There are always count - 1 points. A slot that weighs more
    than an even share becomes a part of its own, and the other points share the rest of the weight.
    """
    if not 1 <= count <= whole.width:
        raise LayoutError(
            f"{whole} has {counted(whole.width, 'slot')} and cannot be cut into {counted(count, 'part')}"
        )
    curve = _Curve(whole, cells)
    edges = _edges(whole, curve, count)
    found: list[int] = []
    between = whole.split(edges) if edges else (whole,)
    for part, parts in zip(between, _apportion(between, curve, count), strict=True):
        found += _even_points(part, curve, parts)
        found.append(part.end + 1)
    return tuple(found[:-1])


def _edges(whole: HashRange, curve: _Curve, count: int) -> list[int]:
    """Return both edges of each slot heavier than an even share, heaviest first while points last."""
    heavy = sorted(
        (-weight, piece.start)
        for piece, weight in curve.pieces
        if piece.width == 1 and weight * count > curve.total
    )
    edges: set[int] = set()
    for _, slot in heavy:
        more = edges | {edge for edge in (slot, slot + 1) if whole.start < edge <= whole.end}
        if len(more) >= count:
            break
        edges = more
    return sorted(edges)


def _apportion(parts: Sequence[HashRange], curve: _Curve, count: int) -> list[int]:
    """Into how many parts each part is cut, so that `count` are left and the heaviest is cut first."""
    given = [1] * len(parts)
    weights = [curve.between(part) for part in parts]

    def heaviest(index: int) -> tuple[float, float, int]:
        share = given[index]
        return -weights[index] / share, -parts[index].width / share, index

    for _ in range(count - len(parts)):
        given[min((at for at, part in enumerate(parts) if given[at] < part.width), key=heaviest)] += 1
    return given


def _even_points(part: HashRange, curve: _Curve, count: int) -> tuple[int, ...]:
    low, weight = curve.below(part.start), curve.between(part)
    if not weight:
        return tuple(cut.start for cut in part.parts(count)[1:])
    return _spread(part, [curve.slot_at(low + weight * place / count) for place in range(1, count)])


def balanced_bucket_splits(cells: Cells, count: int) -> tuple[int, ...]:
    """Return the first slots of buckets 1 to count - 1 that share the weight as evenly as slots allow."""
    # The first bucket has two slots or more, so no point may lie at slot 1.
    return _spread(HashRange(1, LAST_SLOT), list(balanced_points(FULL, cells, count)))


def largest_share(whole: HashRange, cells: Cells, points: Sequence[int], *, divisible: bool = False) -> float:
    """Return the share of the weight in the heaviest part after a cut; 1 if the cut achieves nothing.

    `divisible` ignores parts of a single slot, which no further cut can relieve.
    """
    curve = _Curve(whole, cells)
    parts = whole.split(points) if points else (whole,)
    if divisible:
        parts = tuple(part for part in parts if part.width > 1)
    if not parts:
        return 0.0
    if not curve.total:
        return max(part.width for part in parts) / whole.width
    return max(map(curve.between, parts)) / curve.total


class _Curve:
    """The weight below each slot of a range."""

    def __init__(self, whole: HashRange, cells: Cells) -> None:
        self.pieces = pieces = _pieces(whole, cells)
        self._starts = [piece.start for piece, _ in pieces]
        self._sums = [0.0, *accumulate(weight for _, weight in pieces)]
        self.total = self._sums[-1]

    def below(self, slot: int) -> float:
        index = bisect_right(self._starts, slot) - 1
        if index < 0:
            return 0.0
        piece, weight = self.pieces[index]
        return self._sums[index] + weight * min(1.0, (slot - piece.start) / piece.width)

    def between(self, part: HashRange) -> float:
        return self.below(part.end + 1) - self.below(part.start)

    def slot_at(self, goal: float) -> int:
        """Return the slot whose weight below is nearest to the goal."""
        index = min(max(bisect_left(self._sums, goal) - 1, 0), len(self.pieces) - 1)
        piece, weight = self.pieces[index]
        return piece.start + round(piece.width * (goal - self._sums[index]) / weight)


def _pieces(whole: HashRange, cells: Cells) -> list[tuple[HashRange, float]]:
    """Return the cells cut to the range, without overlaps; weights of overlapping cells are added."""
    waiting = deque(
        sorted((cell, weight) for cell, weight in cells if 0 < weight < inf and cell.overlaps(whole))
    )
    edges = {edge for cell, _ in waiting for edge in (cell.start, cell.end + 1)}
    bounds = sorted({whole.start, whole.end + 1} | {edge for edge in edges if edge in whole})
    over: list[tuple[HashRange, float]] = []
    found = []
    for start, after in pairwise(bounds):
        while waiting and waiting[0][0].start <= start:
            over.append(waiting.popleft())
        over = [(cell, weight) for cell, weight in over if cell.end >= start]
        if over:
            density = sum(weight / cell.width for cell, weight in over)
            found.append((HashRange(start, after - 1), density * (after - start)))
    return found


def _spread(whole: HashRange, points: list[int]) -> tuple[int, ...]:
    """Move points apart until they ascend and every part has at least one slot."""
    low = whole.start
    for index, point in enumerate(points):
        low = points[index] = max(point, low + 1)
    high = whole.end + 1
    for index in range(len(points) - 1, -1, -1):
        high = points[index] = min(points[index], high - 1)
    return tuple(points)
