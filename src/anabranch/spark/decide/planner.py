"""Which messages the next micro-batch or batch job reads: cuts of the DAG, moved forward parents first.

Pure: layouts, tails, offsets and limits in; the next cut or the slices between two cuts out. How slices
become Spark partitions is `lanes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.errors import InvalidConfigurationError
from anabranch.model.layout import Layout
from anabranch.model.ranges import FULL, HashRange
from anabranch.spark.decide.offsets import Cut, Symbol, TopicCut


class SegmentSpan(NamedTuple):
    """How far a segment reaches: positions `first` to `next`, the end not included."""

    first: int
    next: int
    sealed: bool
    """Sealed for good, so `next` is final."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A layout, and tails that were read after it: what the layout calls sealed has its final tail."""

    layout: Layout
    tails: Mapping[int, SegmentSpan]

    def finished(self, segment: int, position: int) -> bool:
        """Whether nothing can ever come at or after `position`."""
        tail = self.tails[segment]
        return tail.sealed and position >= tail.next


class Slice(NamedTuple):
    """Messages `lo` to `hi` of one segment, the end not included."""

    topic: str
    segment: int
    range: HashRange
    lo: int
    hi: int
    routed: bool = True
    """Whether its keys lie in its range; those of a classic topic may be anywhere."""

    @property
    def rows(self) -> int:
        return self.hi - self.lo


@dataclass(frozen=True, slots=True)
class Sizes:
    """Estimated bytes of one message, by topic and segment."""

    known: Mapping[tuple[str, int], float] = field(default_factory=dict)
    otherwise: float = 1024.0

    def of(self, topic: str, segment: int) -> float:
        return max(1.0, self.known.get((topic, segment), self.otherwise))

    def total(self, slices: Iterable[Slice]) -> float:
        """Bytes of all the slices together."""
        return sum(part.rows * self.of(part.topic, part.segment) for part in slices)


@dataclass(frozen=True, slots=True)
class Limit:
    """What one micro-batch may take; None means no limit."""

    rows: int | None = None
    bytes: int | None = None


Lost = Callable[[str], None]
"""Told about messages that should be read and are no longer stored; raises, or notes it and returns."""

NO_LIMIT = Limit()
UNKNOWN_SIZES = Sizes()


def resolve(at: Symbol | TopicCut, topology: Topology, topic: str) -> TopicCut:
    """The concrete cut of one topic for a request; it adds nothing to read."""
    layout = topology.layout
    if isinstance(at, TopicCut):
        _check_request(at, topology, topic)
        return TopicCut(dict(at.positions), layout.epoch)
    if at == "latest":
        # An active segment may be sealed already while its children are not published yet. It is finished
        # then, and the children are read from their start once they are seen.
        return TopicCut({s.id: topology.tails[s.id].next for s in layout.active}, layout.epoch)
    return TopicCut(_earliest(topology), layout.epoch)


def _earliest(topology: Topology) -> dict[int, int]:
    """First retained positions of the oldest segments that still hold something.

    A sealed segment with nothing left is passed here and not when reading: its children may have been trimmed
    as well, and what was gone before the start is no loss.
    """
    segments, tails = topology.layout.segments, topology.tails
    cut = {id_: tails[id_].first for id_ in sorted(segments) if not segments[id_].parents}
    passed: set[int] = set()
    # Ids grow along the DAG, so one pass in their order sees parents first.
    for id_ in sorted(segments):
        if id_ not in cut and set(segments[id_].parents) <= passed:
            cut[id_] = tails[id_].first
        if id_ in cut and segments[id_].children and topology.finished(id_, cut[id_]):
            passed.add(id_)
    return {
        id_: at
        for id_, at in cut.items()
        if id_ not in passed or not all(child in cut for child in segments[id_].children)
    }


def _check_request(cut: TopicCut, topology: Topology, topic: str) -> None:
    layout, positions = topology.layout, cut.positions
    unknown = sorted(set(positions) - set(layout.segments))
    if unknown:
        raise InvalidConfigurationError(
            f"the cut for topic {topic} names segments {_list(unknown)}, which the topic does not have"
        )
    for id_ in sorted(positions):
        if positions[id_] > topology.tails[id_].next:
            raise InvalidConfigurationError(
                f"the cut for topic {topic} puts segment {id_} at {positions[id_]}, "
                f"beyond its end at {topology.tails[id_].next}"
            )
    missing = uncovered(layout.segments[id_].range for id_ in positions)
    if missing:
        raise InvalidConfigurationError(
            f"the cut for topic {topic} leaves the hash ranges {_list(missing)} without a segment; "
            "a cut covers them all"
        )
    open_ids = [id_ for id_ in sorted(positions) if not topology.finished(id_, positions[id_])]
    for at, id_ in enumerate(open_ids):
        for other in open_ids[at + 1 :]:
            one, two = layout.segments[id_], layout.segments[other]
            # Partitions of what was a classic topic span the whole ring, and no two have a key in common.
            partitions = one.is_classic and two.is_classic
            if one.range.overlaps(two.range) and not partitions:
                raise InvalidConfigurationError(
                    f"the cut for topic {topic} reads segments {id_} and {other} at once, "
                    "though both hold the same keys; a child starts when its parents are read to the end"
                )


def advance(
    start: Cut,
    topologies: Mapping[str, Topology],
    limit: Limit = NO_LIMIT,
    *,
    chain: bool = True,
    sizes: Sizes = UNKNOWN_SIZES,
) -> Cut:
    """The cut to read up to next; `start` itself when there is nothing to read.

    A child is admitted once its parents are read to their ends: with `chain` in the same micro-batch, without
    it in the next one. Children are admitted also when they hold nothing yet, though that costs an empty
    micro-batch: when retention takes their parents, only the map can tell that these were read to their ends.
    A segment leaves the map only in a step that reads nothing of it, so that the two maps name every slice
    between them.
    """
    work = [_Progress(name, start.topics[name], topologies[name]) for name in sorted(start.topics)]
    moved = False
    for topic in work:
        while topic.admit():
            # Segments that were sealed empty are passed at once.
            moved = True
        topic.leave_finished()
    rows, size = limit.rows, limit.bytes
    while (rows is None or rows > 0) and (size is None or size > 0):
        taken = _take(work, rows, size, sizes)
        if not taken:
            break
        moved = True
        rows = None if rows is None else rows - sum(taken.values())
        size = None if size is None else size - int(sum(n * sizes.of(*key) for key, n in taken.items()))
        if not chain:
            break
        admitted = False
        for topic in work:
            while topic.admit():
                admitted = True
        if not admitted:
            break
    if not moved:
        return start
    return Cut({topic.name: TopicCut(topic.positions, topic.topology.layout.epoch) for topic in work})


class _Progress:
    """One topic's cut while it is being moved."""

    def __init__(self, name: str, start: TopicCut, topology: Topology) -> None:
        self.name = name
        self.topology = topology
        self.positions = dict(start.positions)

    def admit(self) -> bool:
        """Add what may start now, which is children whose parents are all read; False when there is none."""
        segments, tails = self.topology.layout.segments, self.topology.tails
        new = {
            child
            for id_, position in self.positions.items()
            if self.topology.finished(id_, position)
            for child in segments[id_].children
            # A child without a tail is newer than the view this run works on.
            if child not in self.positions and child in tails and self._may_start(child)
        }
        # A classic topic that gets more partitions gets segments without parents. One that has descendants in
        # the map was read to its end before these could start.
        new |= {
            id_
            for id_, segment in segments.items()
            if segment.is_classic
            and id_ not in self.positions
            and not segment.parents
            and self.topology.layout.descendants(id_).isdisjoint(self.positions)
        }
        # Not at the first retained position: what was trimmed unread must show up as loss.
        self.positions.update((child, 0) for child in sorted(new))
        return bool(new)

    def _may_start(self, child: int) -> bool:
        parents = self.topology.layout.segments[child].parents
        return all(p in self.positions and self.topology.finished(p, self.positions[p]) for p in parents)

    def leave_finished(self) -> None:
        """Drop segments that are read to the end and have all their children in the map."""
        for id_ in sorted(self.positions):
            children = self.topology.layout.segments[id_].children
            done = self.topology.finished(id_, self.positions[id_])
            if done and children and all(child in self.positions for child in children):
                del self.positions[id_]

    def waiting(self) -> Iterator[tuple[int, int]]:
        """Segments with messages to read, and how many."""
        for id_, position in sorted(self.positions.items()):
            count = self.topology.tails[id_].next - position
            if count > 0:
                yield id_, count


def _take(
    work: Iterable[_Progress], rows: int | None, size: int | None, sizes: Sizes
) -> dict[tuple[str, int], int]:
    """Move the positions by shares in proportion to what waits, so that a hot segment starves no other."""
    by_name = {topic.name: topic for topic in work}
    waiting = {(topic.name, id_): count for topic in by_name.values() for id_, count in topic.waiting()}
    if not waiting:
        return {}
    part = 1.0
    if rows is not None:
        part = min(part, rows / sum(waiting.values()))
    if size is not None:
        part = min(part, size / sum(count * sizes.of(*key) for key, count in waiting.items()))
    if part >= 1.0:
        taken = waiting
    else:
        taken = {key: int(count * part) for key, count in waiting.items()}
        left = None if rows is None else rows - sum(taken.values())
        # At least one message each, largest backlog first while the rows last.
        for key in sorted(waiting, key=lambda key: (-waiting[key], key)):
            if taken[key] == 0 and (left is None or left > 0):
                taken[key] = 1
                left = None if left is None else left - 1
    for (name, id_), count in taken.items():
        by_name[name].positions[id_] += count
    return {key: count for key, count in taken.items() if count}


def slices_between(start: Cut, end: Cut, topologies: Mapping[str, Topology], lost: Lost) -> list[Slice]:
    """What lies between two cuts of one query, by topic and segment id.

    Needs only the two maps and facts that never change, so a replayed batch is the same after any number of
    splits. A topic that `start` does not name is pinned by `end` and read from the next batch on.
    """
    found: list[Slice] = []
    for name in sorted(set(start.topics) & set(end.topics)):
        before, after = start.topics[name].positions, end.topics[name].positions
        for id_ in sorted(after):
            found += _stored(name, id_, before.get(id_, 0), after[id_], topologies[name], lost)
    return found


def slices_of_range(
    start: TopicCut, end: TopicCut, topology: Topology, topic: str, lost: Lost
) -> list[Slice]:
    """Everything from one cut to another, however many generations lie between them; for batch jobs."""
    layout = topology.layout
    behind = _relatives(end, layout.descendants) - set(end.positions)
    found: list[Slice] = []
    for id_ in sorted(_relatives(start, layout.descendants) | set(start.positions)):
        if id_ not in behind:
            hi = end.positions.get(id_, topology.tails[id_].next)
            found += _stored(topic, id_, start.positions.get(id_, 0), hi, topology, lost)
    return found


def _relatives(cut: TopicCut, related: Callable[[int], frozenset[int]]) -> set[int]:
    return {other for id_ in cut.positions for other in related(id_)}


def _stored(topic: str, id_: int, lo: int, hi: int, topology: Topology, lost: Lost) -> list[Slice]:
    """The slice as far as it is still stored; tells `lost` about the rest."""
    if lo >= hi:
        return []
    segment = topology.layout.segments.get(id_)
    if segment is None:
        lost(f"messages {lo} to {hi} of segment {id_} of topic {topic} are gone with their segment")
        return []
    tail = topology.tails[id_]
    if tail.first > lo:
        lost(
            f"segment {id_} of topic {topic} should be read from position {lo}, "
            f"but the first message still stored is {tail.first}"
        )
    if tail.next < hi:
        lost(f"segment {id_} of topic {topic} should be read up to position {hi}, but it ends at {tail.next}")
    lo, hi = max(lo, tail.first), min(hi, tail.next)
    routed = not segment.is_classic or not segment.active
    return [Slice(topic, id_, segment.range, lo, hi, routed)] if hi > lo else []


def forget_gone(start: Cut, topologies: Mapping[str, Topology], lost: Lost) -> Cut:
    """The cut without segments that the layouts have forgotten; `start` itself when there is none.

    A forgotten segment is no loss when the others in the map cover all its keys: then its children are in the
    map, and they came in only when it was read to the end. Otherwise nobody can tell what was left in it.
    """
    topics = {}
    changed = False
    for name, cut in start.topics.items():
        topology = topologies[name]
        segments = topology.layout.segments
        known = {id_: at for id_, at in cut.positions.items() if id_ in segments}
        if len(known) < len(cut.positions):
            changed = True
            if uncovered(segments[id_].range for id_ in known):
                lost(_gone_text(name, cut, known))
                known |= _oldest_outside(known, topology)
        topics[name] = TopicCut(known, cut.epoch)
    return Cut(topics) if changed else start


def _gone_text(name: str, cut: TopicCut, known: Mapping[int, int]) -> str:
    gone = ", ".join(f"{id_} at {at}" for id_, at in sorted(cut.positions.items()) if id_ not in known)
    if known:
        return (
            f"topic {name} no longer has segments that were still being read ({gone}); "
            "messages after these positions may be lost"
        )
    return (
        f"topic {name} has none of the segments that were being read ({gone}); "
        "it was deleted and created again, or everything was trimmed"
    )


def _oldest_outside(known: Mapping[int, int], topology: Topology) -> dict[int, int]:
    """The oldest segments that no known one leads to, at their first message still stored."""
    layout = topology.layout
    reached = {other for id_ in known for other in (id_, *layout.ancestors(id_), *layout.descendants(id_))}
    outside = [id_ for id_ in sorted(layout.segments) if id_ not in reached]
    return {
        id_: topology.tails[id_].first
        for id_ in outside
        if not any(parent in outside for parent in layout.segments[id_].parents)
    }


def tails_cut(topologies: Mapping[str, Topology]) -> Cut:
    """The newest positions of all active segments, for Spark's progress reports."""
    return Cut({name: resolve("latest", topology, name) for name, topology in topologies.items()})


def uncovered(ranges: Iterable[HashRange]) -> list[HashRange]:
    """The parts of the hash space that no range covers."""
    found = []
    expected = FULL.start
    for part in sorted(ranges):
        if part.start > expected:
            found.append(HashRange(expected, part.start - 1))
        expected = max(expected, part.end + 1)
    if expected <= FULL.end:
        found.append(HashRange(expected, FULL.end))
    return found


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
