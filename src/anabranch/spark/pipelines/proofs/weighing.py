"""Weighs the keys and hash slots of a topic over time, and suggests cuts that share the weight evenly.

One job reads the topic and sums by key and interval; the few sums that a report shows are derived from these.
`spark.decide.pipelines.skew` decides which cuts are worth a change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import functions as sql

from anabranch.protocol.entries import checked_metadata
from anabranch.spark.decide.pipelines.evidence import is_counted
from anabranch.spark.decide.pipelines.skew import (
    BUCKET_CELLS,
    RING_CELLS,
    HeavyKey,
    SegmentWeight,
    SkewReport,
    WeightUnit,
    better_boundaries,
    nice_interval_s,
    segment_of_slot,
    weigh_segments,
)
from anabranch.spark.decide.source.topology import Slice, Topology
from anabranch.spark.pipelines.failures import spark_failures
from anabranch.spark.pipelines.progress import Show, batch_shown, showing
from anabranch.spark.pipelines.stored_topics import TopicSnapshot, stored_topic
from anabranch.spark.pipelines.topic_places import TopicPlace
from anabranch.spark.service import close_sessions

HEAVY_KEYS = 20

SEGMENTS_WITH_BUCKETS = 64
"""The number of heaviest segments whose buckets are weighed."""

INTERVAL_ON_PULSAR_S = 3600

SEGMENTS_TIMED = 64
"""The number of oldest and of newest segments whose publish times determine the interval."""


@dataclass(frozen=True, slots=True)
class SkewOptions:
    """How to weigh a topic. Example: `pipelines.SkewOptions(unit="bytes", segments=4)`"""

    unit: WeightUnit = "messages"
    """Whether to count messages, or the bytes of keys and values."""
    segments: int | None = None
    """The number of segments that suggested splits aim at; None for the present number."""
    interval_s: int | None = None
    """The length of an interval; None for a round one that divides the time into at most 48 parts."""


def skew(
    spark: Any,
    topic: TopicPlace | str,
    options: SkewOptions | None = None,
    show: Show | None = None,
) -> SkewReport:
    """Weigh all messages that the topic stores now.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        report = pipelines.skew(spark, orders, pipelines.SkewOptions(unit="bytes"))
        print(report.total, report.heavy_keys)
    """
    options = options or SkewOptions()
    unit = options.unit
    stored = stored_topic(topic)
    columns = "key binary, keyHash int, timestamp timestamp" + (", value binary" if unit == "bytes" else "")
    # A message that retention removes in the meantime, or that cannot be read, weighs nothing.
    messages = stored.frame(spark, columns, failOnDataLoss=False, badEntries="skip")
    step_s = options.interval_s or _interval_s(stored)
    sums = _by_key(messages, unit, step_s).persist()
    try:
        with (
            spark_failures(),
            showing(show, "skew") as display,
            batch_shown(spark, display, stored.messages),
        ):
            return _report(stored, sums, unit, step_s, options.segments)
    finally:
        sums.unpersist()
        close_sessions()


def _by_key(messages: Any, unit: WeightUnit, step_s: int) -> Any:
    """Return the weight by key and interval; one row per interval for messages without a key."""
    size = sql.coalesce(sql.length("value"), sql.lit(0)) + sql.coalesce(sql.length("key"), sql.lit(0))
    weight = sql.sum(size) if unit == "bytes" else sql.count("*")
    start = sql.floor(sql.unix_timestamp("timestamp") / step_s) * step_s
    return messages.groupBy("key", "keyHash", start.alias("start")).agg(weight.alias("weight"))


def _report(
    stored: TopicSnapshot, sums: Any, unit: WeightUnit, step_s: int, wanted: int | None
) -> SkewReport:
    layout = stored.topology.layout
    keyed = sums.where(sql.col("key").isNotNull()).withColumn("slot", sql.shiftrightunsigned("keyHash", 16))
    slots = {row["slot"]: row["weight"] for row in _sum(keyed, "slot")}
    cell = sql.floor(sql.col("slot") / (65536 // RING_CELLS))
    heat = {(row["cell"], row["start"]): row["weight"] for row in _sum(keyed, cell.alias("cell"), "start")}
    row = sums.where(sql.col("key").isNull()).agg(sql.sum("weight").alias("weight")).collect()[0]
    weighed = weigh_segments(layout, slots, wanted)
    return SkewReport(
        topic=stored.name,
        unit=unit,
        total=sum(slots.values()),
        without_key=row["weight"] or 0,
        interval_s=step_s,
        segments=tuple(_with_boundaries(weighed, keyed)),
        heavy_keys=tuple(_heavy_keys(stored.topology, keyed)),
        heat=heat,
    )


def _sum(rows: Any, *by: Any) -> list[Any]:
    found: list[Any] = rows.groupBy(*by).agg(sql.sum("weight").alias("weight")).collect()
    return found


def _with_boundaries(weighed: list[SegmentWeight], keyed: Any) -> list[SegmentWeight]:
    """Add bucket boundaries to the heaviest segments that have several buckets."""
    several = [one for one in weighed if one.segment.bucket_count > 1 and one.weight]
    heaviest = sorted(several, key=lambda one: -one.weight)[:SEGMENTS_WITH_BUCKETS]
    if not heaviest:
        return weighed
    owner = sql.lit(None).cast("bigint")
    for one in heaviest:
        inside = sql.col("slot").between(one.segment.range.start, one.segment.range.end)
        owner = sql.when(inside, sql.lit(one.segment.id)).otherwise(owner)
    cell = sql.floor(sql.col("keyHash").bitwiseAND(0xFFFF) / (65536 // BUCKET_CELLS))
    owned = keyed.withColumn("owner", owner).where(sql.col("owner").isNotNull())
    cells: dict[int, dict[int, int]] = {}
    for row in _sum(owned, "owner", cell.alias("cell")):
        cells.setdefault(row["owner"], {})[row["cell"]] = row["weight"]
    return [
        replace(one, boundaries=better_boundaries(one.segment, cells.get(one.segment.id, {})))
        for one in weighed
    ]


def _heavy_keys(topology: Topology, keyed: Any) -> list[HeavyKey]:
    top = (
        keyed.groupBy("key", "slot")
        .agg(sql.sum("weight").alias("weight"))
        .orderBy(sql.desc("weight"), "key")
        .limit(HEAVY_KEYS)
        .collect()
    )
    keys = [bytes(row["key"]) for row in top]
    over_time: dict[bytes, dict[int, int]] = {}
    for row in _sum(keyed.where(sql.col("key").isin(keys)), "key", "start") if keys else ():
        over_time.setdefault(bytes(row["key"]), {})[row["start"]] = row["weight"]
    return [
        HeavyKey(
            key,
            row["weight"],
            row["slot"],
            segment_of_slot(topology.layout, row["slot"]),
            over_time.get(key, {}),
        )
        for key, row in zip(keys, top, strict=True)
    ]


def _interval_s(stored: TopicSnapshot) -> int:
    """Return an interval that suits the publish times of the first and last entries of some segments."""
    if not is_counted(stored.topology):
        # On Pulsar, the position of the last message is not known.
        return INTERVAL_ON_PULSAR_S
    filled = [id_ for id_, tail in sorted(stored.topology.tails.items()) if tail.first < tail.next]
    chosen = sorted({*filled[:SEGMENTS_TIMED], *filled[-SEGMENTS_TIMED:]})
    parts: list[Slice] = []
    for id_ in chosen:
        tail = stored.topology.tails[id_]
        parts += [stored.part(id_, tail.first, tail.first + 1), stored.part(id_, tail.next - 1, tail.next)]
    times = [checked_metadata(entry.data)[0].publish_time for entry in stored.entries(parts)]
    return nice_interval_s(min(times, default=0), max(times, default=0))
