"""Slices to Spark partitions, such that the messages of a key are read in one place and in order.

Pure. A lane is a run of the hash space whose slices are read one after the other, older segments first.
Lanes are linked by overlapping hash ranges, never by parent ids: between a segment and its grandchild there
may be a child without messages, which no slice names.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import groupby, pairwise
from math import ceil

from anabranch.model.ranges import HashRange
from anabranch.spark.decide.planner import UNKNOWN_SIZES, Sizes, Slice


@dataclass(frozen=True, slots=True)
class KeyedRun:
    """Slices of one topic to read in this order, keeping only keys whose slot lies in `ranges`."""

    slices: tuple[Slice, ...]
    ranges: tuple[HashRange, ...] | None = None
    """Ascending and disjoint; None keeps everything."""

    def ranges_for(self, part_of: Slice) -> tuple[HashRange, ...] | None:
        """The ranges to filter a slice by; None when all of it belongs to the lane."""
        if self.ranges is None or any(
            part.start <= part_of.range.start and part_of.range.end <= part.end for part in self.ranges
        ):
            return None
        return tuple(part for part in self.ranges if part.overlaps(part_of.range))


Partition = tuple[KeyedRun, ...]
"""Lanes that one Spark task reads one after the other."""


def plan_in_key_order(slices: Iterable[Slice], max_partitions: int, buckets: int = 1) -> list[Partition]:
    """Partitions among which no two hold the same key; inside each, a key's messages are in order.

    `buckets` cuts every lane into so many hash ranges: more tasks, each of which reads the whole lane. What a
    classic topic holds is not cut.
    """
    lanes: list[tuple[float, KeyedRun]] = []
    for _, group in groupby(sorted(slices), key=lambda s: s.topic):
        for part, members in _lanes_of_topic(list(group)):
            cuts = min(buckets, part.width) if all(s.routed for s in members) else 1
            for piece in part.parts(cuts):
                weight = sum(s.rows * _share(piece, s.range) for s in members)
                lanes.append((weight, KeyedRun(tuple(members), (piece,))))
    bins = _pack(lanes, max_partitions)
    return [tuple(_joined(lanes)) for lanes in bins]


def plan_by_position(
    slices: Iterable[Slice],
    *,
    split_bytes: int,
    max_partitions: int | None = None,
    min_partitions: int | None = None,
    max_rows: int | None = None,
    sizes: Sizes = UNKNOWN_SIZES,
) -> list[Partition]:
    """Partitions of about `split_bytes` each, cut anywhere; a key may be in several."""
    given = sorted(slices)
    total = sizes.total(given)
    target = float(split_bytes)
    if min_partitions:
        target = max(1.0, min(target, total / min_partitions))
    pieces = [
        (piece.rows * sizes.of(piece.topic, piece.segment), piece)
        for s in given
        for piece in _cut(s, target, max_rows, sizes)
    ]
    packed: list[list[Slice]] = []
    room, rows = 0.0, 0
    for weight, piece in pieces:
        fits = weight <= room and (max_rows is None or rows + piece.rows <= max_rows)
        if not packed or not fits:
            packed.append([])
            # Rounding must not open one more partition than the target asks for.
            room, rows = target * 1.001, 0
        packed[-1].append(piece)
        room, rows = room - weight, rows + piece.rows
    if max_partitions is not None and len(packed) > max_partitions:
        bins = _pack([(weight, KeyedRun((piece,))) for weight, piece in pieces], max_partitions)
        return [tuple(sorted(lanes, key=lambda lane: lane.slices)) for lanes in bins]
    return [tuple(KeyedRun((piece,)) for piece in group) for group in packed]


def _cut(whole: Slice, target: float, max_rows: int | None, sizes: Sizes) -> list[Slice]:
    """Equal parts of a slice, none above the target."""
    # The tolerance keeps rounding from cutting off a sliver.
    parts = max(1, ceil(whole.rows * sizes.of(whole.topic, whole.segment) / target - 0.001))
    if max_rows is not None:
        parts = max(parts, ceil(whole.rows / max_rows))
    parts = min(parts, whole.rows)
    borders = [whole.lo + whole.rows * index // parts for index in range(parts + 1)]
    return [whole._replace(lo=lo, hi=hi) for lo, hi in pairwise(borders)]


def _lanes_of_topic(slices: Sequence[Slice]) -> list[tuple[HashRange, list[Slice]]]:
    """Runs of the hash space with one newest slice each, and all slices over them in id order."""
    runs = _newest_runs(slices)
    starts = [run.start for run in runs]
    members: list[list[Slice]] = [[] for _ in runs]
    for s in sorted(slices, key=lambda s: s.segment):
        at = max(0, bisect_right(starts, s.range.start) - 1)
        while at < len(runs) and runs[at].start <= s.range.end:
            if runs[at].overlaps(s.range):
                members[at].append(s)
            at += 1
    return list(zip(runs, members, strict=True))


def _newest_runs(slices: Sequence[Slice]) -> list[HashRange]:
    borders = sorted({s.range.start for s in slices} | {s.range.end + 1 for s in slices})
    opening = sorted(slices, key=lambda s: s.range.start, reverse=True)
    open_by_id: list[tuple[int, int]] = []
    runs: list[tuple[int, HashRange]] = []
    for start, after in pairwise(borders):
        while opening and opening[-1].range.start == start:
            s = opening.pop()
            heappush(open_by_id, (-s.segment, s.range.end))
        while open_by_id and open_by_id[0][1] < start:
            heappop(open_by_id)
        if not open_by_id:
            continue
        newest = open_by_id[0][0]
        if runs and runs[-1][0] == newest and runs[-1][1].end + 1 == start:
            runs[-1] = (newest, HashRange(runs[-1][1].start, after - 1))
        else:
            runs.append((newest, HashRange(start, after - 1)))
    return [run for _, run in runs]


def _share(part: HashRange, whole: HashRange) -> float:
    width = min(part.end, whole.end) - max(part.start, whole.start) + 1
    return width / whole.width


def _pack(lanes: Sequence[tuple[float, KeyedRun]], count: int) -> list[list[KeyedRun]]:
    """At most `count` groups of about equal weight: each lane, largest first, goes to the lightest group."""
    groups: list[list[KeyedRun]] = [[] for _ in range(min(count, len(lanes)))]
    lightest = [(0.0, index) for index in range(len(groups))]
    heapify(lightest)
    for weight, lane in sorted(lanes, key=lambda item: -item[0]):
        load, index = lightest[0]
        groups[index].append(lane)
        heapreplace(lightest, (load + weight, index))
    return groups


def _joined(lanes: Sequence[KeyedRun]) -> list[KeyedRun]:
    """Join the lanes of one task that share slices, so that each slice is read once by the task."""
    # Union-find over lanes: two lanes belong together when a slice names both.
    root = list(range(len(lanes)))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    first: dict[Slice, int] = {}
    for index, lane in enumerate(lanes):
        for s in lane.slices:
            root[find(index)] = find(first.setdefault(s, index))
    groups: dict[int, tuple[set[Slice], list[HashRange]]] = {}
    for index, lane in enumerate(lanes):
        slices, ranges = groups.setdefault(find(index), (set(), []))
        slices.update(lane.slices)
        ranges.extend(lane.ranges or ())
    joined = [
        KeyedRun(tuple(sorted(slices)), _neighbours_joined(ranges)) for slices, ranges in groups.values()
    ]
    return sorted(joined, key=lambda lane: lane.slices)


def _neighbours_joined(ranges: Iterable[HashRange]) -> tuple[HashRange, ...]:
    found: list[HashRange] = []
    for part in sorted(ranges):
        if found and found[-1].end + 1 == part.start:
            found[-1] = HashRange(found[-1].start, part.end)
        else:
            found.append(part)
    return tuple(found)
