"""A topic of lists and a Spark of micro-batches, for laws of the Spark planner.

The toy topic follows `Layout` through splits, merges, rebuckets, trims and prunes; the toy Spark runs
micro-batches, stops in the middle of one and replays it after the topic has changed.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hypothesis import strategies as st

from anabranch.model.hashing import key_hash, segment_hash
from anabranch.model.layout import Layout
from anabranch.model.routing import Router
from anabranch.spark.decide.source.offsets import Cut, decode, encode
from anabranch.spark.decide.source.partitions import Partition, plan_in_key_order
from anabranch.spark.decide.source.planner import CHAINED_BYTES, Pace, advance
from anabranch.spark.decide.source.slices import slices_between
from anabranch.spark.decide.source.starts import resolve
from anabranch.spark.decide.source.topology import Limit, Lost, SegmentSpan, Topology, uncovered

TOPIC = "orders"
KEYS = [f"key-{n}" for n in range(40)]

Message = tuple[str, int]


@dataclass
class ToyTopic:
    """Segments as lists of (key, sequence of the key)."""

    layout: Layout = field(default_factory=lambda: Layout.initial(1, now_ms=0))
    logs: dict[int, list[Message]] = field(default_factory=lambda: defaultdict(list))
    times: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    firsts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """First position that was not trimmed."""
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    now_ms: int = 1000

    def send(self, keys: Sequence[str]) -> None:
        router = Router(self.layout)
        for number, key in enumerate(keys):
            id_ = router.segment_for(key_hash(key)).id
            self.logs[id_].append((key, self.sent[key]))
            self.times[id_].append(self.now_ms)
            self.sent[key] += 1
            # Several messages are stored in one millisecond.
            self.now_ms += number % 3 == 0

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

    def trim(self, pick: int) -> None:
        """Drop the oldest messages of one segment."""
        id_ = sorted(self.layout.segments)[pick % len(self.layout.segments)]
        self.firsts[id_] = max(self.firsts[id_], len(self.logs[id_]) * (pick % 4) // 4)

    def prune(self, pick: int) -> None:
        """Drop sealed segments with all their ancestors."""
        sealed = self.layout.sealed
        if sealed:
            id_ = sealed[pick % len(sealed)].id
            gone = {id_, *self.layout.ancestors(id_)}
            self.layout = self.layout.prune(gone, {other: len(self.logs[other]) for other in gone})
            self.firsts.update({other: len(self.logs[other]) for other in gone})

    def topology(self) -> Topology:
        tails = {
            id_: SegmentSpan(self.firsts[id_], len(self.logs[id_]), not s.active, log=7)
            for id_, s in self.layout.segments.items()
        }
        return Topology.of(self.layout, tails)

    def stored_at(self, topic: str, positions: Mapping[int, int]) -> dict[int, int]:
        found = {}
        for id_, position in positions.items():
            times = self.times[id_][max(position, self.firsts[id_]) :]
            if times and id_ in self.layout.segments:
                found[id_] = times[0]
        return found

    def stored_after(self, topic: str, segments: Sequence[int], time_ms: int) -> dict[int, int]:
        return {
            id_: bisect_right(self.times[id_], time_ms) for id_ in segments if id_ in self.layout.segments
        }

    def read(self, partition: Partition) -> list[Message]:
        rows: list[Message] = []
        for strand in partition:
            for piece in strand.slices:
                ranges = strand.ranges_for(piece)
                assert piece.lo >= self.firsts[piece.segment], "a trimmed message cannot be read"
                for key, number in self.logs[piece.segment][piece.lo : piece.hi]:
                    raw, hashes = key_hash(key), piece.bucket_hashes
                    inside = ranges is None or any(segment_hash(raw) in part for part in ranges)
                    if inside and (hashes is None or raw & 0xFFFF in hashes):
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
    chained_bytes: float = CHAINED_BYTES
    lost: Lost = fail
    min_partitions: int | None = None
    """None: every other batch is cut into as many tasks as there may be."""

    def decide(self, limit: Limit, view: Topology | None = None) -> bool:
        """Write the next end offset to the log; False when there is nothing to do."""
        topology = view or self.topic.topology()
        if not self.log:
            end = Cut({TOPIC: resolve("earliest", topology, TOPIC)})
        else:
            start = decode(json.loads(self.log[-1]))
            assert isinstance(start, Cut)
            end = advance(start, {TOPIC: topology}, Pace(limit, self.chain, self.chained_bytes))
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
        slices = slices_between(start, end, {TOPIC: self.topic.topology()}, self.lost)
        fewest = self.min_partitions or (self.max_partitions if len(self.log) % 2 else 1)
        return plan_in_key_order(slices, self.max_partitions, self.buckets, fewest)

    def run(self) -> None:
        partitions = self.plan()
        assert len(partitions) <= max(self.max_partitions, self.min_partitions or 1)
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


BATCHES_MAX = 10_000
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


class HasSent(Protocol):
    """A topic that counts the messages of each key."""

    sent: dict[str, int]


def check_rows(rows: Sequence[Message], topic: HasSent) -> None:
    seen: dict[str, list[int]] = {key: [] for key in topic.sent}
    for key, number in rows:
        seen[key].append(number)
    assert seen == {key: list(range(count)) for key, count in topic.sent.items()}


class MicroBatches(Protocol):
    """A toy Spark."""

    def decide(self, limit: Limit) -> bool: ...

    def run(self) -> None: ...


def drive(
    spark: MicroBatches,
    limit: Limit,
    operations: Sequence[tuple[str, int]],
    change: Callable[[tuple[str, int]], None],
) -> None:
    """Run and interrupt micro-batches while the topic changes, then read all that is left."""
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
            change(operation)
    if undone:
        spark.run()
    for _ in range(BATCHES_MAX):
        if not spark.decide(limit):
            return
        spark.run()
    raise AssertionError("the query makes no progress")
