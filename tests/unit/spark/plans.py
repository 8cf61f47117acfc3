"""Short notations for layouts and cuts in tests of the planner."""

from __future__ import annotations

from anabranch.model.layout import Layout
from anabranch.spark.decide.source.offsets import Cut, TopicCut
from anabranch.spark.decide.source.topology import SegmentSpan, Topology

T = "orders"


def topology(layout: Layout, **counts: int) -> Topology:
    """Segments with so many messages; s0=5 means five in segment 0."""
    tails = {
        id_: SegmentSpan(0, counts.get(f"s{id_}", 0), not segment.active)
        for id_, segment in layout.segments.items()
    }
    return Topology(layout, tails)


def split_once() -> Layout:
    return Layout.initial(1, now_ms=0).split(0, now_ms=0)


def cut(**positions: int) -> Cut:
    return Cut({T: TopicCut({int(name[1:]): at for name, at in positions.items()})})


def at(found: Cut) -> dict[int, int]:
    return dict(found.topics[T].positions)


def fail(text: str) -> None:
    raise AssertionError(text)
