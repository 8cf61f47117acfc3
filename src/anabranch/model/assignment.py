"""Layout, consumers and drained segments -> who reads what on an ordered subscription.

One pure function. What a consumer reads already it keeps as long as the counts stay even, a child goes to the
reader of its parent, and only what is left is dealt out, by load. What opens bucket by bucket moves nobody.
Knows nothing of connections, grace periods or how an assignment reaches its consumer.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from anabranch.model.drains import ALL, NO_PARTS, Parts, Ranges, open_buckets, open_slots
from anabranch.model.layout import Layout, Segment
from anabranch.model.ranges import HashRange

T = TypeVar("T")

UNCOUNTED: Final = -1

_NOTHING: Mapping[str, tuple[Assigned, ...]] = MappingProxyType({})
_NO_LOAD: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Assigned:
    """A segment given to a consumer: alone, or by buckets.

    By buckets when others share it, and while only some of its buckets are open: then single entries are
    acknowledged, so that nothing held back can be acknowledged with what comes after it.
    """

    segment: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class AssignedSegment:
    """A segment to read; bucket ranges mean that its consumers share it by buckets with these boundaries."""

    segment_id: int
    range: HashRange
    topic: str
    bucket_ranges: tuple[HashRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """All segments that one consumer reads, as the leader of the topic tells the consumer."""

    epoch: int
    generation: int
    """New whenever the segments are; UNCOUNTED from a broker that does not count generations."""
    segments: tuple[AssignedSegment, ...] = ()

    def replaces(self, other: Assignment | None) -> bool:
        """Whether this assignment may follow `other`; without generations the layout epoch decides."""
        if other is None:
            return True
        if UNCOUNTED not in (self.generation, other.generation):
            return self.generation >= other.generation
        return self.epoch >= other.epoch


def assignable(layout: Layout, drained: frozenset[int], parts: Parts = NO_PARTS) -> tuple[Segment, ...]:
    """The segments that may be read now, by range.

    A segment waits until one of its buckets is drained by all its ancestors that the layout still knows,
    transitively; a sealed one that is drained itself has nothing left to read.
    """
    return tuple(segment for segment, _ in _ready(layout, drained, parts))


def _ready(layout: Layout, drained: frozenset[int], parts: Parts) -> list[tuple[Segment, Ranges]]:
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
    """Give every assignable segment to a reader, moving as few as possible from `previous`.

    The numbers of segments differ by one at most between consumers. When there are more consumers than
    segments, the surplus shares segments, in proportion to their buckets; whoever finds no free bucket gets
    an empty assignment. With `share` off nobody reads by buckets, and `parts` open nothing.

    A segment whose children are read already, because part of it is drained, stays with its readers and is
    not counted: nothing new comes there, and whoever is stuck in it could not give it up anyway.
    Equal arguments give equal results everywhere.
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
    held = _previous_readers(sorted(previous), previous)
    by_buckets = {given.segment for given_ in previous.values() for given in given_ if given.shared}
    result: dict[str, list[Assigned]] = {name: [] for name in names}
    for segment, buckets in ready:
        given = owners[segment.id]
        # Who reads by buckets goes on so when it need not any more: a change would make it attach anew.
        kept = segment.id in by_buckets and (
            sorted(given) == held.get(segment.id) or bool(ids.intersection(segment.children))
        )
        shared = len(given) > 1 or (share and (kept or buckets != ALL))
        for name in given:
            result[name].append(Assigned(segment.id, shared))
    return {name: tuple(given) for name, given in result.items()}


def bucket_owners(bucket_count: int, names: Sequence[T]) -> list[T]:
    """Who of those that share a segment reads each bucket: equal runs, in the order given."""
    count = len(names)
    owners: list[T] = []
    for at, name in enumerate(names):
        owners += [name] * ((at + 1) * bucket_count // count - at * bucket_count // count)
    return owners


def _least_busy(names: Sequence[str], owners: Mapping[int, Sequence[str]]) -> str:
    counts = Counter(name for given in owners.values() for name in given)
    return min(names, key=lambda name: (counts[name], name))


def _previous_readers(names: Sequence[str], previous: Mapping[str, tuple[Assigned, ...]]) -> _Readers:
    readers: dict[int, list[str]] = {}
    for name in names:
        for given in previous.get(name, ()):
            readers.setdefault(given.segment, []).append(name)
    return readers


def _heirs(layout: Layout, segment: Segment, readers: _Readers) -> list[str]:
    """Readers of the ancestors, nearest first: they have the keys of the segment at hand."""
    found = []
    for ancestor in sorted(layout.ancestors(segment.id), reverse=True):
        found += [name for name in readers.get(ancestor, ()) if name not in found]
    return found


def _deal(
    layout: Layout,
    segments: Sequence[Segment],
    names: Sequence[str],
    readers: _Readers,
    load: Mapping[int, float],
) -> dict[int, list[str]]:
    """One reader per segment; there are at least as many segments as consumers."""
    kept: dict[str, list[Segment]] = {name: [] for name in names}
    heirs: dict[int, list[str]] = {}
    for segment in segments:
        before = readers.get(segment.id, ())
        if before:
            # Of several that shared it, the one with the least goes on alone.
            kept[min(before, key=lambda name: (len(kept[name]), name))].append(segment)
        else:
            heirs[segment.id] = _heirs(layout, segment, readers)
    quota = _quotas(segments, names, kept, heirs)
    free = [segment for segment in segments if segment.id in heirs]
    for name in names:
        kept[name], released = _release(kept[name], quota[name], load)
        free += released
    # The heaviest first: what is dealt last can even out what came before.
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
    """How many segments each consumer reads; the odd ones go where that moves the least."""
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
    """Divide what a consumer has into what it keeps and what it gives away, each with its share of load."""
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
    layout: Layout, segments: Sequence[Segment], names: Sequence[str], readers: _Readers, share: bool
) -> dict[int, list[str]]:
    """At most one segment per consumer; there are more consumers than segments."""
    places = _places(segments, len(names) if share else len(segments))
    owners = _keep_most(segments, places, readers)
    placed = {name for given in owners.values() for name in given}
    idle = [name for name in names if name not in placed]
    for segment in segments:
        for name in _heirs(layout, segment, readers):
            if name in idle and len(owners[segment.id]) < places[segment.id]:
                owners[segment.id].append(name)
                idle.remove(name)
    # An unread segment comes before one that only wants company.
    for segment in sorted(segments, key=lambda s: (bool(owners[s.id]), s.range, s.id)):
        missing = places[segment.id] - len(owners[segment.id])
        owners[segment.id] += idle[:missing]
        del idle[:missing]
    return owners


def _places(segments: Sequence[Segment], readers: int) -> dict[int, int]:
    """How many consumers read each segment: one, and the surplus where a reader has the most buckets.

    One more consumer adds a place to one segment and takes none away, so a join moves nobody.
    """
    places = {segment.id: 1 for segment in segments}
    for _ in range(readers - len(segments)):
        open_ = [segment for segment in segments if places[segment.id] < segment.bucket_count]
        if not open_:
            break
        fullest = min(open_, key=lambda s: (-s.bucket_count / places[s.id], s.range, s.id))
        places[fullest.id] += 1
    return places


def _keep_most(
    segments: Sequence[Segment], places: Mapping[int, int], readers: _Readers
) -> dict[int, list[str]]:
    """A largest matching of consumers with segments they read before (augmenting paths)."""
    before: dict[str, list[int]] = {}
    for segment in segments:
        for name in readers.get(segment.id, ()):
            before.setdefault(name, []).append(segment.id)
    owners: dict[int, list[str]] = {segment.id: [] for segment in segments}
    for name in sorted(before, key=lambda n: (len(before[n]), n)):
        _place(name, before, places, owners)
    return owners


def _place(
    name: str, before: Mapping[str, Sequence[int]], places: Mapping[int, int], owners: dict[int, list[str]]
) -> None:
    """Find a place for one more consumer; others step aside to another segment of theirs if need be."""
    came: dict[int, tuple[str, int | None]] = dict.fromkeys(before[name], (name, None))
    queue = deque(came)
    while queue:
        id_ = queue.popleft()
        if len(owners[id_]) < places[id_]:
            _step_aside(id_, came, owners)
            return
        for other in owners[id_]:
            for next_id in before[other]:
                if next_id not in came:
                    came[next_id] = (other, id_)
                    queue.append(next_id)


def _step_aside(free: int, came: Mapping[int, tuple[str, int | None]], owners: dict[int, list[str]]) -> None:
    """Move everyone on the path that led to a free place by one."""
    place: int | None = free
    while place is not None:
        mover, left = came[place]
        owners[place].append(mover)
        if left is not None:
            owners[left].remove(mover)
        place = left


_Readers = Mapping[int, Sequence[str]]
