"""How far the next micro-batch reads: a cut of the DAG is moved forward, parents before children. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from anabranch.spark.decide.offsets import Cut, TopicCut
from anabranch.spark.decide.topology import NO_LIMIT, UNKNOWN_SIZES, Limit, Sizes, Topology

Counts = dict[tuple[str, int], int]
"""Messages by topic and segment."""


def advance(
    start: Cut,
    topologies: Mapping[str, Topology],
    limit: Limit = NO_LIMIT,
    *,
    chain: bool = True,
    sizes: Sizes = UNKNOWN_SIZES,
) -> Cut:
    """Return the cut to read up to next; `start` itself when there is nothing to read.

    A child is admitted once its parents are read to their ends: with `chain` in the same micro-batch, without
    it in the next one. An empty child is admitted too, at the cost of an empty micro-batch: when retention
    removes the parents, only the cut can tell that they were read to their ends. A segment leaves the cut
    only in a step that reads nothing of it, so that two successive cuts name every slice between them.
    """
    work = [_Progress(name, start.topics[name], topologies[name]) for name in sorted(start.topics)]
    moved = _admit_children(work)
    for topic in work:
        topic.leave_finished()
    left = limit
    while not left.reached:
        taken = _take(work, left, sizes)
        if not taken:
            break
        moved = True
        left = left.less(sum(taken.values()), int(_bytes(taken, sizes)))
        if not chain or not _admit_children(work):
            break
    if not moved:
        return start
    return Cut({topic.name: TopicCut(topic.positions, topic.topology.layout.epoch) for topic in work})


class _Progress:
    """The cut of one topic while it is moved."""

    def __init__(self, name: str, start: TopicCut, topology: Topology) -> None:
        self.name = name
        self.topology = topology
        self.positions = dict(start.positions)

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
        # Position 0 and not the first stored position: messages trimmed before they were read are a loss.
        self.positions.update((child, 0) for child in sorted(new))
        return bool(new)

    def _may_start(self, child: int) -> bool:
        parents = self.topology.layout.segments[child].parents
        return all(p in self.positions and self.topology.finished(p, self.positions[p]) for p in parents)

    def leave_finished(self) -> None:
        """Drop segments that are read to the end and whose children are all in the cut."""
        for id_ in sorted(self.positions):
            children = self.topology.layout.segments[id_].children
            done = self.topology.finished(id_, self.positions[id_])
            if done and children and all(child in self.positions for child in children):
                del self.positions[id_]

    def waiting(self) -> Iterator[tuple[int, int]]:
        """Return the segments with messages to read, and how many each has."""
        for id_, position in sorted(self.positions.items()):
            tail = self.topology.tails[id_]
            count = tail.rows(position, tail.next)
            if count > 0:
                yield id_, count


def _admit_children(work: Collection[_Progress]) -> bool:
    """Admit all segments that may start, also below segments that were sealed empty; False if none may."""
    admitted = False
    for topic in work:
        while topic.admit():
            admitted = True
    return admitted


def _take(work: Collection[_Progress], limit: Limit, sizes: Sizes) -> Counts:
    """Move the positions as far as the limit allows; return how many messages each segment gives."""
    by_name = {topic.name: topic for topic in work}
    waiting = {(topic.name, id_): count for topic in work for id_, count in topic.waiting()}
    taken = _fair_shares(waiting, limit, sizes) if waiting else {}
    for (name, id_), count in taken.items():
        topic = by_name[name]
        topic.positions[id_] = topic.topology.tails[id_].after(topic.positions[id_], count)
    return {key: count for key, count in taken.items() if count}


def _fair_shares(waiting: Counts, limit: Limit, sizes: Sizes) -> Counts:
    """Share the limit in proportion to the waiting messages, so that a hot segment starves no other."""
    part = 1.0
    if limit.rows is not None:
        part = min(part, limit.rows / sum(waiting.values()))
    if limit.bytes is not None:
        part = min(part, limit.bytes / _bytes(waiting, sizes))
    if part >= 1.0:
        return waiting
    shares = {key: int(count * part) for key, count in waiting.items()}
    left = None if limit.rows is None else limit.rows - sum(shares.values())
    # At least one message each, largest backlog first while the rows last.
    for key in sorted(waiting, key=lambda key: (-waiting[key], key)):
        if shares[key] == 0 and (left is None or left > 0):
            shares[key] = 1
            left = None if left is None else left - 1
    return shares


def _bytes(counts: Counts, sizes: Sizes) -> float:
    return sum(count * sizes.of(*key) for key, count in counts.items())
