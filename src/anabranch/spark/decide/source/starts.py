"""Turns a request (earliest, latest, a time, or a user's cut) into a concrete cut of one topic. Pure.

Example: segment 0 is sealed with 100 messages and was split into segment 1 with 40 messages and segment 2
with none. Then `earliest` is the cut {0: 0}, because the children follow once segment 0 is read; `latest` is
{1: 40, 2: 0}. A time at which segment 0 is at its message 90 is {0: 90}. A time after the split, with segment
1 at its message 25, is {1: 25, 2: 0}: segment 0 has nothing left to read and is skipped at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.source.moments import Strategy
from anabranch.spark.decide.source.offsets import Cut, Symbol, TopicCut
from anabranch.spark.decide.source.topology import Topology, uncovered


def resolve(at: Symbol | TopicCut, topology: Topology, topic: str) -> TopicCut:
    """Return the cut of one topic that a request means now."""
    layout = topology.layout
    if isinstance(at, TopicCut):
        _check_request(at, topology, topic)
        return topology.cut(at.positions)
    if at == "latest":
        # An active segment may already be sealed while its children are not published yet. The reader then
        # finds it finished, and reads the children from their start as soon as a layout shows them.
        return topology.cut({s.id: topology.tails[s.id].next for s in layout.active})
    return cut_from({id_: tail.first for id_, tail in topology.tails.items()}, topology)


def earliest(topologies: Mapping[str, Topology]) -> Cut:
    """Return the start of a first micro-batch that begins at the earliest messages.

    The cut names no logs. If a topic is recreated before Spark repeats the batch, its messages are lost.
    """
    cuts = {name: resolve("earliest", topology, name) for name, topology in topologies.items()}
    return Cut({name: TopicCut(cut.positions) for name, cut in cuts.items()})


def resolve_time(
    places: Mapping[int, int], topology: Topology, topic: str, moment: str, strategy: Strategy
) -> TopicCut:
    """Return the cut at a moment; `places` has each segment's first position published then or later.

    If there is no such message, the strategy decides between the end of the topic and an error.
    """
    if any(places.get(id_, tail.next) < tail.next for id_, tail in topology.tails.items()):
        return cut_from(places, topology)
    if strategy == "error":
        raise InvalidConfigurationError(
            f"topic {topic} has no message that was published at {moment} or later; set "
            "startingOffsetsByTimestampStrategy=latest to start at the end of the topic instead"
        )
    return resolve("latest", topology, topic)


def cut_from(places: Mapping[int, int], topology: Topology) -> TopicCut:
    """Return the cut that reads each segment from its given position, and its descendants completely.

    A sealed segment that starts at its end is skipped here rather than while reading. Its children may have
    been trimmed as well, and a message that was removed before the query started does not count as lost.
    """
    segments, tails = topology.layout.segments, topology.tails
    # Pruned segments have no position, and nothing to read.
    begins = {id_: min(max(places.get(id_, at.next), at.first), at.next) for id_, at in tails.items()}
    cut = {id_: begins[id_] for id_ in sorted(segments) if not segments[id_].parents}
    passed: set[int] = set()
    # A child always has a higher id than its parents, so this order sees parents first.
    for id_ in sorted(segments):
        if id_ not in cut and set(segments[id_].parents) <= passed:
            cut[id_] = begins[id_]
        if id_ in cut and segments[id_].children and topology.finished(id_, cut[id_]):
            passed.add(id_)
    kept = {
        id_: at
        for id_, at in cut.items()
        if id_ not in passed or not all(child in cut for child in segments[id_].children)
    }
    return topology.cut(kept)


def _check_positions(cut: TopicCut, topology: Topology, topic: str) -> None:
    positions = cut.positions
    for id_ in sorted(positions):
        if topology.tails[id_].is_other_log(cut.logs.get(id_)):
            raise InvalidConfigurationError(
                f"the cut for topic {topic} belongs to an earlier topic of this name that was deleted: "
                f"segment {id_} is a different log now"
            )
        if positions[id_] > topology.tails[id_].next:
            raise InvalidConfigurationError(
                f"the cut for topic {topic} puts segment {id_} at {positions[id_]}, "
                f"beyond its end at {topology.tails[id_].next}"
            )


def _check_request(cut: TopicCut, topology: Topology, topic: str) -> None:
    layout, positions = topology.layout, cut.positions
    unknown = sorted(set(positions) - set(layout.segments))
    if unknown:
        raise InvalidConfigurationError(
            f"the cut for topic {topic} names segments {_list(unknown)}, which the topic does not have"
        )
    _check_positions(cut, topology, topic)
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
            # Every partition of a classic topic spans the whole ring, but no two of them share a key.
            partitions = one.is_classic and two.is_classic
            if one.range.overlaps(two.range) and not partitions:
                raise InvalidConfigurationError(
                    f"the cut for topic {topic} reads segments {id_} and {other} at once, "
                    "although both hold the same keys; a child starts when its parents are read to the end"
                )


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
