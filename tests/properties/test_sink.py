"""Rows of a sink are published once and in key order, through crashes and layout changes at any moment.

Segments are modelled with the broker's own rules: what a segment stored, what it inherited, and how an entry
of one or of several messages is recognised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.model.inheritance import Known, Pieces, handed_on, inherit
from anabranch.model.layout import Layout
from anabranch.model.ranges import HashRange
from anabranch.spark.decide.sink.republishing import (
    SLOT_MASK,
    RoutedRows,
    Stamp,
    judge,
    parts_of,
    whole_target,
)

SINK = "sink"
Row = tuple[int, int]
"""Raw hash of the key, and the place of the row among all rows."""


@dataclass
class SegmentModel:
    range: HashRange
    inherited: Pieces = ()
    own: int = -1
    stored: list[Row] = field(default_factory=list)

    @property
    def known(self) -> int:
        return max(self.own, Known(self.inherited, SINK).highest)

    def publish(self, numbers: Sequence[int], rows: Sequence[Row], *, alone: bool) -> None:
        last, known = numbers[-1], Known(self.inherited, SINK)
        slot = rows[0][0] >> 16 if alone else None
        if last <= self.own or (last <= known.highest and known.is_duplicate(last, slot)):
            return
        self.own = last
        self.stored += rows


class TopicModel:
    def __init__(self, segments: int) -> None:
        self.layout = Layout.initial(segments, now_ms=0)
        self.segments = {one.id: SegmentModel(one.range) for one in self.layout.active}

    def change(self, how: int, where: int) -> None:
        active = self.layout.active
        target = active[where % len(active)]
        if how == 0 and target.range.width > 1 and len(active) < 8:
            following = self.layout.split(target.id, now_ms=0)
        elif how == 1 and len(active) > 1:
            at = where % (len(active) - 1)
            following = self.layout.merge([one.id for one in active[at : at + 2]], now_ms=0)
        else:
            splits = (where * 37 + 2, 9000) if len(target.bucket_splits) != 2 else ()
            following = self.layout.rebucket(target.id, splits, now_ms=0)
        for child in following.active:
            if child.id not in self.segments:
                passed = [
                    piece
                    for parent in child.parents
                    for piece in handed_on(
                        self.segments[parent].range,
                        {SINK: self.segments[parent].own} if self.segments[parent].own >= 0 else {},
                        self.segments[parent].inherited,
                    )
                ]
                self.segments[child.id] = SegmentModel(child.range, inherit(child.range, passed))
        self.layout = following


StagedEntry = tuple[Stamp, list[Row]]


def stage(topic: TopicModel, rows: list[Row]) -> list[StagedEntry]:
    """Rows as a task stages them: entries of one bucket each."""
    layout = topic.layout
    found: list[StagedEntry] = []
    hashes = [raw for raw, _ in rows]
    for part in parts_of(hashes, None, layout):
        mine = [rows[row] for row in sorted(part.rows)]
        slots = [raw & SLOT_MASK for raw, _ in mine]
        range_ = layout.segments[part.segment].range
        found.append((Stamp("a", "t", part.segment, range_, 0, HashRange(min(slots), max(slots))), mine))
    return found


Sends = dict[int, list[tuple[list[int], list[Row], bool]]]


def recut(
    segment: SegmentModel, part: RoutedRows, rows: list[Row], first: int
) -> Iterator[tuple[list[int], list[Row], bool]]:
    mine = [first + number for number in part.numbers]
    alone, together = judge(mine, segment.own, segment.known)
    picked = [rows[row] for row in part.rows]
    for at in range(alone, together):
        yield [mine[at]], [picked[at]], True
    if together < len(mine):
        yield mine[together:], picked[together:], False


def plan(topic: TopicModel, staged: list[StagedEntry]) -> Sends:
    """The entries that one attempt sends to each segment: numbers, rows, and whether the row is alone."""
    first = 0
    sends: Sends = {id_: [] for id_ in topic.segments}
    for stamp, rows in staged:
        numbers = list(range(first, first + len(rows)))
        first += len(rows)
        home = whole_target(stamp, topic.layout)
        if home is not None and numbers[-1] <= topic.segments[home].own:
            continue
        if home is not None and numbers[0] > topic.segments[home].known:
            sends[home].append((numbers, rows, False))
            continue
        for part in parts_of([raw for raw, _ in rows], home, topic.layout):
            sends[part.segment] += recut(topic.segments[part.segment], part, rows, numbers[0])
    return sends


def deliver(topic: TopicModel, sends: Sends, id_: int, count: int) -> None:
    """The first entries of an attempt reach a segment; each segment has a connection of its own."""
    for numbers, rows, alone in sends[id_][:count]:
        topic.segments[id_].publish(numbers, rows, alone=alone)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_every_row_is_stored_once_and_in_key_order(seed: int) -> None:
    # Hypothesis prefers small numbers, which seldom make a case that is interesting here.
    rng = Random(seed)
    topic = TopicModel(rng.randint(1, 4))
    keys = [rng.getrandbits(32) for _ in range(rng.randint(1, 12))]
    rows = [(rng.choice(keys), place) for place in range(rng.randint(1, 40))]

    def change(most: int) -> None:
        for _ in range(rng.randint(0, most)):
            topic.change(rng.randint(0, 2), rng.randint(0, 50))

    staged: list[StagedEntry] = []
    for begin in range(0, len(rows), 10):
        staged += stage(topic, rows[begin : begin + 10])
        change(1)
    for _ in range(rng.randint(0, 5)):
        sends = plan(topic, staged)
        for segment in topic.layout.active:
            deliver(topic, sends, segment.id, rng.randint(0, 4))
        change(2)
    sends = plan(topic, staged)
    for segment in topic.layout.active:
        deliver(topic, sends, segment.id, 10**9)
    check(topic, rows)


def check(topic: TopicModel, rows: list[Row]) -> None:
    stored = [row for _, segment in sorted(topic.segments.items()) for row in segment.stored]
    assert sorted(place for _, place in stored) == list(range(len(rows)))
    for key in {raw for raw, _ in rows}:
        places = [place for raw, place in stored if raw == key]
        assert places == sorted(places)
