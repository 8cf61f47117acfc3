"""Laws of limited micro-batches: oldest messages first, within the limit, and no loss is missed."""

from __future__ import annotations

import json
from typing import Any, cast

from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.spark.decide.source.offsets import Cut, decode, encode
from anabranch.spark.decide.source.planner import Pace, counts_between
from anabranch.spark.decide.source.slices import forget_gone, restart_recreated
from anabranch.spark.decide.source.starts import resolve
from anabranch.spark.decide.source.topology import Limit, Topology
from anabranch.spark.source.pacing import Pacer
from tests.properties.spark_toys import (
    KEYS,
    OPERATIONS,
    TOPIC,
    Message,
    ToySpark,
    ToyTopic,
    apply,
    check_rows,
)

LIMITS = st.sampled_from([Limit(), Limit(rows=1), Limit(rows=5), Limit(rows=40), Limit(bytes=9000)])
CHANGES = st.tuples(st.sampled_from(["trim", "prune"]), st.integers(0, 1000))


class PacedSpark(ToySpark):
    """A toy Spark that chooses its cuts as the reader of streams does."""

    pacer: Pacer
    losses: list[str]

    def decide(self, limit: Limit, view: Topology | None = None) -> bool:
        topologies = {TOPIC: view or self.topic.topology()}
        if not self.log:
            self.pacer, self.losses = Pacer(), []
            self.lost = self.losses.append
            self.log.append(json.dumps(encode(Cut({TOPIC: resolve("earliest", topologies[TOPIC], TOPIC)}))))
            return True
        start = decode(json.loads(self.log[-1]))
        assert isinstance(start, Cut)
        assert restart_recreated(start, topologies, self.lost) is start
        start = forget_gone(start, topologies, self.lost)
        pace = Pace(limit, self.chain, self.chained_bytes)
        end = self.pacer.next_cut(cast(Any, self.topic), start, topologies, pace)
        if end is start:
            return False
        self.check_cut(end, topologies[TOPIC])
        rows = sum(counts_between(start, end, topologies).values())
        assert limit.load(rows, rows * 1024.0) <= 1.0 or rows == 1
        self.log.append(json.dumps(encode(end)))
        return True

    def last_times(self) -> list[int]:
        """When the messages of the last batch were stored."""
        slices = [s for partition in self.plan() for strand in partition for s in strand.slices]
        return [at for s in set(slices) for at in self.topic.times[s.segment][s.lo : s.hi]]


@settings(max_examples=150)
@given(
    operations=st.lists(OPERATIONS, min_size=5, max_size=50),
    chain=st.booleans(),
    chained_bytes=st.sampled_from([0.0, 5000.0, 1e9]),
    limit=LIMITS,
)
def test_no_message_is_read_after_a_younger_one_of_an_earlier_batch(
    operations: list[tuple[str, int]], chain: bool, chained_bytes: float, limit: Limit
) -> None:
    topic = ToyTopic()
    spark = PacedSpark(topic, chain, 3, 1, chained_bytes=chained_bytes)
    newest = 0

    def step() -> bool:
        nonlocal newest
        if not spark.decide(limit):
            return False
        times = spark.last_times()
        assert min(times, default=newest) >= newest, "an older message was left behind"
        newest = max([newest, *times])
        spark.run()
        return True

    for operation in operations:
        if operation[0] in ("batch", "interrupted"):
            step()
        else:
            apply(topic, operation)
    batches = 0
    while step():
        batches += 1
        assert batches < 5000, "each batch must make progress"
    check_rows(spark.rows, topic)
    event(f"batches: {batches // 10 * 10}")


def removed(topic: ToyTopic) -> set[Message]:
    return {message for id_, first in topic.firsts.items() for message in topic.logs[id_][:first]}


@settings(max_examples=150)
@given(
    operations=st.lists(st.one_of(OPERATIONS, OPERATIONS, CHANGES), min_size=8, max_size=60),
    chain=st.booleans(),
    limit=LIMITS,
)
def test_a_loss_is_reported_exactly_when_unread_messages_were_removed(
    operations: list[tuple[str, int]], chain: bool, limit: Limit
) -> None:
    topic = ToyTopic()
    spark = PacedSpark(topic, chain, 3, 1)
    spark.decide(limit)
    lost: set[Message] = set()
    for operation in operations:
        kind, pick = operation
        if kind in ("batch", "interrupted"):
            if spark.decide(limit):
                spark.run()
        elif kind in ("trim", "prune"):
            (topic.trim if kind == "trim" else topic.prune)(pick)
            lost |= removed(topic) - set(spark.rows)
        else:
            apply(topic, operation)
    while spark.decide(limit):
        spark.run()
    sent = {(key, number) for key, count in topic.sent.items() for number in range(count)}
    assert len(set(spark.rows)) == len(spark.rows), "no message is read twice"
    assert set(spark.rows) == sent - lost
    assert bool(spark.losses) == bool(lost), spark.losses
    for key in KEYS:
        numbers = [number for found, number in spark.rows if found == key]
        assert numbers == sorted(numbers)
    event(f"lost: {bool(lost)}")
