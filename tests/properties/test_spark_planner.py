"""Laws of the Spark planner on random DAGs: each message once, a key in order and in one task of a batch.

The toy topic keeps its messages in lists and follows `Layout` through splits, merges and rebuckets; the toy
Spark runs micro-batches, stops in the middle of one and replays it after the topic has changed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.model.hashing import key_hash, segment_hash
from anabranch.model.layout import Layout, Router
from anabranch.spark.decide.offsets import Cut, TopicCut, decode, encode
from anabranch.spark.decide.partitions import Partition, PartitionLimits, plan_by_position, plan_in_key_order
from anabranch.spark.decide.planner import advance
from anabranch.spark.decide.slices import forget_gone, slices_between, slices_of_range
from anabranch.spark.decide.starts import resolve
from anabranch.spark.decide.topology import Limit, SegmentSpan, Slice, Topology, uncovered

TOPIC = "orders"
KEYS = [f"key-{n}" for n in range(40)]

Message = tuple[str, int]


@dataclass
class ToyTopic:
    """Segments as lists of (key, sequence of the key)."""

    layout: Layout = field(default_factory=lambda: Layout.initial(1, now_ms=0))
    logs: dict[int, list[Message]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))

    def send(self, keys: Sequence[str]) -> None:
        router = Router(self.layout)
        for key in keys:
            self.logs[router.segment_for(key_hash(key)).id].append((key, self.sent[key]))
            self.sent[key] += 1

    def change(self, kind: str, pick: int) -> None:
        active = self.layout.active
        segment = active[pick % len(active)]
        if kind == "split" and segment.range.width > 4:
            parts = 2 + pick % 3
            points = [part.start for part in segment.range.parts(parts)[1:]]
            self.layout = self.layout.split(segment.id, points, now_ms=0)
        elif kind == "merge" and len(active) > 1:
            at = pick % (len(active) - 1)
            width = 2 + pick % 2
            self.layout = self.layout.merge([s.id for s in active[at : at + width]], now_ms=0)
        elif kind == "rebucket":
            splits = (1000 + pick,)
            if segment.bucket_splits != splits:
                self.layout = self.layout.rebucket(segment.id, splits, now_ms=0)

    def topology(self) -> Topology:
        tails = {
            id_: SegmentSpan(0, len(self.logs[id_]), not s.active) for id_, s in self.layout.segments.items()
        }
        return Topology(self.layout, tails)

    def read(self, partition: Partition) -> list[Message]:
        rows: list[Message] = []
        for run in partition:
            for piece in run.slices:
                ranges = run.ranges_for(piece)
                for key, number in self.logs[piece.segment][piece.lo : piece.hi]:
                    if ranges is None or any(segment_hash(key_hash(key)) in part for part in ranges):
                        rows.append((key, number))
        return rows


def fail(text: str) -> None:
    raise AssertionError(f"nothing is lost here: {text}")


@dataclass
class ToySpark:
    """Micro-batches over the planner, with the offset log as the only memory."""

    topic: ToyTopic
    chain: bool
    max_partitions: int
    buckets: int
    log: list[str] = field(default_factory=list)
    rows: list[Message] = field(default_factory=list)
    batches: int = 0

    def decide(self, limit: Limit, view: Topology | None = None) -> bool:
        """Write the next end offset to the log; False when there is nothing to do."""
        topology = view or self.topic.topology()
        if not self.log:
            end = Cut({TOPIC: resolve("earliest", topology, TOPIC)})
        else:
            start = decode(json.loads(self.log[-1]))
            assert isinstance(start, Cut)
            end = advance(start, {TOPIC: topology}, limit, chain=self.chain)
            if end is start:
                return False
            assert json.dumps(encode(end)) != self.log[-1], "a new offset must differ in its text"
            self.check_cut(end, topology)
        self.log.append(json.dumps(encode(end)))
        return True

    def check_cut(self, cut: Cut, topology: Topology) -> None:
        positions = cut.topics[TOPIC].positions
        segments = topology.layout.segments
        assert not uncovered(segments[id_].range for id_ in positions)
        # Classic partitions have keys from anywhere, but never the same ones.
        reading = [
            segments[id_].range
            for id_, at in sorted(positions.items())
            if not topology.finished(id_, at) and segments[id_].legacy_topic is None
        ]
        for at, part in enumerate(reading):
            assert not any(part.overlaps(other) for other in reading[at + 1 :])

    def plan(self) -> list[Partition]:
        """Partitions of the last batch in the log, as of now."""
        if len(self.log) == 1:
            return []
        start, end = (decode(json.loads(text)) for text in self.log[-2:])
        assert isinstance(start, Cut)
        assert isinstance(end, Cut)
        slices = slices_between(start, end, {TOPIC: self.topic.topology()}, fail)
        # Every other batch is cut into as many tasks as there may be.
        fewest = self.max_partitions if len(self.log) % 2 else 1
        return plan_in_key_order(slices, self.max_partitions, self.buckets, fewest)

    def run(self) -> None:
        partitions = self.plan()
        assert len(partitions) <= self.max_partitions
        where: dict[str, int] = {}
        for number, partition in enumerate(partitions):
            rows = self.topic.read(partition)
            for key, _ in rows:
                assert where.setdefault(key, number) == number, f"{key} is in two tasks of one batch"
            self.rows += rows
        self.batches += 1


OPERATIONS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 10**6)),
    st.tuples(st.just("send"), st.integers(0, 10**6)),
    st.tuples(st.sampled_from(["split", "split", "merge", "rebucket"]), st.integers(0, 1000)),
    st.tuples(st.sampled_from(["batch", "interrupted"]), st.integers(0, 1000)),
)


RUNS = ("send", "batch", "interrupted")


def keys_from(number: int) -> list[str]:
    return [KEYS[(number * 7 + at * at + at * number) % len(KEYS)] for at in range(number % 60)]


def apply(topic: ToyTopic, operation: tuple[str, int]) -> None:
    kind, number = operation
    if kind == "send":
        topic.send(keys_from(number))
    else:
        topic.change(kind, number)


def classic(partitions: int) -> Layout:
    """A classic topic, as it is before it is migrated."""
    segments = {
        id_: replace(segment, legacy_topic=f"persistent://public/default/{TOPIC}-partition-{id_}")
        for id_, segment in Layout.initial(partitions, now_ms=0, bucket_budget=1).segments.items()
    }
    return Layout(0, partitions, segments)


def check_rows(rows: Sequence[Message], topic: ToyTopic) -> None:
    seen: dict[str, list[int]] = {key: [] for key in KEYS}
    for key, number in rows:
        seen[key].append(number)
    assert seen == {key: list(range(count)) for key, count in topic.sent.items()}


@settings(max_examples=300)
@given(
    operations=st.lists(OPERATIONS, min_size=5, max_size=60),
    chain=st.booleans(),
    limit=st.sampled_from([Limit(), Limit(rows=1), Limit(rows=13), Limit(bytes=20_000), Limit(200, 70_000)]),
    max_partitions=st.integers(1, 5),
    buckets=st.sampled_from([1, 1, 1, 3]),
)
def test_each_message_comes_once_and_each_key_in_order(
    operations: list[tuple[str, int]], chain: bool, limit: Limit, max_partitions: int, buckets: int
) -> None:
    topic = ToyTopic()
    spark = ToySpark(topic, chain, max_partitions, buckets)
    undone = False
    for operation in operations:
        kind, _ = operation
        if kind == "batch":
            if undone or spark.decide(limit):
                spark.run()
            undone = False
        elif kind == "interrupted":
            # Stopped after the offset was logged: the batch is replayed later, on a topic that has changed.
            undone = undone or spark.decide(limit)
        else:
            apply(topic, operation)
    if undone:
        spark.run()
    while spark.decide(limit):
        spark.run()
    check_rows(spark.rows, topic)
    event(f"segments: {min(len(topic.layout.segments) // 10 * 10, 100)}")


@settings(max_examples=200)
@given(
    before=st.lists(OPERATIONS.filter(lambda operation: operation[0] in RUNS), max_size=20),
    operations=st.lists(OPERATIONS, min_size=5, max_size=40),
    partitions=st.integers(1, 4),
    chain=st.booleans(),
    limit=st.sampled_from([Limit(), Limit(rows=1), Limit(rows=13)]),
    max_partitions=st.integers(1, 5),
    buckets=st.sampled_from([1, 1, 3]),
)
def test_a_topic_that_was_a_classic_one_is_read_once_and_in_order_too(
    before: list[tuple[str, int]],
    operations: list[tuple[str, int]],
    partitions: int,
    chain: bool,
    limit: Limit,
    max_partitions: int,
    buckets: int,
) -> None:
    topic = ToyTopic(classic(partitions))
    spark = ToySpark(topic, chain, max_partitions, buckets)
    migrate = ("migrate", 0)
    for operation in [*before, migrate, *operations]:
        kind, _ = operation
        if operation is migrate:
            topic.layout = topic.layout.migrate(now_ms=0)
        elif kind in ("batch", "interrupted"):
            if spark.decide(limit):
                spark.run()
        else:
            apply(topic, operation)
    while spark.decide(limit):
        spark.run()
    check_rows(spark.rows, topic)


@settings(max_examples=100)
@given(
    before=st.lists(OPERATIONS, max_size=30), meanwhile=st.lists(OPERATIONS, max_size=30), chain=st.booleans()
)
def test_a_replayed_batch_is_planned_alike_after_the_topic_has_changed(
    before: list[tuple[str, int]], meanwhile: list[tuple[str, int]], chain: bool
) -> None:
    topic = ToyTopic()
    spark = ToySpark(topic, chain, max_partitions=3, buckets=1)
    spark.decide(Limit())
    for operation in before:
        apply(topic, operation)
    spark.decide(Limit(rows=50))
    planned = spark.plan()
    for operation in meanwhile:
        apply(topic, operation)
    assert spark.plan() == planned


@settings(max_examples=100)
@given(
    before=st.lists(OPERATIONS, max_size=30),
    meanwhile=st.lists(OPERATIONS, max_size=30),
    chain=st.booleans(),
    rows=st.integers(1, 40),
)
def test_a_run_on_one_view_ends_though_the_topic_goes_on(
    before: list[tuple[str, int]], meanwhile: list[tuple[str, int]], chain: bool, rows: int
) -> None:
    topic = ToyTopic()
    for operation in before:
        apply(topic, operation)
    view, expected = topic.topology(), sum(topic.sent.values())
    spark = ToySpark(topic, chain, max_partitions=2, buckets=1)
    left = list(meanwhile)
    while spark.decide(Limit(rows=rows), view):
        spark.run()
        if left:
            apply(topic, left.pop())
    assert len(spark.rows) == expected


@settings(max_examples=150)
@given(
    operations=st.lists(OPERATIONS, max_size=50),
    split_bytes=st.integers(1000, 100_000),
    max_rows=st.sampled_from([None, 1, 7]),
    max_partitions=st.sampled_from([None, 1, 4]),
    min_partitions=st.sampled_from([None, 5]),
)
def test_a_batch_read_holds_every_message_once(
    operations: list[tuple[str, int]],
    split_bytes: int,
    max_rows: int | None,
    max_partitions: int | None,
    min_partitions: int | None,
) -> None:
    topic = ToyTopic()
    for operation in operations:
        apply(topic, operation)
    slices = whole_range(topic)
    limits = PartitionLimits(split_bytes, max_partitions, min_partitions, max_rows)
    partitions = plan_by_position(slices, limits)
    rows = [row for partition in partitions for row in topic.read(partition)]
    assert sorted(rows) == sorted((key, n) for key, count in topic.sent.items() for n in range(count))
    if max_partitions is not None:
        assert len(partitions) <= max_partitions
    elif max_rows is not None:
        assert all(sum(s.rows for run in p for s in run.slices) <= max_rows for p in partitions)
    in_order = [row for p in plan_in_key_order(slices, 3) for row in topic.read(p)]
    check_rows(in_order, topic)


@settings(max_examples=100)
@given(first=st.lists(OPERATIONS, max_size=30), second=st.lists(OPERATIONS, max_size=30))
def test_a_range_up_to_a_cut_and_a_range_from_it_make_the_whole(
    first: list[tuple[str, int]], second: list[tuple[str, int]]
) -> None:
    topic = ToyTopic()
    for operation in first:
        apply(topic, operation)
    cut = resolve("latest", topic.topology(), TOPIC)
    for operation in second:
        apply(topic, operation)
    topology = topic.topology()
    earliest, latest = (resolve(at, topology, TOPIC) for at in ("earliest", "latest"))
    below = slices_of_range(earliest, resolve(cut, topology, TOPIC), topology, TOPIC, fail)
    above = slices_of_range(cut, latest, topology, TOPIC, fail)
    rows = [row for part in (below, above) for p in plan_in_key_order(part, 3) for row in topic.read(p)]
    check_rows(rows, topic)


@settings(max_examples=100)
@given(operations=st.lists(OPERATIONS, min_size=10, max_size=50), chain=st.booleans())
def test_segments_pruned_after_they_were_read_are_no_loss(
    operations: list[tuple[str, int]], chain: bool
) -> None:
    topic = ToyTopic()
    spark = ToySpark(topic, chain, max_partitions=2, buckets=1)
    while spark.decide(Limit()):
        spark.run()
    for operation in operations:
        apply(topic, operation)
        while spark.decide(Limit()):
            spark.run()
    cut = decode(json.loads(spark.log[-1]))
    assert isinstance(cut, Cut)
    read = [s.id for s in topic.layout.sealed if topic.topology().finished(s.id, _position(cut, s.id))]
    if not read:
        return
    topic.layout = topic.layout.prune(read)
    kept = forget_gone(cut, {TOPIC: topic.topology()}, fail)
    topic.send(KEYS)
    end = advance(kept, {TOPIC: topic.topology()}, chain=chain)
    assert sum(s.rows for s in slices_between(cut, end, {TOPIC: topic.topology()}, fail)) == len(KEYS)


def _position(cut: Cut, segment: int) -> int:
    # A sealed segment that is not in the map was left behind, fully read.
    return cut.topics[TOPIC].positions.get(segment, 2**62)


def whole_range(topic: ToyTopic) -> list[Slice]:
    topology = topic.topology()
    earliest: TopicCut = resolve("earliest", topology, TOPIC)
    return slices_of_range(earliest, resolve("latest", topology, TOPIC), topology, TOPIC, fail)
