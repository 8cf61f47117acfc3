"""From slices to Spark partitions, so that one task reads all messages of a key, in order.

Pure. A keyed run is a part of the hash space with its slices in reading order, older segments first. Slices
belong together when their hash ranges overlap; parent ids do not count, because a child without messages may
lie between a segment and its grandchild, and no slice names that child.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import groupby, pairwise
from math import ceil

from anabranch.model.ranges import FULL, HashRange
from anabranch.spark.decide.source.places import entry_borders
from anabranch.spark.decide.source.topology import UNKNOWN_SIZES, Sizes, Slice


@dataclass(frozen=True, slots=True)
class KeyedRun:
    """Slices of one topic in reading order; only keys whose slot lies in `ranges` belong to the run."""

    slices: tuple[Slice, ...]
    ranges: tuple[HashRange, ...] | None = None
    """Ascending and disjoint; None stands for all keys."""

    def ranges_for(self, part_of: Slice) -> tuple[HashRange, ...] | None:
        """Return the ranges to filter a slice by; None when the whole slice belongs to the run."""
        if self.ranges is None or any(
            part.start <= part_of.range.start and part_of.range.end <= part.end for part in self.ranges
        ):
            return None
        return tuple(part for part in self.ranges if part.overlaps(part_of.range))


TASK_ROWS = 200_000
"""From this many rows on a further task gains more than its start costs."""

TASKS_MIN = 2
"""Tasks of a large read unless the user sets a number: any machine has two cores."""

BUCKETS_USUAL = 4
"""Buckets of a new topic. Entries hold one bucket, so more tasks than buckets receive some entries twice."""

PIECES_MAX = 1024

Partition = tuple[KeyedRun, ...]
"""Runs that one Spark task reads one after the other."""


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """The wanted size and number of partitions; None means no limit."""

    split_bytes: int
    max_partitions: int | None = None
    min_partitions: int | None = None
    max_rows: int | None = None


def plan_in_key_order(
    slices: Iterable[Slice], max_partitions: int, buckets: int = 1, min_partitions: int = 1
) -> list[Partition]:
    """Return partitions of which no two hold the same key, with the messages of each key in order.

    `buckets` cuts every run into so many pieces, for more tasks; `min_partitions` cuts the heaviest runs
    until there are so many. A run of one slice is cut by bucket hashes, and brokers send each piece only
    the entries that may belong to it. Pieces of other runs read all entries, so a run that need not be cut
    is not. A run with messages of a classic topic is never cut.
    """
    runs: list[tuple[HashRange, list[Slice]]] = []
    for _, group in groupby(sorted(slices), key=lambda s: s.topic):
        runs += _runs_of_topic(_widened(list(group)))
    cuts = _cuts([(_weight(*run), _pieces_max(*run)) for run in runs], buckets, min_partitions)
    pieces = [
        piece
        for (part, members), count in zip(runs, cuts, strict=True)
        for piece in _pieces(part, members, count)
    ]
    return [tuple(_joined(group)) for group in _pack(pieces, max(max_partitions, min_partitions))]


def _weight(part: HashRange, members: Sequence[Slice]) -> float:
    return sum(s.rows * _share(part, s.range) for s in members)


def tasks_for(rows: int, max_partitions: int | None) -> int:
    """Return how many tasks so many rows get at least, even if they are in one segment."""
    return max(1, min(max_partitions or TASKS_MIN, BUCKETS_USUAL, rows // TASK_ROWS))


def _pieces_max(part: HashRange, members: Sequence[Slice]) -> int:
    """Return into how many pieces a run can be cut; a message of a classic topic may have any key."""
    if not all(s.routed for s in members):
        return 1
    return PIECES_MAX if _is_one_slice(part, members) else part.width


def _is_one_slice(part: HashRange, members: Sequence[Slice]) -> bool:
    """Whether a run is one slice of our brokers that belongs to no other run."""
    return len(members) == 1 and members[0].range == part and members[0].estimate is None


def _pieces(part: HashRange, members: Sequence[Slice], count: int) -> list[tuple[float, KeyedRun]]:
    """Return the pieces of a run with their weights."""
    if count == 1 or not _is_one_slice(part, members):
        return [(_weight(piece, members), KeyedRun(tuple(members), (piece,))) for piece in part.parts(count)]
    slices = [members[0]._replace(bucket_hashes=piece) for piece in FULL.parts(count)]
    return [(_weight(part, members) / count, KeyedRun((piece,), (part,))) for piece in slices]


def _cuts(runs: Sequence[tuple[float, int]], buckets: int, fewest: int) -> list[int]:
    """Return the pieces of each run, given its weight and most pieces: `buckets`, or more up to `fewest`."""
    cuts = [min(buckets, most) for _, most in runs]
    heaviest = [
        (-weight / cuts[index], index) for index, (weight, most) in enumerate(runs) if cuts[index] < most
    ]
    heapify(heaviest)
    total = sum(cuts)
    while total < fewest and heaviest:
        _, index = heaviest[0]
        cuts[index] += 1
        total += 1
        weight, most = runs[index]
        if cuts[index] < most:
            heapreplace(heaviest, (-weight / cuts[index], index))
        else:
            heappop(heaviest)
    return cuts


def plan_by_position(
    slices: Iterable[Slice], limits: PartitionLimits, sizes: Sizes = UNKNOWN_SIZES
) -> list[Partition]:
    """Return partitions of about `limits.split_bytes` each, cut anywhere; a key may be in several."""
    given = sorted(slices)
    target = float(limits.split_bytes)
    if limits.min_partitions:
        target = max(1.0, min(target, sizes.total(given) / limits.min_partitions))
    pieces = [
        (piece.rows * sizes.of(piece.topic, piece.segment), piece)
        for whole in given
        for piece in _cut(whole, target, limits.max_rows, sizes)
    ]
    packed = _fill(pieces, target, limits.max_rows)
    if limits.max_partitions is not None and len(packed) > limits.max_partitions:
        bins = _pack([(weight, KeyedRun((piece,))) for weight, piece in pieces], limits.max_partitions)
        return [tuple(sorted(runs, key=lambda run: run.slices)) for runs in bins]
    return [tuple(KeyedRun((piece,)) for piece in group) for group in packed]


def _fill(pieces: Iterable[tuple[float, Slice]], target: float, max_rows: int | None) -> list[list[Slice]]:
    """Put pieces into groups in their order; a group is full at the target weight or at `max_rows`."""
    packed: list[list[Slice]] = []
    room, rows = 0.0, 0
    for weight, piece in pieces:
        fits = weight <= room and (max_rows is None or rows + piece.rows <= max_rows)
        if not packed or not fits:
            packed.append([])
            # The tolerance keeps rounding from opening one more partition.
            room, rows = target * 1.001, 0
        packed[-1].append(piece)
        room, rows = room - weight, rows + piece.rows
    return packed


def _cut(whole: Slice, target: float, max_rows: int | None, sizes: Sizes) -> list[Slice]:
    """Cut a slice into equal parts, none above the target."""
    # The tolerance keeps rounding from cutting off a sliver.
    parts = max(1, ceil(whole.rows * sizes.of(whole.topic, whole.segment) / target - 0.001))
    if max_rows is not None:
        parts = max(parts, ceil(whole.rows / max_rows))
    parts = min(parts, whole.rows)
    if whole.estimate is not None:
        borders = entry_borders(whole.lo, whole.hi, parts)
        share = max(1, whole.estimate // (len(borders) - 1))
        return [whole._replace(lo=lo, hi=hi, estimate=share) for lo, hi in pairwise(borders)]
    borders = [whole.lo + whole.rows * index // parts for index in range(parts + 1)]
    return [whole._replace(lo=lo, hi=hi) for lo, hi in pairwise(borders)]


def _widened(slices: list[Slice]) -> list[Slice]:
    """Give slices of Pulsar that are connected by their ranges one range, so that one task reads them all.

    Producers there do not agree on the half of the hash that picks a segment, so no filter by hash would
    keep the messages of a key together. Any hash serves to cut such a run, because all its slices are cut
    alike.
    """
    if all(s.estimate is None for s in slices):
        return slices
    joined: list[HashRange] = []
    for part in sorted(s.range for s in slices):
        if joined and part.start <= joined[-1].end:
            joined[-1] = HashRange(joined[-1].start, max(joined[-1].end, part.end))
        else:
            joined.append(part)
    return [s._replace(range=next(part for part in joined if part.overlaps(s.range))) for s in slices]


def _runs_of_topic(slices: Sequence[Slice]) -> list[tuple[HashRange, list[Slice]]]:
    """Return parts of the hash space with one newest slice each, and all slices over them in id order."""
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
    return (min(part.end, whole.end) - max(part.start, whole.start) + 1) / whole.width


def _pack(runs: Sequence[tuple[float, KeyedRun]], count: int) -> list[list[KeyedRun]]:
    """Make at most `count` groups of about equal weight: each run, largest first, joins the lightest."""
    groups: list[list[KeyedRun]] = [[] for _ in range(min(count, len(runs)))]
    lightest = [(0.0, index) for index in range(len(groups))]
    for weight, run in sorted(runs, key=lambda item: -item[0]):
        load, index = lightest[0]
        groups[index].append(run)
        heapreplace(lightest, (load + weight, index))
    return groups


def _joined(runs: Sequence[KeyedRun]) -> list[KeyedRun]:
    """Join the runs of one task that share slices, so that the task reads each slice once."""
    # Union-find: two runs belong together when they share a slice.
    root = list(range(len(runs)))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    first: dict[Slice, int] = {}
    for index, run in enumerate(runs):
        for s in run.slices:
            root[find(index)] = find(first.setdefault(s, index))
    groups: dict[int, tuple[set[Slice], list[HashRange]]] = {}
    for index, run in enumerate(runs):
        slices, ranges = groups.setdefault(find(index), (set(), []))
        slices.update(run.slices)
        ranges.extend(run.ranges or ())
    joined = [
        KeyedRun(tuple(sorted(slices)), _neighbours_joined(ranges)) for slices, ranges in groups.values()
    ]
    return sorted(joined, key=lambda run: run.slices)


def _neighbours_joined(ranges: Iterable[HashRange]) -> tuple[HashRange, ...]:
    found: list[HashRange] = []
    for part in sorted(ranges):
        if found and found[-1].end + 1 == part.start:
            found[-1] = HashRange(found[-1].start, part.end)
        else:
            found.append(part)
    return tuple(found)
