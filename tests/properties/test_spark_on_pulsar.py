"""The planner on positions of Apache Pulsar: each message once, a key in order and in one task of a batch.

The toy topic keeps messages at places with sparse ledger ids and entries of different sizes. Its producers
route by the low half of the hash, as 5.0.0-M1 does, and the planner must not need to know.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.model.hashing import key_hash, segment_hash
from anabranch.model.layout import Layout
from anabranch.model.ranges import HashRange
from anabranch.spark.decide.source.offsets import Cut, decode, encode
from anabranch.spark.decide.source.partitions import (
    Partition,
    PartitionLimits,
    plan_by_position,
    plan_in_key_order,
)
from anabranch.spark.decide.source.places import MessagePlace, place_of, position_of
from anabranch.spark.decide.source.planner import Pace, advance
from anabranch.spark.decide.source.slices import slices_between, slices_of_range
from anabranch.spark.decide.source.starts import resolve
from anabranch.spark.decide.source.topology import Limit, SegmentSpan, Slice, Topology
from tests.properties.spark_toys import TOPIC, Message, check_rows, drive, fail

KEYS = [f"key-{n}" for n in range(30)]


@dataclass
class PlacedTopic:
    """Segments as lists of (position, key, sequence of the key)."""

    layout: Layout = field(default_factory=lambda: Layout.initial(1, now_ms=0))
    logs: dict[int, list[tuple[int, Message]]] = field(default_factory=lambda: defaultdict(list))
    ledgers: dict[int, MessagePlace] = field(default_factory=dict)
    """The next place of each segment."""
    first_ledgers: dict[int, int] = field(default_factory=dict)
    newest_ledger: int = 5
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))

    def send(self, keys: Sequence[str], batch: int) -> None:
        """Store one entry per segment and `batch` messages."""
        waiting: dict[int, list[str]] = defaultdict(list)
        for key in keys:
            slot = key_hash(key) & 0xFFFF
            waiting[next(s.id for s in self.layout.active if slot in s.range)].append(key)
        for id_, some in waiting.items():
            for at in range(0, len(some), batch):
                place = self.place(id_)
                for index, key in enumerate(some[at : at + batch]):
                    self.logs[id_].append((position_of(place._replace(batch=index)), (key, self.sent[key])))
                    self.sent[key] += 1
                self.ledgers[id_] = place._replace(entry=place.entry + 1)

    def place(self, id_: int) -> MessagePlace:
        if id_ not in self.ledgers:
            self.roll_over(id_)
        return self.ledgers[id_]

    def roll_over(self, id_: int) -> None:
        self.newest_ledger += 1 + self.newest_ledger % 3
        self.ledgers[id_] = MessagePlace(self.newest_ledger, 0)
        self.first_ledgers.setdefault(id_, self.newest_ledger)

    def change(self, kind: str, pick: int) -> None:
        active = self.layout.active
        segment = active[pick % len(active)]
        if kind == "split" and segment.range.width > 4:
            self.layout = self.layout.split(segment.id, now_ms=0)
        elif kind == "merge" and len(active) > 1:
            at = pick % (len(active) - 1)
            self.layout = self.layout.merge([s.id for s in active[at : at + 2]], now_ms=0)
        elif kind == "roll over":
            self.roll_over(segment.id)

    def topology(self) -> Topology:
        return Topology(self.layout, {id_: self.span(id_) for id_ in self.layout.segments})

    def span(self, id_: int) -> SegmentSpan:
        self.place(id_)
        first = position_of(MessagePlace(self.first_ledgers[id_], 0))
        stored = self.logs[id_]
        next_ = first
        if stored:
            # The broker names the last entry; its ledger may be closed since.
            last = max(position for position, _ in stored)
            next_ = position_of(self.after_entry(last))
        return SegmentSpan(first, next_, not self.layout.segments[id_].active, 3.0)

    @staticmethod
    def after_entry(position: int) -> MessagePlace:
        place = place_of(position)
        return MessagePlace(place.ledger, place.entry + 1)

    def settle(self, cut: Cut, topology: Topology) -> Cut:
        topic = cut.topics[TOPIC]
        moved = {
            id_: min(position for position, _ in self.logs[id_] if position >= at)
            for id_, at in topology.unsettled(topic.positions).items()
        }
        positions = {**topic.positions, **moved}
        return Cut({TOPIC: type(topic)(positions, topic.epoch)})

    def read(self, partition: Partition) -> list[Message]:
        return [
            message
            for strand in partition
            for part in strand.slices
            for position, message in self.logs[part.segment]
            if part.lo <= position < part.hi and kept(message[0], part, strand.ranges_for(part))
        ]


def kept(key: str, part: Slice, ranges: Sequence[HashRange] | None) -> bool:
    """Whether a reader keeps a key that it filters by; as `rows` does it."""
    slot = min(max(segment_hash(key_hash(key)), part.range.start), part.range.end)
    return ranges is None or any(slot in piece for piece in ranges)


@dataclass
class PlacedRun:
    """Micro-batches with the offset log as the only memory."""

    topic: PlacedTopic
    chain: bool
    max_partitions: int
    buckets: int
    log: list[str] = field(default_factory=list)
    rows: list[Message] = field(default_factory=list)

    def decide(self, limit: Limit) -> bool:
        topology = self.topic.topology()
        if not self.log:
            end = Cut({TOPIC: resolve("earliest", topology, TOPIC)})
        else:
            start = decode(json.loads(self.log[-1]))
            assert isinstance(start, Cut)
            end = advance(start, {TOPIC: topology}, Pace(limit, self.chain))
            if end is start:
                return False
            end = self.topic.settle(end, topology)
        self.log.append(json.dumps(encode(end)))
        return True

    def run(self) -> None:
        if len(self.log) < 2:
            return
        start, end = (decode(json.loads(text)) for text in self.log[-2:])
        assert isinstance(start, Cut)
        assert isinstance(end, Cut)
        slices = slices_between(start, end, {TOPIC: self.topic.topology()}, fail)
        where: dict[str, int] = {}
        for number, partition in enumerate(plan_in_key_order(slices, self.max_partitions, self.buckets)):
            rows = self.topic.read(partition)
            for key, _ in rows:
                assert where.setdefault(key, number) == number, f"{key} is in two tasks of one batch"
            self.rows += rows


OPERATIONS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 10**6)),
    st.tuples(st.just("send"), st.integers(0, 10**6)),
    st.tuples(st.sampled_from(["split", "split", "merge", "roll over", "roll over"]), st.integers(0, 1000)),
    st.tuples(st.sampled_from(["batch", "interrupted"]), st.integers(0, 1000)),
)


def apply(topic: PlacedTopic, operation: tuple[str, int]) -> None:
    kind, number = operation
    if kind == "send":
        keys = [KEYS[(number * 7 + at * at + at * number) % len(KEYS)] for at in range(number % 60)]
        topic.send(keys, 1 + number % 7)
    else:
        topic.change(kind, number)


@settings(max_examples=120)
@given(
    operations=st.lists(OPERATIONS, min_size=5, max_size=50),
    chain=st.booleans(),
    limit=st.sampled_from([Limit(), Limit(rows=1), Limit(rows=13), Limit(bytes=20_000)]),
    max_partitions=st.integers(1, 5),
    buckets=st.sampled_from([1, 1, 3]),
)
def test_each_message_comes_once_and_each_key_in_order(
    operations: list[tuple[str, int]], chain: bool, limit: Limit, max_partitions: int, buckets: int
) -> None:
    topic = PlacedTopic()
    spark = PlacedRun(topic, chain, max_partitions, buckets)
    drive(spark, limit, operations, partial(apply, topic))
    check_rows(spark.rows, topic)


@settings(max_examples=50)
@given(
    operations=st.lists(OPERATIONS, max_size=40),
    split_bytes=st.integers(1000, 100_000),
    max_partitions=st.sampled_from([None, 1, 4]),
)
def test_a_batch_read_holds_every_message_once(
    operations: list[tuple[str, int]], split_bytes: int, max_partitions: int | None
) -> None:
    topic = PlacedTopic()
    for operation in operations:
        apply(topic, operation)
    topology = topic.topology()
    earliest, latest = (resolve(at, topology, TOPIC) for at in ("earliest", "latest"))
    slices = slices_of_range(earliest, latest, topology, TOPIC, fail)
    partitions = plan_by_position(slices, PartitionLimits(split_bytes, max_partitions))
    rows = [row for partition in partitions for row in topic.read(partition)]
    assert sorted(rows) == sorted((key, n) for key, count in topic.sent.items() for n in range(count))
    check_rows([row for p in plan_in_key_order(slices, 3) for row in topic.read(p)], topic)
