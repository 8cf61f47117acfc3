"""How far the next micro-batch reads: a cut of the DAG is moved forward, parents before children. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.spark.decide.source.offsets import Cut, TopicCut
from anabranch.spark.decide.source.shares import Counts, bytes_of, share
from anabranch.spark.decide.source.topology import NO_LIMIT, UNKNOWN_SIZES, Ends, Key, Limit, Sizes, Topology

CHAINED_BYTES = 512 * 2**10
"""Most bytes of a segment and its ancestors in a micro-batch that its children may start in as well.

The tasks of the children would each read all of the segment, because it holds their keys as well.
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """The limits and choices of a micro-batch, besides the messages that wait."""

    limit: Limit = NO_LIMIT
    chain: bool = True
    """Whether a child may start in the micro-batch that finishes its parents."""
    chained_bytes: float = CHAINED_BYTES
    """As CHAINED_BYTES; without key order, where no message is read twice, infinite."""
    sizes: Sizes = UNKNOWN_SIZES
    fronts: Sequence[Ends] | None = None
    """Ends to read up to, one after the other while the limit lasts; None: up to the end of each segment."""
    turn: Key | None = None
    """The segment that got the last message when there were too few for all; the next one is first now."""


FREE = Pace()


def advance(start: Cut, topologies: Mapping[str, Topology], pace: Pace = FREE) -> Cut:
    """Return the cut to read up to next; `start` itself when there is nothing to read.

    A child is admitted once its parents are read to their ends: in the same micro-batch if the pace chains
    and that is cheap, else in the next one. An empty child is admitted too, even at the cost of an empty
    micro-batch: when retention removes the parents, only the cut can tell that they were read to their ends.
    A segment leaves the cut only in a step that reads nothing of it, so that two successive cuts name every
    slice between them.
    """
    work = [_Progress(name, start.topics[name], topologies[name], pace) for name in sorted(start.topics)]
    moved = _admit_children(work)
    for topic in work:
        topic.leave_finished()
    left, read = pace.limit, False
    for ends in pace.fronts if pace.fronts is not None else (None,):
        while not left.reached:
            taken = _take(work, replace(pace, limit=left), ends, one=not read)
            if not taken:
                break
            moved = read = True
            left = left.less(sum(taken.values()), int(bytes_of(taken, pace.sizes)))
            if not pace.chain or not _admit_children(work):
                break
    if not moved:
        return start
    return Cut({topic.name: topic.topology.cut(topic.positions) for topic in work})


class _Progress:
    """The cut of one topic while it is moved."""

    def __init__(self, name: str, start: TopicCut, topology: Topology, pace: Pace) -> None:
        self.name = name
        self.topology = topology
        self.positions = dict(start.positions)
        self._taken: dict[int, int] = {}
        self._above: dict[int, float] = {}
        """Bytes of the ancestors of a segment that this micro-batch reads."""
        self._costly: set[int] = set()
        """Segments that were admitted only because they have no messages: such a message would be costly."""
        self._pace = pace

    def admit(self) -> bool:
        """Add the segments that may start now; False when there is none."""
        segments, tails = self.topology.layout.segments, self.topology.tails
        new = {
            child
            for id_, position in self.positions.items()
            if self.topology.finished(id_, position)
            for child in segments[id_].children
            # A child without an extent is newer than the view of this run.
            if child not in self.positions and child in tails and self._may_start(child)
        }
        # A classic topic that gets more partitions gets segments without parents. A partition whose
        # descendants are in the cut was read to its end before they could start.
        new |= {
            id_
            for id_, segment in segments.items()
            if segment.is_classic
            and id_ not in self.positions
            and not segment.parents
            and self.topology.layout.descendants(id_).isdisjoint(self.positions)
        }
        for child in sorted(new):
            # Position 0 and not the first stored position: messages trimmed unread are a loss.
            self.positions[child] = 0
            self._above[child] = sum(self._chained_bytes(parent) for parent in segments[child].parents)
            if not self._is_cheap(child):
                self._costly.add(child)
        return bool(new)

    def _may_start(self, child: int) -> bool:
        parents = self.topology.layout.segments[child].parents
        if not all(p in self.positions and self.topology.finished(p, self.positions[p]) for p in parents):
            return False
        # A child without messages needs no task, so its place in the cut costs nothing.
        return self.topology.tails[child].next == 0 or self._is_cheap(child)

    def _is_cheap(self, child: int) -> bool:
        """Whether few bytes of the parents are read once more for the child."""
        segments = self.topology.layout.segments
        # A child that is read by the only task of its parents costs nothing.
        return all(
            (len(segments[p].children) == 1 and p not in self._costly)
            or self._chained_bytes(p) <= self._pace.chained_bytes
            for p in segments[child].parents
        )

    def _chained_bytes(self, id_: int) -> float:
        """Return what the task of a child would read of a segment and its ancestors in this micro-batch."""
        return self._above.get(id_, 0.0) + self._taken.get(id_, 0) * self._pace.sizes.of(self.name, id_)

    def leave_finished(self) -> None:
        """Drop segments that are read to the end and whose children are all in the cut."""
        for id_ in sorted(self.positions):
            children = self.topology.layout.segments[id_].children
            done = self.topology.finished(id_, self.positions[id_])
            if done and children and all(child in self.positions for child in children):
                del self.positions[id_]

    def waiting(self, ends: Ends | None) -> Iterator[tuple[int, int]]:
        """Return the segments with messages to read before the ends, and how many each has."""
        for id_, position in sorted(self.positions.items()):
            tail = self.topology.tails[id_]
            end = tail.next if ends is None else min(tail.next, ends.get((self.name, id_), 0))
            count = tail.rows(position, end)
            if count > 0:
                yield id_, count

    def take(self, id_: int, count: int) -> None:
        self.positions[id_] = self.topology.tails[id_].after(self.positions[id_], count)
        self._taken[id_] = self._taken.get(id_, 0) + count


def _admit_children(work: Collection[_Progress]) -> bool:
    """Admit all segments that may start, also below segments that were sealed empty; False if none may."""
    admitted = False
    for topic in work:
        while topic.admit():
            admitted = True
    return admitted


def _take(work: Collection[_Progress], pace: Pace, ends: Ends | None, *, one: bool) -> Counts:
    """Move the positions as far as the limit allows, with `one` by a message at least; return the counts."""
    by_name = {topic.name: topic for topic in work}
    waiting = {(topic.name, id_): count for topic in work for id_, count in topic.waiting(ends)}
    taken = share(waiting, pace.limit, pace.sizes, pace.turn, one=one)
    for (name, id_), count in taken.items():
        by_name[name].take(id_, count)
    return taken


def counts_between(start: Cut, end: Cut, topologies: Mapping[str, Topology]) -> Counts:
    """Return how many messages of each segment lie between two successive cuts."""
    found: Counts = {}
    for name, cut in end.topics.items():
        before = start.topics[name].positions
        for id_, position in cut.positions.items():
            count = topologies[name].tails[id_].rows(before.get(id_, 0), position)
            if count:
                found[name, id_] = count
    return found
