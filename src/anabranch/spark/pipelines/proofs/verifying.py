"""Proves in one distributed pass that a topic lost, doubled and reordered nothing, or names the places.

Only sums by block of positions and by producer reach the driver, never all messages. The pass is in
`verify_pass`; `spark.decide.pipelines.evidence` decides what its sums mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Window
from pyspark.sql import functions as sql

from anabranch.spark.decide.pipelines.evidence import (
    CountedBlock,
    Spot,
    Stretch,
    coverage,
    holes,
    is_counted,
    joined,
    layout_findings,
    misplaced,
    removed,
)
from anabranch.spark.decide.pipelines.verify_report import (
    Counts,
    Kind,
    VerifyFinding,
    VerifyReport,
    what_was_not,
    what_was_proved,
)
from anabranch.spark.options.starts import END_OPTIONS, START_OPTIONS
from anabranch.spark.pipelines.failures import spark_failures
from anabranch.spark.pipelines.progress import Show, batch_shown, showing
from anabranch.spark.pipelines.proofs.verify_pass import FAULTS, Expectations, MessageFault, VerifyPass
from anabranch.spark.pipelines.stored_topics import TopicSnapshot, stored_topic
from anabranch.spark.pipelines.topic_places import TopicPlace, as_topic_place, refuse_options
from anabranch.spark.service import close_sessions
from anabranch.spark.source.data_source import AnabranchSource

FINDINGS_MAX = 1000
"""The largest number of findings in a report."""

STRETCHES_READ = 20
"""The number of incomplete stretches that are read again to find the exact place; others are named whole."""

_SUMS = ("messages", "offsetSum", "keys", "withoutKey", "withoutSequence", "withoutNumber")


def verify(
    spark: Any,
    topic: TopicPlace | str,
    expect: Expectations | None = None,
    show: Show | None = None,
    *,
    source: type[AnabranchSource] = AnabranchSource,
) -> VerifyReport:
    """Check all messages that the topic stores now; messages that arrive later do not count.

    The report says what was proved and what was not. Tests pass a `source` that reads from files.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        report = pipelines.verify(spark, orders, pipelines.Expectations(complete=True))
        assert report.holds, report.findings
    """
    expect = expect or Expectations()
    refuse_options(as_topic_place(topic), (*START_OPTIONS, *END_OPTIONS), "verify")
    stored = stored_topic(topic, source)
    # The pass finds gaps and bad entries itself, and must not stop at the first one.
    messages = stored.frame(spark, _columns(expect), failOnDataLoss=False, badEntries="skip")
    sums = VerifyPass(expect, counted=is_counted(stored.topology)).over(messages).persist()
    try:
        with (
            spark_failures(),
            showing(show, "verify") as display,
            batch_shown(spark, display, stored.messages),
        ):
            return _report(stored, expect, messages, sums)
    finally:
        sums.unpersist()
        close_sessions()


def _columns(expect: Expectations) -> str:
    found = "segment bigint, position bigint, timestamp timestamp, key binary, keyHash int"
    found += ", producer string, sequence bigint"
    if expect.sequence_header is not None:
        found += ", headers array<struct<key:string,value:binary>>"
    elif expect.sequence_path is not None:
        found += ", value binary"
    return found


def _report(stored: TopicSnapshot, expect: Expectations, messages: Any, sums: Any) -> VerifyReport:
    topic, topology = stored.name, stored.topology
    blocks, counts = _blocks(sums)
    counts = _with_producers(counts, sums)
    gone = removed(topic, topology, complete=expect.complete)
    found = layout_findings(topic, topology)
    found += gone.findings
    found += _position_findings(stored, blocks)
    found += misplaced(topic, topology, blocks)
    found += _message_findings(topic, expect, sums)
    if expect.dense_producers and counts.producers_with_gaps:
        found += _producer_gaps(topic, messages)
    how = {
        "counted": is_counted(topology),
        "dense_producers": expect.dense_producers,
        "numbered": expect.numbered,
    }
    return VerifyReport(
        topic,
        counts,
        tuple(found[:FINDINGS_MAX]),
        max(0, len(found) - FINDINGS_MAX),
        () if found else what_was_proved(counts, **how),
        what_was_not(counts, gone.notes, **how),
    )


def _blocks(sums: Any) -> tuple[list[CountedBlock], Counts]:
    """Return the blocks of all segments, and their sums without the producers."""
    rows = (
        sums.groupBy("segment", "block")
        .agg(
            *(sql.sum(name).alias(name) for name in _SUMS),
            sql.min("first").alias("first"),
            sql.max("last").alias("last"),
            sql.min("lowest").alias("lowest"),
            sql.max("highestSlot").alias("highest"),
        )
        .collect()
    )
    blocks = [
        CountedBlock(
            row["segment"],
            row["block"],
            row["messages"],
            row["first"],
            row["last"],
            row["offsetSum"],
            _spot(row["lowest"]),
            _spot(row["highest"]),
        )
        for row in rows
    ]
    totals = {name: sum(row[name] for row in rows) for name in _SUMS}
    return blocks, Counts(
        messages=totals["messages"],
        keys=totals["keys"],
        segments=len({block.segment for block in blocks}),
        without_key=totals["withoutKey"],
        without_sequence=totals["withoutSequence"],
        without_number=totals["withoutNumber"],
    )


def _spot(row: Any) -> Spot | None:
    return None if row is None else Spot(row["slot"], row["position"], bytes(row["key"]))


def _with_producers(counts: Counts, sums: Any) -> Counts:
    used = sql.sum("messages") - sql.sum("withoutSequence") - sql.sum("againCount")
    width = sql.max("highestSequence") - sql.min("lowestSequence") + 1
    skipped = sql.col("skipped")
    row = (
        sums.groupBy("producer")
        .agg(sql.coalesce(width - used, sql.lit(0)).alias("skipped"))
        .agg(
            sql.count("*").alias("producers"),
            sql.count_if(skipped > 0).alias("withGaps"),
            sql.coalesce(sql.sum(skipped), sql.lit(0)).alias("skipped"),
        )
        .collect()[0]
    )
    return replace(
        counts,
        producers=row["producers"],
        producers_with_gaps=row["withGaps"],
        skipped_ids=row["skipped"],
    )


def _position_findings(stored: TopicSnapshot, blocks: Sequence[CountedBlock]) -> list[VerifyFinding]:
    seen = coverage(stored.topology, blocks)
    lacking: list[Stretch] = []
    unreadable: list[Stretch] = []
    for number, part in enumerate(seen.incomplete):
        found = _holes(stored, part) if number < STRETCHES_READ else [part]
        lacking += found
        unreadable += [] if found else [part]
    return [
        *(_of_stretch(stored.name, part, "no message is stored there") for part in joined(lacking)),
        *(_of_stretch(stored.name, part, "entries that cannot be read") for part in unreadable),
        *(_of_stretch(stored.name, part, "some of them twice") for part in seen.repeated),
    ]


def _holes(stored: TopicSnapshot, within: Stretch) -> list[Stretch]:
    entries = stored.entries([stored.part(*within)])
    return holes(within, ((entry.first, entry.positions) for entry in entries))


def _of_stretch(topic: str, part: Stretch, text: str) -> VerifyFinding:
    kind: Kind = "repeated" if text == "some of them twice" else "missing"
    count = 1 if kind == "repeated" else part.hi - part.lo
    expected = f"positions {part.lo} to {part.hi - 1}, each once"
    return VerifyFinding(kind, topic, expected, text, part.segment, part.lo, count=count)


def _message_findings(topic: str, expect: Expectations, sums: Any) -> list[VerifyFinding]:
    faults = [fault for fault in FAULTS if expect.numbered or not fault.of_number]
    faulty = sum((sql.col(fault.number) for fault in faults), start=sql.lit(0)) > 0
    rows = sums.where(faulty).orderBy("segment", "block", "producer").limit(FINDINGS_MAX).collect()
    return [_of_message(topic, fault, row) for fault in faults for row in rows if row[fault.number]]


def _of_message(topic: str, fault: MessageFault, row: Any) -> VerifyFinding:
    place = row[fault.first]
    return VerifyFinding(
        fault.kind,
        topic,
        place["expected"],
        place["found"],
        row["segment"],
        place["position"],
        None if place["key"] is None else bytes(place["key"]),
        row["producer"],
        row[fault.number],
    )


def _producer_gaps(topic: str, messages: Any) -> Iterable[VerifyFinding]:
    """Return the places after missing sequence ids. The topic is read again, which is rarely necessary."""
    ascending = Window.partitionBy("producer").orderBy("sequence", "segment", "position")
    rows = (
        messages.select("producer", "sequence", "segment", "position", "key")
        .withColumn("before", sql.lag("sequence").over(ascending))
        .where(sql.col("sequence") > sql.col("before") + 1)
        .orderBy("producer", "sequence")
        .limit(FINDINGS_MAX)
        .collect()
    )
    for row in rows:
        yield VerifyFinding(
            "missing",
            topic,
            f"sequence id {row['before'] + 1} of the producer",
            f"sequence id {row['sequence']}",
            row["segment"],
            row["position"],
            None if row["key"] is None else bytes(row["key"]),
            row["producer"],
            row["sequence"] - row["before"] - 1,
        )
