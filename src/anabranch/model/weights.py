"""Cuts a range so that each part takes an equal share of its traffic.

Traffic is given as cells: ranges with a weight, spread evenly inside each. The cuts serve splits of segments
and boundaries of buckets alike; this module knows neither.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf

from anabranch.errors import LayoutError
from anabranch.model.ranges import HashRange

Cells = Sequence[tuple[HashRange, float]]


def balanced_points(whole: HashRange, cells: Cells, count: int) -> tuple[int, ...]:
    """First slots of parts 1 to count - 1 that share the weight of the cells as evenly as slots allow.

    Without any weight the parts are equally wide. There are always count - 1 points; points that would fall
    on one hot slot are moved next to it.
    """
    if not 1 <= count <= whole.width:
        raise LayoutError(f"{whole} has {whole.width} slots and cannot be cut into {count} parts")
    curve = _Curve(whole, cells)
    if not curve.total:
        return tuple(part.start for part in whole.parts(count)[1:])
    return _spread(whole, [curve.slot_at(curve.total * place / count) for place in range(1, count)])


def largest_share(whole: HashRange, cells: Cells, points: Sequence[int]) -> float:
    """The share of the weight in the heaviest part after a cut; 1 if the cut gains nothing."""
    curve = _Curve(whole, cells)
    parts = whole.split(points) if points else (whole,)
    if not curve.total:
        return max(part.width for part in parts) / whole.width
    return max(curve.below(part.end + 1) - curve.below(part.start) for part in parts) / curve.total


class _Curve:
    """The weight below each slot of a range."""

    def __init__(self, whole: HashRange, cells: Cells) -> None:
        pieces = _pieces(whole, cells)
        self._starts = [piece.start for piece, _ in pieces]
        self._pieces = pieces
        self._sums = [0.0, *accumulate(weight for _, weight in pieces)]
        self.total = self._sums[-1]

    def below(self, slot: int) -> float:
        index = bisect_right(self._starts, slot) - 1
        if index < 0:
            return 0.0
        piece, weight = self._pieces[index]
        return self._sums[index] + weight * min(1.0, (slot - piece.start) / piece.width)

    def slot_at(self, goal: float) -> int:
        """The slot whose weight below is nearest to the goal."""
        index = min(max(bisect_left(self._sums, goal) - 1, 0), len(self._pieces) - 1)
        piece, weight = self._pieces[index]
        return piece.start + round(piece.width * (goal - self._sums[index]) / weight)


def _pieces(whole: HashRange, cells: Cells) -> list[tuple[HashRange, float]]:
    """The cells cut to the range, without overlaps; weights of overlapping cells are added."""
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
