"""Which slots of sealed segments an ordered subscription has drained, and which slots of children that opens.

A slot here is a value of the bucket half of a key's hash. A split or merge keeps that half, so a segment and
its descendants have the same slots, even if their bucket boundaries differ. This module knows nothing of
logs, consumers or how drains are reported.

Example: segment 1 was split into 2 and 3, which have two buckets each (first slots 0 and 0x8000). While slots
0 to 0x7fff of segment 1 are drained, the same slots of 2 and 3 are open, so the first bucket of each child
may be read. The second bucket stays closed, because its older messages are still in segment 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout, Segment
from anabranch.model.ranges import FULL, HashRange

Ranges = tuple[HashRange, ...]
"""A set of slots: ascending ranges that neither overlap nor touch."""

Parts = Mapping[int, Ranges]
"""Drained slots of the segments that are drained in part."""

ALL: Ranges = (FULL,)
NO_PARTS: Parts = MappingProxyType({})


def union(ranges: Iterable[HashRange]) -> Ranges:
    """Return the slots of all these ranges; they may overlap and have any order."""
    found: list[HashRange] = []
    for part in sorted(ranges):
        if found and part.start <= found[-1].end + 1:
            found[-1] = HashRange(found[-1].start, max(found[-1].end, part.end))
        else:
            found.append(part)
    return tuple(found)


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """Return the slots in both sets."""
    if one == ALL:
        return other
    if other == ALL:
        return one
    found = []
    at = to = 0
    while at < len(one) and to < len(other):
        start, end = max(one[at].start, other[to].start), min(one[at].end, other[to].end)
        if start <= end:
            found.append(HashRange(start, end))
        if one[at].end < other[to].end:
            at += 1
        else:
            to += 1
    return tuple(found)


def difference(one: Ranges, other: Ranges) -> Ranges:
    """Return the slots of the first set that are not in the second."""
    found = []
    for part in one:
        start = part.start
        for cut in other:
            if cut.end < start or cut.start > part.end:
                continue
            if cut.start > start:
                found.append(HashRange(start, cut.start - 1))
            start = cut.end + 1
        if start <= part.end:
            found.append(HashRange(start, part.end))
    return tuple(found)


def covers(ranges: Ranges, part: HashRange) -> bool:
    """Return whether every slot of `part` is in the set."""
    return any(found.start <= part.start and part.end <= found.end for found in ranges)


def open_slots(layout: Layout, drained: frozenset[int], parts: Parts = NO_PARTS) -> dict[int, Ranges]:
    """Return the slots of each segment that all its ancestors have drained; pruned ancestors are ignored."""
    found: dict[int, Ranges] = {}
    for id_ in sorted(layout.segments):  # Parents have lower ids, so their slots are already known.
        slots = ALL
        for parent in layout.segments[id_].parents:
            passed = ALL if parent in drained else parts.get(parent, ())
            slots = intersection(slots, intersection(found[parent], passed))
        found[id_] = slots
    return found


def open_buckets(segment: Segment, slots: Ranges) -> Ranges:
    """Return the buckets whose slots are all open: an entry may belong to any slot of its bucket."""
    if slots == ALL:
        return ALL
    return union(bucket for bucket in bucket_ranges(segment.bucket_splits) if covers(slots, bucket))
