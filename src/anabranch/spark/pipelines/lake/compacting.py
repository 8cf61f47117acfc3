"""Keeps the latest value of each key of a topic, in a table of files or in another topic.

A message without a value removes its key. Messages without a key are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from anabranch.errors import AuthorizationError, TopicNotFoundError
from anabranch.spark.decide.pipelines.lake import LakeCommit, LakeFile
from anabranch.spark.options.queries import source_part, text_of
from anabranch.spark.pipelines.files import Files
from anabranch.spark.pipelines.lake.archiving import COLUMNS, EVERYTHING, open_lake, options_behind
from anabranch.spark.pipelines.lake.cut_batches import CutJson, batch_cuts, is_done
from anabranch.spark.pipelines.lake.lake_log import LOG_DIRECTORY, NOTHING, LakeLog
from anabranch.spark.pipelines.progress import Show, Summary, run_stream, showing
from anabranch.spark.pipelines.state_directories import claim_state, kept_name, same_brokers
from anabranch.spark.pipelines.stored_topics import check_source, look_up
from anabranch.spark.pipelines.topic_places import (
    FORMAT,
    LIMIT,
    ONCE,
    READING,
    WRITING,
    TopicPlace,
    as_topic_place,
    check_target,
    default_state,
    identity,
    refuse_options,
    refuse_same,
)
from anabranch.spark.sessions import read_stream

BUCKET = "bucket"
ABOUT_TARGET = "compact.json"
"""The file beside Spark's checkpoint that records what the first step of a compaction to a topic sends."""
DECIDED = (*READING, "startingOffsets")
"""Options of the source that the user cannot set."""


@dataclass(frozen=True)
class CompactOptions:
    """How to compact. Example: `pipelines.CompactOptions(buckets=16, follow="10 seconds")`"""

    buckets: int | None = None
    """The number of partitions by key hash in a new table; 8 if None."""
    rows_per_commit: int | None = None
    """Rows of the topic per step; all of them if None, which rewrites each file of a table only once."""
    follow: str | None = None
    """Continue with new messages at this interval, such as `10 seconds`; None stops at the present end."""
    state: str | None = None
    """The directory of Spark's checkpoint; in the table, or in `anabranch-state/`, if None."""


class CompactSummary(NamedTuple):
    """The result of a run."""

    rows: int
    """Messages of the topic that this run read."""
    seconds: float
    keys: int | None = None
    """Keys of the table; None for a topic."""
    cut: CutJson | None = None
    """The cut of the topic that the table covers."""


def compact_to_table(
    spark: Any,
    topic: TopicPlace | str,
    dest: str,
    options: CompactOptions | None = None,
    show: Show | None = None,
) -> CompactSummary:
    """Bring a table up to date with a topic; each step replaces the files of the buckets that changed.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        done = pipelines.compact_to_table(spark, orders, "/lake/latest")
        assert pipelines.read_table(spark, "/lake/latest").count() == done.keys
    """
    given, place = options or CompactOptions(), as_topic_place(topic)
    refuse_options(place, DECIDED, "compact")
    log = LakeLog(spark, dest)
    log.recover()
    about = open_lake(log, "compact", place, given.buckets)
    state = given.state or log.files.url(f"{LOG_DIRECTORY}/checkpoint")
    claim_state(Files(spark, state), {"pipeline": "compact", "from": place.short_name})
    table = _Table(log, int(about["buckets"]), state)
    stream = _stream(spark, place, given, log.lake.cut)
    writer = stream.writeStream.foreachBatch(table.merge).option("checkpointLocation", state)
    run = _run(writer, show, given, place)
    keys = sum(one.rows for one in log.lake.files.values())
    return CompactSummary(run.rows, run.seconds, keys, log.lake.cut)


def compact_to_topic(
    spark: Any,
    topic: TopicPlace | str,
    to: TopicPlace | str,
    options: CompactOptions | None = None,
    show: Show | None = None,
) -> CompactSummary:
    """Send the latest value of each key to a topic; a later run sends the keys that changed since.

    A removed key is sent as a message without a value, unless the target had no messages before the first
    step of a new state. A key of the target that has no message in the topic is left alone, because retention
    may have removed its messages.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        latest = pipelines.TopicPlace("latest", "pulsar://127.0.0.1:6650")
        options = pipelines.CompactOptions(state="/data/state/latest")
        pipelines.compact_to_topic(spark, orders, latest, options)
    """
    given, place, target = options or CompactOptions(), as_topic_place(topic), as_topic_place(to)
    refuse_same(place, target, "compacted")
    refuse_options(place, DECIDED, "compact")
    check_target(target, (*WRITING, *ONCE), "compact")
    check_source(place)
    names = (place.url, place.short_name, target.url, target.short_name)
    state = given.state or default_state("compact", *names)
    files = Files(spark, state)
    claim_state(files, {"pipeline": "compact", "from": place.short_name, "to": target.short_name})
    sink = kept_name(files, f"compact-{identity(state, *names)}")
    with same_brokers(files, target, {"sinkId": sink}):
        send = _sender(target, sink, files)
        writer = _stream(spark, place, given, None).writeStream.foreachBatch(send)
        run = _run(writer.option("checkpointLocation", state), show, given, place)
    return CompactSummary(run.rows, run.seconds)


def _sender(target: TopicPlace, sink: str, files: Files) -> Callable[[Any, int], None]:
    """Return the function that sends the latest message of each key of a micro-batch."""
    removals_first = _sends_removals_first(files, target)

    def send(frame: Any, batch: int) -> None:
        if batch == 0:
            # The first micro-batch of a checkpoint reads nothing.
            return
        # An empty target has no key to remove.
        rows = latest(frame) if removals_first or batch > 1 else latest(frame).filter("value IS NOT NULL")
        # The sink identifies the batch by the query id in the checkpoint, so a new checkpoint has new
        # batches.
        rows.select("key", "value", "headers", "eventTime").write.format(FORMAT).options(
            **target.to_write(delivery="exactly-once", sinkId=sink)
        ).mode("append").save()

    return send


def _sends_removals_first(files: Files, target: TopicPlace) -> bool:
    """Whether the first step sends removed keys; decided once, so that a repeated step does the same."""
    if not files.exists("offsets"):
        # Spark has not started the query yet.
        files.delete(ABOUT_TARGET)
        files.create_json(ABOUT_TARGET, {"v": 1, "removals_first": _has_messages(target)})
    # A state that an older version made began without removals.
    return files.exists(ABOUT_TARGET) and bool(files.read_json(ABOUT_TARGET)["removals_first"])


def _has_messages(target: TopicPlace) -> bool:
    """Whether a topic may have messages. A role that may only produce cannot tell, so the answer is yes."""
    try:
        return look_up(replace(target, options=source_part(text_of(target.options)))).messages > 0
    except TopicNotFoundError:
        return False
    except AuthorizationError:
        return True


def _stream(spark: Any, place: TopicPlace, given: CompactOptions, cut: CutJson | None) -> Any:
    options = {
        LIMIT: given.rows_per_commit,
        **options_behind(place, cut),
        **EVERYTHING,
        "ordering": "none",
    }
    return read_stream(spark, place.url, place.name, options=options).filter("key IS NOT NULL")


def _run(writer: Any, show: Show | None, given: CompactOptions, place: TopicPlace) -> Summary:
    with showing(show, f"compaction of {place.short_name}") as display:
        return run_stream(writer, display, follow=given.follow)


def latest(frame: Any) -> Any:
    """Return the newest row of each key."""
    from pyspark.sql import functions as sql

    others = [name for name in frame.columns if name != "key"]
    newest = sql.max_by(sql.struct(*others), sql.struct("segment", "position")).alias("newest")
    return frame.groupBy("key").agg(newest).select("key", "newest.*")


@dataclass
class _Table:
    """The table as the target of micro-batches."""

    log: LakeLog
    buckets: int
    state: str

    def merge(self, frame: Any, batch: int) -> None:
        """Merge one micro-batch into the files of its buckets, unless the table already contains it."""
        from pyspark.sql import functions as sql

        log = self.log
        cuts = batch_cuts(log.spark, self.state, batch)
        if is_done(log.lake.cut, cuts, f"the table {log.files.root}"):
            return
        if cuts.start is None:
            log.commit(LakeCommit(log.lake.next_number, cuts.end, kind="merge"), NOTHING)
            return
        bucket = sql.pmod("keyHash", sql.lit(self.buckets)).cast("int").alias(BUCKET)
        changes = latest(frame.select(*COLUMNS)).select("*", bucket).persist()
        try:
            touched = {row[0] for row in changes.select(BUCKET).distinct().collect()}
            old = [one for one in log.lake.files.values() if one.bucket in touched]
            rows = latest(self._with_old(changes, old)).filter("value IS NOT NULL")
            arranged = rows.repartition(BUCKET).sortWithinPartitions(BUCKET, "key")
            staged = log.stage(arranged, [BUCKET])
            removed = tuple(one.path for one in old)
            commit = LakeCommit(log.lake.next_number, cuts.end, removed=removed, kind="merge")
            log.commit(commit, staged)
        finally:
            changes.unpersist()

    def _with_old(self, changes: Any, old: list[LakeFile]) -> Any:
        if not old:
            return changes
        rows = self.log.spark.read.option("basePath", self.log.files.root).parquet(*self.log.urls(old))
        return rows.select(*changes.columns).unionByName(changes)
