"""Laws of the Spark planner on random DAGs: each message once, a key in order and in one task of a batch."""

from __future__ import annotations

import json
from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.spark.decide.source.offsets import Cut, TopicCut, decode
from anabranch.spark.decide.source.partitions import PartitionLimits, plan_by_position, plan_in_key_order
from anabranch.spark.decide.source.planner import Pace, advance
from anabranch.spark.decide.source.slices import forget_gone, slices_between, slices_of_range
from anabranch.spark.decide.source.starts import resolve
from anabranch.spark.decide.source.topology import Limit, Slice
from tests.properties.spark_toys import (
    KEYS,
    OPERATIONS,
    RUNS,
    TOPIC,
    ToySpark,
    ToyTopic,
    apply,
    check_rows,
    classic,
    drive,
    fail,
)


@settings(max_examples=300)
@given(
    operations=st.lists(OPERATIONS, min_size=5, max_size=60),
    chain=st.booleans(),
    limit=st.sampled_from([Limit(), Limit(rows=1), Limit(rows=13), Limit(bytes=20_000), Limit(200, 70_000)]),
    tasks=st.tuples(st.sampled_from([None, None, 2, 7]), st.integers(1, 5)),
    buckets=st.sampled_from([1, 1, 1, 3]),
)
def test_each_message_comes_once_and_each_key_in_order(
    operations: list[tuple[str, int]],
    chain: bool,
    limit: Limit,
    tasks: tuple[int | None, int],
    buckets: int,
) -> None:
    topic = ToyTopic()
    fewest, most = tasks
    spark = ToySpark(topic, chain, most, buckets, min_partitions=fewest)
    drive(spark, limit, operations, partial(apply, topic))
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
        assert all(sum(s.rows for strand in p for s in strand.slices) <= max_rows for p in partitions)
    in_order = [row for p in plan_in_key_order(slices, 3) for row in topic.read(p)]
    check_rows(in_order, topic)


@settings(max_examples=100)
@given(operations=st.lists(OPERATIONS, max_size=50), fewest=st.integers(1, 12), most=st.integers(1, 5))
def test_there_are_as_many_tasks_as_were_asked_for(
    operations: list[tuple[str, int]], fewest: int, most: int
) -> None:
    topic = ToyTopic()
    topic.send(KEYS)
    for operation in operations:
        apply(topic, operation)
    partitions = plan_in_key_order(whole_range(topic), most, min_partitions=fewest)
    assert fewest <= len(partitions) <= max(fewest, most)
    check_rows([row for partition in partitions for row in topic.read(partition)], topic)


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
    end = advance(kept, {TOPIC: topic.topology()}, Pace(chain=chain))
    assert sum(s.rows for s in slices_between(cut, end, {TOPIC: topic.topology()}, fail)) == len(KEYS)


def _position(cut: Cut, segment: int) -> int:
    # A sealed segment that is not in the map was left behind, fully read.
    return cut.topics[TOPIC].positions.get(segment, 2**62)


def whole_range(topic: ToyTopic) -> list[Slice]:
    topology = topic.topology()
    earliest: TopicCut = resolve("earliest", topology, TOPIC)
    return slices_of_range(earliest, resolve("latest", topology, TOPIC), topology, TOPIC, fail)
