"""Decides how far the next micro-batch reads: it moves a cut of the DAG forward, parents first. Pure.

Example: segment 0 is sealed with 100 messages and was split into segment 1 with 40 messages and segment 2
with none. The query is at {0: 70} and may read 50 rows. It takes the last 30 of segment 0. These are at most
512 KiB, so both children are admitted in the same micro-batch, and segment 1 gives the other 20 rows: the cut
becomes {0: 100, 1: 20, 2: 0}. Segment 0 stays in it, because Spark derives the slices of this batch from the
two cuts. The next micro-batch drops segment 0, which is finished, and ends at {1: 40, 2: 0}.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.spark.decide.source.offsets import Cut, TopicCut
from anabranch.spark.decide.source.shares import Counts, bytes_of, share
from anabranch.spark.decide.source.topology import NO_LIMIT, UNKNOWN_SIZES, Ends, Key, Limit, Sizes, Topology

CHAINED_BYTES = 512 * 2**10
"""A child may start in the micro-batch that finishes its parents if these give at most this many bytes there.

Each child's task reads all that the batch takes of the parents, because they hold the child's keys as well.
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """The limits and choices of a micro-batch, apart from the waiting messages."""

    limit: Limit = NO_LIMIT
    chain: bool = True
    """Whether a child may start in the micro-batch that finishes its parents."""
    chained_bytes: float = CHAINED_BYTES
    """As CHAINED_BYTES. Infinite without key order, because no message is read twice then."""
    sizes: Sizes = UNKNOWN_SIZES
    fronts: Sequence[Ends] | None = None
    """Ends to read up to, one after the other while the limit lasts; None for the end of each segment."""
    last_served: Key | None = None
    """The segment that was served last while the limit was too small for all; the next one comes first."""


FREE = Pace()


def advance(start: Cut, topologies: Mapping[str, Topology], pace: Pace = FREE) -> Cut:
    """Return the cut to read up to next, or `start` itself if there is nothing to read.

    A child is admitted once its parents are read to their ends: in the same micro-batch if the pace allows it
    and it is cheap, otherwise in the next one.
    """
    # An empty child is admitted too, even at the cost of an empty micro-batch. When retention removes the
    # parents, only the cut can tell that they had been read to their ends; without the child in it, the query
    # would report lost messages. And a segment leaves the cut only in a step that reads nothing of it, so
    # that two successive cuts name every slice between them: Spark stores nothing else to repeat a batch
    # from.
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
        """Bytes that this micro-batch reads of the ancestors of a segment."""
        self._costly: set[int] = set()
        """Segments that were admitted only because they have no messages; reading one would be costly."""
        self._pace = pace

    def admit(self) -> bool:
        """Add the segments that may start now; return whether there were any."""
        segments, tails = self.topology.layout.segments, self.topology.tails
        new = {
            child
            for id_, position in self.positions.items()
            if self.topology.finished(id_, position)
            for child in segments[id_].children
            # A child without an extent is newer than this view of the topic.
            if child not in self.positions and child in tails and self._may_start(child)
        }
        # Partitions that are added to a classic topic become segments without parents. A partition whose
        # descendants are in the cut was read to its end before they could start, so it is not new.
        new |= {
            id_
            for id_, segment in segments.items()
            if segment.is_classic
            and id_ not in self.positions
            and not segment.parents
            and self.topology.layout.descendants(id_).isdisjoint(self.positions)
        }
        for child in sorted(new):
            # Not the first stored position: messages that were trimmed unread have to be reported as lost.
            self.positions[child] = 0
            self._above[child] = sum(self._chained_bytes(parent) for parent in segments[child].parents)
            if not self._is_cheap(child):
                self._costly.add(child)
        return bool(new)

    def _may_start(self, child: int) -> bool:
        parents = self.topology.layout.segments[child].parents
        if not all(p in self.positions and self.topology.finished(p, self.positions[p]) for p in parents):
            return False
        # A child without messages needs no task, so admitting it costs nothing.
        return self.topology.tails[child].next == 0 or self._is_cheap(child)

    def _is_cheap(self, child: int) -> bool:
        """Whether only few bytes of the parents have to be read a second time for the child."""
        segments = self.topology.layout.segments
        # An only child is read by the same task as its parent, so nothing is read twice.
        return all(
            (len(segments[p].children) == 1 and p not in self._costly)
            or self._chained_bytes(p) <= self._pace.chained_bytes
            for p in segments[child].parents
        )

    def _chained_bytes(self, id_: int) -> float:
        """Return the bytes of a segment and its ancestors that a child's task would read in this batch."""
        return self._above.get(id_, 0.0) + self._taken.get(id_, 0) * self._pace.sizes.of(self.name, id_)

    def leave_finished(self) -> None:
        """Drop segments that are read to the end and whose children are all in the cut."""
        for id_ in sorted(self.positions):
            children = self.topology.layout.segments[id_].children
            done = self.topology.finished(id_, self.positions[id_])
            if done and children and all(child in self.positions for child in children):
                del self.positions[id_]

    def waiting(self, ends: Ends | None) -> Iterator[tuple[int, int]]:
        """Yield the segments with unread messages before the ends, and how many each has."""
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
    """Admit all segments that may start, also below segments that were sealed empty; return if any could."""
    admitted = False
    for topic in work:
        while topic.admit():
            admitted = True
    return admitted


def _take(work: Collection[_Progress], pace: Pace, ends: Ends | None, *, one: bool) -> Counts:
    """Move the positions as far as the limit allows, with `one` by at least a message; return the counts."""
    by_name = {topic.name: topic for topic in work}
    waiting = {(topic.name, id_): count for topic in work for id_, count in topic.waiting(ends)}
    taken = share(waiting, pace.limit, pace.sizes, pace.last_served, one=one)
    for (name, id_), count in taken.items():
        by_name[name].take(id_, count)
    return taken


def counts_between(start: Cut, end: Cut, topologies: Mapping[str, Topology]) -> Counts:
    """Return the number of messages of each segment between two successive cuts."""
    found: Counts = {}
    for name, cut in end.topics.items():
        before = start.topics[name].positions
        for id_, position in cut.positions.items():
            count = topologies[name].tails[id_].rows(before.get(id_, 0), position)
            if count:
                found[name, id_] = count
    return found
