"""Decides which consumer of an ordered subscription reads which segments.

`assign` is a pure function. A consumer keeps its segments as long as the counts stay even, a child goes to
the reader of its parent, and the other segments are dealt out by load. A segment that opens bucket by bucket
moves no consumer. This module knows nothing of connections, grace periods or how an assignment reaches its
consumer.

Example: consumers a and b read segments 0 and 1. Segment 1 is split into 2 and 3. Until segment 1 is drained,
nothing changes: b still reads 1, and no consumer reads 2 or 3, because a newer message of a key must not
overtake an older one. Once 1 is drained, b gets both children and a keeps 0. If instead a third consumer c
joins while 0 and 1 have four buckets each, c shares segment 0 with a by buckets, and b is not disturbed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from anabranch.model.drains import ALL, NO_PARTS, Parts, Ranges, open_buckets, open_slots
from anabranch.model.layout import Layout, Segment
from anabranch.model.ranges import HashRange
from anabranch.model.sharing import Readers, keep_readers, readers_per_segment

T = TypeVar("T")

UNCOUNTED: Final = -1

_NOTHING: Mapping[str, tuple[Assigned, ...]] = MappingProxyType({})
_NO_LOAD: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Assigned:
    """A segment given to a consumer, either exclusively or shared by buckets.

    Consumers read a segment by buckets when several share it, and while only some of its buckets are open.
    Then they acknowledge single entries, so that no acknowledgement covers an entry of a closed bucket.
    """

    segment: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class AssignedSegment:
    """A segment to read; with bucket ranges, consumers share the segment by these buckets.

    A member of a stream group gets all buckets, a member of a checkpoint group those that it reads itself.
    """

    segment_id: int
    range: HashRange
    topic: str
    bucket_ranges: tuple[HashRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """All segments that one consumer reads, as the leader of the topic sends them."""

    epoch: int
    generation: int
    """Rises with every change of the segments; UNCOUNTED from a broker that does not count generations."""
    segments: tuple[AssignedSegment, ...] = ()
    positions: bytes = b""
    """In a checkpoint group: a checkpoint with all positions of the group, in bytes."""
    leaving: tuple[tuple[int, tuple[HashRange, ...]], ...] = ()
    """In a checkpoint group: slots to read no further; another member gets them after the next commit."""
    awaits: bool = False
    """In a checkpoint group: whether other members have to commit before slots can move."""

    def replaces(self, other: Assignment | None) -> bool:
        """Return whether this assignment may replace `other`.

        Without generations the layout epoch decides.
        """
        if other is None:
            return True
        if UNCOUNTED not in (self.generation, other.generation):
            return self.generation >= other.generation
        return self.epoch >= other.epoch


def _ready(layout: Layout, drained: frozenset[int], parts: Parts) -> list[tuple[Segment, Ranges]]:
    """Return the segments that may be read now, by range, each with its open buckets.

    A segment is ready when all its ancestors in the layout have drained one of its buckets, and it is active
    or not drained itself.
    """
    found = []
    for id_, slots in open_slots(layout, drained, parts).items():
        segment = layout.segments[id_]
        buckets = open_buckets(segment, slots)
        if buckets and (segment.active or id_ not in drained):
            found.append((segment, buckets))
    return sorted(found, key=lambda pair: (pair[0].range, pair[0].id))


def assign(
    layout: Layout,
    consumers: Sequence[str],
    drained: frozenset[int],
    previous: Mapping[str, tuple[Assigned, ...]] = _NOTHING,
    load: Mapping[int, float] = _NO_LOAD,
    *,
    share: bool = True,
    parts: Parts = NO_PARTS,
) -> dict[str, tuple[Assigned, ...]]:
    """Give every segment that may be read to a consumer, moving as few as possible from `previous`.

    The numbers of segments of any two consumers differ by one at most. When there are more consumers than
    segments, the surplus consumers share segments in proportion to their buckets; a consumer without a free
    bucket gets an empty assignment. Without `share`, consumers read whole segments, and `parts` is ignored.

    A partly drained segment whose children are read already stays with its readers and does not count: it
    gets no new messages, and a consumer that is stuck in it could not give it up. Equal arguments give equal
    results on every broker.
    """
    names = sorted(set(consumers))
    ready = _ready(layout, drained, parts if share else NO_PARTS)
    if not names:
        return {}
    ids = {segment.id for segment, _ in ready}
    segments = [segment for segment, _ in ready if not ids.intersection(segment.children)]
    readers = _previous_readers(names, previous)
    if len(names) <= len(segments):
        owners = _deal(layout, segments, names, readers, load)
    else:
        owners = _share(layout, segments, names, readers, share)
    for segment, _ in ready:
        if segment.id not in owners:
            owners[segment.id] = list(readers.get(segment.id, ())) or [_least_busy(names, owners)]
    kept = _kept_by_buckets(ready, owners, previous)
    result: dict[str, list[Assigned]] = {name: [] for name in names}
    for segment, buckets in ready:
        given = owners[segment.id]
        shared = len(given) > 1 or (share and (segment.id in kept or buckets != ALL))
        for name in given:
            result[name].append(Assigned(segment.id, shared))
    return {name: tuple(given) for name, given in result.items()}


def _kept_by_buckets(
    ready: Sequence[tuple[Segment, Ranges]],
    owners: Mapping[int, Sequence[str]],
    previous: Mapping[str, tuple[Assigned, ...]],
) -> set[int]:
    """Return the segments that stay shared by buckets, so that their consumers need not attach again.

    They are those whose readers stay the same, and partly drained ones whose children are read already.
    """
    held = _previous_readers(sorted(previous), previous)
    by_buckets = {given.segment for given_ in previous.values() for given in given_ if given.shared}
    ids = {segment.id for segment, _ in ready}
    return {
        segment.id
        for segment, _ in ready
        if segment.id in by_buckets
        and (sorted(owners[segment.id]) == held.get(segment.id) or ids.intersection(segment.children))
    }


def bucket_owners(bucket_count: int, names: Sequence[T]) -> list[T]:
    """Return the reader of each bucket of a shared segment: equal runs of buckets, ordered by `names`."""
    count = len(names)
    owners: list[T] = []
    for at, name in enumerate(names):
        owners += [name] * ((at + 1) * bucket_count // count - at * bucket_count // count)
    return owners


def _least_busy(names: Sequence[str], owners: Mapping[int, Sequence[str]]) -> str:
    counts = Counter(name for given in owners.values() for name in given)
    return min(names, key=lambda name: (counts[name], name))


def _previous_readers(names: Sequence[str], previous: Mapping[str, tuple[Assigned, ...]]) -> Readers:
    readers: dict[int, list[str]] = {}
    for name in names:
        for given in previous.get(name, ()):
            readers.setdefault(given.segment, []).append(name)
    return readers


def _heirs(layout: Layout, segment: Segment, readers: Readers) -> list[str]:
    """Return the readers of the ancestors, nearest first: they have state for the keys of the segment."""
    found = []
    for ancestor in sorted(layout.ancestors(segment.id), reverse=True):
        found += [name for name in readers.get(ancestor, ()) if name not in found]
    return found


def _deal(
    layout: Layout,
    segments: Sequence[Segment],
    names: Sequence[str],
    readers: Readers,
    load: Mapping[int, float],
) -> dict[int, list[str]]:
    """Choose one reader per segment; there are at least as many segments as consumers."""
    kept: dict[str, list[Segment]] = {name: [] for name in names}
    heirs: dict[int, list[str]] = {}
    for segment in segments:
        before = readers.get(segment.id, ())
        if before:
            # If several consumers shared the segment, the one with the fewest segments keeps it.
            kept[min(before, key=lambda name: (len(kept[name]), name))].append(segment)
        else:
            heirs[segment.id] = _heirs(layout, segment, readers)
    quota = _quotas(segments, names, kept, heirs)
    free = [segment for segment in segments if segment.id in heirs]
    for name in names:
        kept[name], released = _release(kept[name], quota[name], load)
        free += released
    # Heaviest first, so that the lighter segments can even out the load afterwards.
    free.sort(key=lambda segment: (-load.get(segment.id, 0.0), segment.range, segment.id))
    weight = {name: sum(load.get(segment.id, 0.0) for segment in kept[name]) for name in names}
    for inherit in (True, False):
        left = []
        for segment in free:
            wanted = heirs.get(segment.id, ()) if inherit else names
            open_ = [name for name in wanted if len(kept[name]) < quota[name]]
            if not open_:
                left.append(segment)
                continue
            name = open_[0] if inherit else min(open_, key=lambda n: (weight[n], len(kept[n]), n))
            kept[name].append(segment)
            weight[name] += load.get(segment.id, 0.0)
        free = left
    return {segment.id: [name] for name in names for segment in kept[name]}


def _quotas(
    segments: Sequence[Segment],
    names: Sequence[str],
    kept: Mapping[str, Sequence[Segment]],
    heirs: Mapping[int, Sequence[str]],
) -> dict[str, int]:
    """Return the number of segments per consumer; a surplus segment goes where it causes the fewest moves."""
    even, odd = divmod(len(segments), len(names))
    inherits = dict.fromkeys(names, 0)
    for named in heirs.values():
        for name in named[:1]:
            inherits[name] += 1
    ranked = sorted(
        names,
        key=lambda name: (
            len(kept[name]) <= even,
            len(kept[name]) + inherits[name] <= even,
            -len(kept[name]) - inherits[name],
            name,
        ),
    )
    return {name: even + (place < odd) for place, name in enumerate(ranked)}


def _release(
    segments: list[Segment], quota: int, load: Mapping[int, float]
) -> tuple[list[Segment], list[Segment]]:
    """Divide a consumer's segments into kept and released ones, each with its share of the load."""
    spare = len(segments) - quota
    if spare <= 0:
        return segments, []
    keeps: list[Segment] = []
    gives: list[Segment] = []
    kept_load = given_load = 0.0
    for segment in sorted(segments, key=lambda s: (-load.get(s.id, 0.0), s.range, s.id)):
        keep = len(gives) == spare or (len(keeps) < quota and kept_load * spare <= given_load * quota)
        if keep:
            keeps.append(segment)
            kept_load += load.get(segment.id, 0.0)
        else:
            gives.append(segment)
            given_load += load.get(segment.id, 0.0)
    return keeps, gives


def _share(
    layout: Layout, segments: Sequence[Segment], names: Sequence[str], readers: Readers, share: bool
) -> dict[int, list[str]]:
    """Choose at most one segment per consumer; there are more consumers than segments."""
    places = readers_per_segment(segments, len(names) if share else len(segments))
    owners = keep_readers(segments, places, readers)
    placed = {name for given in owners.values() for name in given}
    idle = [name for name in names if name not in placed]
    for segment in segments:
        for name in _heirs(layout, segment, readers):
            if name in idle and len(owners[segment.id]) < places[segment.id]:
                owners[segment.id].append(name)
                idle.remove(name)
    # A segment without any reader comes before one that only has room for another reader.
    for segment in sorted(segments, key=lambda s: (bool(owners[s.id]), s.range, s.id)):
        missing = places[segment.id] - len(owners[segment.id])
        owners[segment.id] += idle[:missing]
        del idle[:missing]
    return owners
