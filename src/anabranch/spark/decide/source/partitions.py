"""Turns slices into Spark partitions in which one task reads all messages of a key, in order. Pure.

A strand is a part of the hash space together with its slices in reading order, older segments first. Slices
belong to one strand when their hash ranges overlap. Parent ids would not do: a child without messages may lie
between a segment and its grandchild, and then no slice names that child.

Example: a micro-batch reads 100 messages of segment 0, which spans the whole ring, 60 of its child 1 (slots
0000-7fff) and 20 of its child 2 (8000-ffff). There are two strands: [0, 1] for the lower half with a weight
of 50 + 60, and [0, 2] for the upper half with 50 + 20. Two tasks read one each. Both read segment 0, and each
keeps only the keys of its own half, so that the messages of a key in segment 0 come before those in its
child.
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
class KeyStrand:
    """Slices of one topic in reading order; only keys whose slot lies in `ranges` belong to the strand."""

    slices: tuple[Slice, ...]
    ranges: tuple[HashRange, ...] | None = None
    """Ascending and disjoint; None means all keys."""

    def ranges_for(self, part_of: Slice) -> tuple[HashRange, ...] | None:
        """Return the ranges to filter a slice by, or None if the whole slice belongs to the strand."""
        if self.ranges is None or any(
            part.start <= part_of.range.start and part_of.range.end <= part.end for part in self.ranges
        ):
            return None
        return tuple(part for part in self.ranges if part.overlaps(part_of.range))


TASK_ROWS = 200_000
"""A further task pays off from this many rows; below it, starting the task costs more than it saves."""

TASKS_MIN = 2
"""Tasks of a large read if the user sets no number: any machine has two cores."""

BUCKETS_USUAL = 4
"""Buckets of a new topic. An entry holds one bucket, so with more tasks some entries are sent twice."""

PIECES_MAX = 1024

Partition = tuple[KeyStrand, ...]
"""The strands that one Spark task reads one after the other."""


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

    `buckets` is the number of pieces that every strand is cut into, for more tasks. `min_partitions` cuts the
    heaviest strands further until there are that many. A strand with messages of a classic topic is never
    cut, because a partition may hold any key.
    """
    # The pieces of a strand with one slice are cut by bucket hash, the low half of a key's hash: an entry has
    # the hashes of one bucket, so brokers can send each task only the entries that may concern it. The pieces
    # of a longer strand are cut by slot, and each of its tasks reads all its entries and drops most rows. So
    # such a strand is cut only if there would be too few tasks otherwise.
    strands: list[tuple[HashRange, list[Slice]]] = []
    for _, group in groupby(sorted(slices), key=lambda s: s.topic):
        strands += _strands_of_topic(_widened(list(group)))
    cuts = _cuts([(_weight(*strand), _pieces_max(*strand)) for strand in strands], buckets, min_partitions)
    pieces = [
        piece
        for (part, members), count in zip(strands, cuts, strict=True)
        for piece in _pieces(part, members, count)
    ]
    return [tuple(_joined(group)) for group in _pack(pieces, max(max_partitions, min_partitions))]


def _weight(part: HashRange, members: Sequence[Slice]) -> float:
    return sum(s.rows * _share(part, s.range) for s in members)


def tasks_for(rows: int, max_partitions: int | None) -> int:
    """Return the least number of tasks for this many rows, even if they are all in one segment."""
    return max(1, min(max_partitions or TASKS_MIN, BUCKETS_USUAL, rows // TASK_ROWS))


def _pieces_max(part: HashRange, members: Sequence[Slice]) -> int:
    """Return into how many pieces a strand can be cut."""
    if not all(s.routed for s in members):
        return 1
    return PIECES_MAX if _is_one_slice(part, members) else part.width


def _is_one_slice(part: HashRange, members: Sequence[Slice]) -> bool:
    """Whether a strand is a single slice of an Anabranch broker that belongs to no other strand."""
    return len(members) == 1 and members[0].range == part and members[0].estimate is None


def _pieces(part: HashRange, members: Sequence[Slice], count: int) -> list[tuple[float, KeyStrand]]:
    """Return the pieces of a strand with their weights."""
    if count == 1 or not _is_one_slice(part, members):
        return [(_weight(piece, members), KeyStrand(tuple(members), (piece,))) for piece in part.parts(count)]
    slices = [members[0]._replace(bucket_hashes=piece) for piece in FULL.parts(count)]
    return [(_weight(part, members) / count, KeyStrand((piece,), (part,))) for piece in slices]


def _cuts(strands: Sequence[tuple[float, int]], buckets: int, fewest: int) -> list[int]:
    """Return the number of pieces of each strand, given its weight and the most pieces it allows.

    Each strand gets `buckets` pieces; then the heaviest ones get more until there are `fewest` in all.
    """
    cuts = [min(buckets, most) for _, most in strands]
    heaviest = [
        (-weight / cuts[index], index) for index, (weight, most) in enumerate(strands) if cuts[index] < most
    ]
    heapify(heaviest)
    total = sum(cuts)
    while total < fewest and heaviest:
        _, index = heaviest[0]
        cuts[index] += 1
        total += 1
        weight, most = strands[index]
        if cuts[index] < most:
            heapreplace(heaviest, (-weight / cuts[index], index))
        else:
            heappop(heaviest)
    return cuts


def plan_by_position(
    slices: Iterable[Slice], limits: PartitionLimits, sizes: Sizes = UNKNOWN_SIZES
) -> list[Partition]:
    """Return partitions of about `limits.split_bytes` each, cut anywhere, so a key may be in several."""
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
        bins = _pack([(weight, KeyStrand((piece,))) for weight, piece in pieces], limits.max_partitions)
        return [tuple(sorted(strands, key=lambda strand: strand.slices)) for strands in bins]
    return [tuple(KeyStrand((piece,)) for piece in group) for group in packed]


def _fill(pieces: Iterable[tuple[float, Slice]], target: float, max_rows: int | None) -> list[list[Slice]]:
    """Group consecutive pieces; a group is full at the target weight or at `max_rows`."""
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
    """Cut a slice into equal parts that do not exceed the target."""
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
    """Give Pulsar's slices one common range if their ranges are connected, so that one task reads them all.

    Pulsar's producers do not agree on which half of the hash picks a segment, so no filter by hash would keep
    the messages of a key together. Such a strand may still be cut by any hash, because all its slices are cut
    in the same way.
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


def _strands_of_topic(slices: Sequence[Slice]) -> list[tuple[HashRange, list[Slice]]]:
    """Return parts of the hash space with one newest slice each, and all slices that overlap them, by id."""
    strands = _newest_ranges(slices)
    starts = [strand.start for strand in strands]
    members: list[list[Slice]] = [[] for _ in strands]
    for s in sorted(slices, key=lambda s: s.segment):
        at = max(0, bisect_right(starts, s.range.start) - 1)
        while at < len(strands) and strands[at].start <= s.range.end:
            if strands[at].overlaps(s.range):
                members[at].append(s)
            at += 1
    return list(zip(strands, members, strict=True))


def _newest_ranges(slices: Sequence[Slice]) -> list[HashRange]:
    # A sweep over the borders of all ranges. The heap holds the slices that cover the present part, the
    # newest on top; slices that have ended are dropped only when they reach the top.
    borders = sorted({s.range.start for s in slices} | {s.range.end + 1 for s in slices})
    opening = sorted(slices, key=lambda s: s.range.start, reverse=True)
    open_by_id: list[tuple[int, int]] = []
    strands: list[tuple[int, HashRange]] = []
    for start, after in pairwise(borders):
        while opening and opening[-1].range.start == start:
            s = opening.pop()
            heappush(open_by_id, (-s.segment, s.range.end))
        while open_by_id and open_by_id[0][1] < start:
            heappop(open_by_id)
        if not open_by_id:
            continue
        newest = open_by_id[0][0]
        if strands and strands[-1][0] == newest and strands[-1][1].end + 1 == start:
            strands[-1] = (newest, HashRange(strands[-1][1].start, after - 1))
        else:
            strands.append((newest, HashRange(start, after - 1)))
    return [strand for _, strand in strands]


def _share(part: HashRange, whole: HashRange) -> float:
    return (min(part.end, whole.end) - max(part.start, whole.start) + 1) / whole.width


def _pack(strands: Sequence[tuple[float, KeyStrand]], count: int) -> list[list[KeyStrand]]:
    """Return at most `count` groups of about equal weight.

    The strands are taken from heavy to light, and each joins the group that is lightest so far.
    """
    groups: list[list[KeyStrand]] = [[] for _ in range(min(count, len(strands)))]
    lightest = [(0.0, index) for index in range(len(groups))]
    for weight, strand in sorted(strands, key=lambda item: -item[0]):
        load, index = lightest[0]
        groups[index].append(strand)
        heapreplace(lightest, (load + weight, index))
    return groups


def _joined(strands: Sequence[KeyStrand]) -> list[KeyStrand]:
    """Join the strands of one task that share slices, so that the task reads each slice once."""
    # Union-find: two strands belong together when they share a slice.
    root = list(range(len(strands)))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    first: dict[Slice, int] = {}
    for index, strand in enumerate(strands):
        for s in strand.slices:
            root[find(index)] = find(first.setdefault(s, index))
    groups: dict[int, tuple[set[Slice], list[HashRange]]] = {}
    for index, strand in enumerate(strands):
        slices, ranges = groups.setdefault(find(index), (set(), []))
        slices.update(strand.slices)
        ranges.extend(strand.ranges or ())
    joined = [
        KeyStrand(tuple(sorted(slices)), _neighbours_joined(ranges)) for slices, ranges in groups.values()
    ]
    return sorted(joined, key=lambda strand: strand.slices)


def _neighbours_joined(ranges: Iterable[HashRange]) -> tuple[HashRange, ...]:
    found: list[HashRange] = []
    for part in sorted(ranges):
        if found and found[-1].end + 1 == part.start:
            found[-1] = HashRange(found[-1].start, part.end)
        else:
            found.append(part)
    return tuple(found)
