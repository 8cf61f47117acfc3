"""Where to cut a range so that each part takes an equal share of its traffic.

Traffic is given as cells: ranges with a weight, spread evenly inside each. The same cuts serve the segments
of a split and the buckets of a rebucket; this module knows neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.errors import LayoutError
from anabranch.model.ranges import HashRange

Cells = Sequence[tuple[HashRange, float]]


def balanced_points(whole: HashRange, cells: Cells, count: int) -> tuple[int, ...]:
    """First slots of parts 1 to count - 1 that share the weight of the cells as evenly as slots allow.

    Without any weight the parts are equally wide. There are always count - 1 points: those that would fall
    on one hot slot stand around it.
    """
    if not 1 <= count <= whole.width:
        raise LayoutError(f"{whole} has {whole.width} slots and cannot be cut into {count} parts")
    inside = _inside(whole, cells)
    total = sum(weight for _, weight in inside)
    if not total:
        return tuple(part.start for part in whole.parts(count)[1:])
    points = []
    passed = 0.0
    index = 0
    for place in range(1, count):
        goal = total * place / count
        while index < len(inside) - 1 and passed + inside[index][1] < goal:
            passed += inside[index][1]
            index += 1
        cell, weight = inside[index]
        points.append(cell.start + round(cell.width * (goal - passed) / weight) if weight else cell.start)
    return _spread(whole, points)


def largest_share(whole: HashRange, cells: Cells, points: Sequence[int]) -> float:
    """The share of the weight that the heaviest part takes after a cut; 1 when nothing is gained."""
    inside = _inside(whole, cells)
    total = sum(weight for _, weight in inside)
    parts = whole.split(points) if points else (whole,)
    if not total:
        return max(part.width for part in parts) / whole.width
    return max(sum(weight for _, weight in _inside(part, inside)) for part in parts) / total


def _inside(whole: HashRange, cells: Cells) -> list[tuple[HashRange, float]]:
    """The cells cut to the range, in order; weight is cut with the width."""
    found = []
    for cell, weight in sorted(cells, key=lambda item: item[0]):
        if weight > 0 and cell.overlaps(whole):
            part = HashRange(max(cell.start, whole.start), min(cell.end, whole.end))
            found.append((part, weight * part.width / cell.width))
    return found


def _spread(whole: HashRange, points: list[int]) -> tuple[int, ...]:
    """Push points apart until they ascend strictly and leave every part at least one slot."""
    low = whole.start
    for index, point in enumerate(points):
        low = points[index] = max(point, low + 1)
    high = whole.end + 1
    for index in range(len(points) - 1, -1, -1):
        high = points[index] = min(points[index], high - 1)
    return tuple(points)
