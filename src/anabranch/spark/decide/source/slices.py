"""Computes the slices between two cuts, and reports messages that are no longer stored. Pure.

Example: segment 0 is sealed with 100 messages, and its child segment 1 has 40. Between the cuts {0: 70} and
{0: 100, 1: 20} lie messages 70 to 99 of segment 0 and messages 0 to 19 of segment 1. If retention has removed
the first 80 messages of segment 0 by then, messages 70 to 79 are reported as lost, and 80 to 99 are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.model.layout import Layout
from anabranch.spark.decide.source.offsets import Cut, TopicCut
from anabranch.spark.decide.source.starts import resolve
from anabranch.spark.decide.source.topology import Lost, Slice, Topology, uncovered

RECREATED = "it was deleted and created again after the query had read it, or it is on another broker"
ADVICE = "Start a query with a new checkpoint to read the topic as it is now"


def slices_between(start: Cut, end: Cut, topologies: Mapping[str, Topology], lost: Lost) -> list[Slice]:
    """Return the slices between two successive cuts of one query, by topic and segment id.

    They follow from the two cuts alone and from facts that never change, so a batch that Spark repeats has
    the same rows after any number of splits. A topic that only `end` names is read from the next batch on.
    """
    found: list[Slice] = []
    for name in sorted(set(start.topics) & set(end.topics)):
        before, after = start.topics[name], end.topics[name]
        for id_ in sorted(after.positions):
            log = after.logs.get(id_)
            if log is not None and before.logs.get(id_, log) != log:
                # The position was moved to the start of a recreated log; nothing was read in between.
                continue
            wanted = range(before.positions.get(id_, 0), after.positions[id_])
            tail = topologies[name].tails.get(id_)
            if tail is not None and tail.is_other_log(log):
                place = f"messages {wanted.start} to {wanted.stop} of segment {id_} of topic {name}"
                lost(f"{place} are gone: {RECREATED}")
                continue
            found += _stored(name, topologies[name], id_, wanted, lost)
    return found


def slices_of_range(
    start: TopicCut, end: TopicCut, topology: Topology, topic: str, lost: Lost
) -> list[Slice]:
    """Return all slices from one cut to another, across any number of generations; for batch jobs."""
    layout = topology.layout
    behind = _descendants(end, layout) - set(end.positions)
    found: list[Slice] = []
    for id_ in sorted(_descendants(start, layout) | set(start.positions)):
        if id_ not in behind:
            hi = end.positions.get(id_, topology.tails[id_].next)
            found += _stored(topic, topology, id_, range(start.positions.get(id_, 0), hi), lost)
    return found


def _descendants(cut: TopicCut, layout: Layout) -> set[int]:
    return {other for id_ in cut.positions for other in layout.descendants(id_)}


def _stored(topic: str, topology: Topology, id_: int, wanted: range, lost: Lost) -> list[Slice]:
    """Return the wanted messages that are still stored; `lost` is told about the others."""
    lo, hi = wanted.start, wanted.stop
    if lo >= hi:
        return []
    segment = topology.layout.segments.get(id_)
    if segment is None:
        lost(f"messages {lo} to {hi} of segment {id_} of topic {topic} are gone with their segment")
        return []
    tail = topology.tails[id_]
    if tail.lost_before(lo):
        lost(
            f"segment {id_} of topic {topic} should be read from position {tail.text(lo)}, "
            f"but the first message still stored is {tail.text(tail.first)}"
        )
    if tail.next < hi:
        lost(
            f"segment {id_} of topic {topic} should be read up to position {tail.text(hi)}, "
            f"but it ends at {tail.text(tail.next)}"
        )
    lo, hi = max(lo, tail.first), min(hi, tail.next)
    if hi <= lo:
        return []
    routed = not segment.is_classic or not segment.active
    estimate = None if tail.per_entry is None else tail.rows(lo, hi)
    return [Slice(topic, id_, segment.range, lo, hi, routed, estimate, tail.log)]


def forget_gone(start: Cut, topologies: Mapping[str, Topology], lost: Lost) -> Cut:
    """Return the cut without segments that the layouts no longer contain, or `start` itself if all exist.

    A removed segment is not a loss if the other segments of the cut cover all its keys. Its children are in
    the cut then, and a child is admitted only after its parents were read to the end. Otherwise nothing is
    known about unread messages of the segment, and `lost` is told.
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
            cut = topology.cut(known)
        topics[name] = cut
    return Cut(topics) if changed else start


def restart_recreated(start: Cut, topologies: Mapping[str, Topology], lost: Lost) -> Cut:
    """Return the cut with recreated logs moved to their earliest message, or `start` if there are none.

    A position beyond the end of a log also belongs to an earlier log, or to messages that a broker has lost.
    If the query went on, new messages would get positions that it considers read, and would be skipped
    silently.
    """
    topics = {}
    for name, cut in start.topics.items():
        restarted = _restarted(name, cut, topologies[name], lost)
        topics[name] = restarted if restarted is not None else cut
    return start if all(topics[name] is cut for name, cut in start.topics.items()) else Cut(topics)


def _restarted(name: str, cut: TopicCut, topology: Topology, lost: Lost) -> TopicCut | None:
    """Return the cut to continue with, or None if all positions belong to the present logs."""
    known = {id_: at for id_, at in cut.positions.items() if id_ in topology.tails}
    other = {id_ for id_ in known if topology.tails[id_].is_other_log(cut.logs.get(id_))}
    beyond = {id_ for id_, at in known.items() if at > topology.tails[id_].next} - other
    if not other and not beyond:
        return None
    if other:
        lost(f"topic {name}: {RECREATED} ({_places(known, other)}). {ADVICE}")
    if beyond:
        lost(_beyond_text(name, known, beyond, topology))
    if len(other) == len(known):
        # The new topic may have different segments under the same ids.
        return resolve("earliest", topology, name)
    tails = topology.tails
    moved = {id_: tails[id_].first for id_ in other}
    moved |= {id_: tails[id_].first if id_ not in cut.logs else tails[id_].next for id_ in beyond}
    return topology.cut({**cut.positions, **moved})


def _beyond_text(name: str, known: Mapping[int, int], beyond: Iterable[int], topology: Topology) -> str:
    ends = ", ".join(f"{id_} ends at {topology.tails[id_].next}" for id_ in sorted(beyond))
    return (
        f"topic {name} is shorter than what the query has read of it ({_places(known, beyond)}; {ends}): "
        f"it was deleted and created again, or its broker lost messages or was restored. {ADVICE}"
    )


def _places(positions: Mapping[int, int], some: Iterable[int]) -> str:
    return ", ".join(f"segment {id_} up to position {positions[id_]}" for id_ in sorted(some))


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
    """Return the oldest segments unrelated to the known ones, at their first stored message."""
    layout = topology.layout
    reached = {other for id_ in known for other in (id_, *layout.ancestors(id_), *layout.descendants(id_))}
    outside = [id_ for id_ in sorted(layout.segments) if id_ not in reached]
    return {
        id_: topology.tails[id_].first
        for id_ in outside
        if not any(parent in outside for parent in layout.segments[id_].parents)
    }
