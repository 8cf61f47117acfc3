"""Computes how far a query is behind its topics, from the two offsets in Spark's progress. Pure.

Spark does not let a Python source fill its metrics, but it shows the offset that a micro-batch reached and
the newest one that the source reports. The report names every segment that is not read yet, including sealed
ones, so the difference between the two offsets is the number of waiting messages.

Example: the query reached {0: 70}. Segment 0 is sealed with 100 messages; its children 1 and 2 have 40 and 0.
The source reports {0: 100, 1: 40, 2: 0}, so the query is 30 + 40 + 0 = 70 messages behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.spark.decide.source.offsets import Cut, TopicCut
from anabranch.spark.decide.source.places import place_of, position_of, rows_between
from anabranch.spark.decide.source.topology import Topology

COUNTED_MAX = 2**44
"""Higher positions are places on Apache Pulsar, whose difference is not a number of messages."""


@dataclass(frozen=True, slots=True)
class TopicLag:
    """The waiting messages of one topic, by segment."""

    segments: Mapping[int, int]

    @property
    def messages(self) -> int:
        return sum(self.segments.values())


@dataclass(frozen=True, slots=True)
class Lag:
    """The waiting messages by topic; most, least and mean are over the segments of all topics."""

    topics: Mapping[str, TopicLag]

    @property
    def messages(self) -> int:
        return sum(topic.messages for topic in self.topics.values())

    @property
    def most(self) -> int:
        return max(self._counts(), default=0)

    @property
    def least(self) -> int:
        return min(self._counts(), default=0)

    @property
    def mean(self) -> float:
        counts = self._counts()
        return sum(counts) / len(counts) if counts else 0.0

    def metrics(self) -> dict[str, str]:
        """Return the metrics under the names of Spark's Kafka source, and the messages of each topic."""
        return {
            "maxOffsetsBehindLatest": str(self.most),
            "minOffsetsBehindLatest": str(self.least),
            "avgOffsetsBehindLatest": f"{self.mean:g}",
            "totalOffsetsBehindLatest": str(self.messages),
            **{f"offsetsBehindLatest.{name}": str(topic.messages) for name, topic in self.topics.items()},
        }

    def __str__(self) -> str:
        each = ", ".join(f"{name} {topic.messages}" for name, topic in self.topics.items())
        return (
            f"{self.messages} {'message' if self.messages == 1 else 'messages'} behind "
            f"(segments: max {self.most}, min {self.least}, "
            f"mean {self.mean:g}; topics: {each})"
        )

    def _counts(self) -> list[int]:
        return [count for topic in self.topics.values() for count in topic.segments.values()]


def newest_ends(topologies: Mapping[str, Topology], reached: Cut | None) -> Cut:
    """Return the ends of all segments that a query at the cut `reached` has not left behind.

    Sealed segments are listed with their final end, so the result is a cut at the end of each topic.
    """
    found = {}
    for name, topology in topologies.items():
        ids = {segment.id for segment in topology.layout.active}
        if reached is not None and name in reached.topics:
            ids |= _ahead(reached.topics[name].positions, topology)
        tails = {id_: topology.tails[id_] for id_ in ids if id_ in topology.tails}
        positions = {id_: tail.next for id_, tail in tails.items()}
        per_entry = max(
            (tail.per_entry for tail in tails.values() if tail.per_entry is not None), default=None
        )
        found[name] = TopicCut(positions, topology.layout.epoch, per_entry=per_entry)
    return Cut(found)


def _ahead(positions: Iterable[int], topology: Topology) -> set[int]:
    known = [id_ for id_ in positions if id_ in topology.layout.segments]
    return {*known, *(other for id_ in known for other in topology.layout.descendants(id_))}


def lag_between(reached: Cut, newest: Cut) -> Lag:
    """Return the messages between the cut of a micro-batch and the ends that the source reported."""
    topics = {}
    for name, ends in sorted(newest.topics.items()):
        if ends.per_entry is None and max(ends.positions.values(), default=0) >= COUNTED_MAX:
            continue
        cut = reached.topics.get(name, TopicCut({}))
        topics[name] = TopicLag(
            {id_: _rows(cut.positions.get(id_, 0), end, ends) for id_, end in sorted(ends.positions.items())}
        )
    return Lag(topics)


def _rows(at: int, end: int, ends: TopicCut) -> int:
    if ends.per_entry is None:
        return max(0, end - at)
    # For a segment that the query has not begun, only the entries of the last ledger can be counted.
    return rows_between(at or position_of(place_of(end)._replace(entry=0, batch=0)), end, ends.per_entry)


def sum_of(lags: Iterable[Lag]) -> Lag:
    """Return the lag of a query with several sources; sources of one topic count separately."""
    topics: dict[str, TopicLag] = {}
    for number, lag in enumerate(lags):
        for name, topic in lag.topics.items():
            topics[name if name not in topics else f"{name} (source {number})"] = topic
    return Lag(topics)
