"""Copies a topic into a lake of Parquet files, each message exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from anabranch.errors import DataLossError, InvalidConfigurationError
from anabranch.spark.decide.pipelines.evidence import is_counted
from anabranch.spark.decide.pipelines.lake import LakeCommit, LakeFile, Ranges, plan_joins
from anabranch.spark.options.starts import START_OPTIONS
from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.pipelines.files import Files
from anabranch.spark.pipelines.lake.cut_batches import EARLIEST, CutJson, batch_cuts, is_done
from anabranch.spark.pipelines.lake.lake_log import ABOUT, LOG_DIRECTORY, NOTHING, LakeLog
from anabranch.spark.pipelines.progress import Show, run_stream, showing
from anabranch.spark.pipelines.state_directories import claim_state
from anabranch.spark.pipelines.stored_topics import look_up
from anabranch.spark.pipelines.topic_places import (
    LIMIT,
    READING,
    TopicPlace,
    as_topic_place,
    refuse_options,
)
from anabranch.spark.sessions import read_stream

COLUMNS = ("key", "value", "headers", "eventTime", "timestamp", "segment", "position", "keyHash")
PARTITIONS = ("date", "bucket")
BUCKETS = 8

EVERYTHING = {"includeHeaders": True, "includeEventTime": True, "includeHash": True}
"""The options of a source that gives every column of a message."""


@dataclass(frozen=True)
class ArchiveOptions:
    """How to archive. Example: `pipelines.ArchiveOptions(buckets=16, follow="10 seconds")`"""

    buckets: int | None = None
    """The number of partitions by key hash in a new archive; 8 if None."""
    rows_per_commit: int = 2_000_000
    file_bytes: int = 128 * 2**20
    """Files are joined up to about this size."""
    join_from: int = 8
    """The number of small files in one partition from which on they are joined."""
    follow: str | None = None
    """Continue with new messages at this interval, such as `10 seconds`; None stops at the present end."""
    state: str | None = None
    """The directory of Spark's checkpoint; in the archive if None."""
    format: str = "parquet"
    """Only parquet: the published packages of Delta Lake and Iceberg do not work with this Spark."""


class ArchiveSummary(NamedTuple):
    """The result of a run, and the state of the archive after it."""

    rows: int
    """Rows that this run added."""
    seconds: float
    total_rows: int
    files: int
    cut: CutJson | None
    """The cut of the topic that the archive covers."""


def archive(
    spark: Any,
    topic: TopicPlace | str,
    dest: str,
    options: ArchiveOptions | None = None,
    show: Show | None = None,
) -> ArchiveSummary:
    """Add the messages after the archive's cut to it; raises PipelineError if the Spark job fails.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        done = pipelines.archive(spark, orders, "/lake/orders")
        print(done.rows, done.total_rows, done.cut)
    """
    given, place = options or ArchiveOptions(), as_topic_place(topic)
    check_format(given.format)
    refuse_options(place, (*READING, "startingOffsets"), "archive")
    log = LakeLog(spark, dest)
    log.recover()
    about = open_lake(log, "archive", place, given.buckets)
    state = given.state or log.files.url(f"{LOG_DIRECTORY}/checkpoint")
    claim_state(Files(spark, state), {"pipeline": "archive", "from": place.short_name})
    before = _total(log)
    stream = read_stream(
        spark,
        place.url,
        place.name,
        options={
            LIMIT: given.rows_per_commit,
            **options_behind(place, log.lake.cut),
            **EVERYTHING,
            "ordering": "none",
        },
    )
    target = _Target(log, int(about["buckets"]), state, given, dense=_is_dense(place))
    writer = stream.writeStream.foreachBatch(target.add).option("checkpointLocation", state)
    with showing(show, f"archive of {place.short_name}") as display:
        run = run_stream(writer, display, follow=given.follow)
    total = _total(log)
    return ArchiveSummary(total - before, run.seconds, total, len(log.lake.files), log.lake.cut)


def options_behind(place: TopicPlace, cut: CutJson | None) -> dict[str, object]:
    """Return the options to read a topic from the cut of a lake.

    A start that the user gives, such as a time, counts only for a new lake.
    """
    if cut is None:
        return {**place.options, "startingOffsets": EARLIEST}
    starts = set(map(str.lower, START_OPTIONS))
    kept = {name: value for name, value in place.options.items() if name.lower() not in starts}
    return {**kept, "startingOffsets": cut}


def _is_dense(place: TopicPlace) -> bool:
    """Whether each position has a message, and the archive must contain all of them."""
    stored = look_up(place)
    complete = stored.options.bad_entries == "fail" and stored.options.fail_on_data_loss
    return complete and is_counted(stored.topology)


def check_format(name: str) -> None:
    """Refuse formats that cannot be written; InvalidConfigurationError tells the reason."""
    if name in ("delta", "iceberg"):
        raise InvalidConfigurationError(
            f"format {name} is not offered: its newest published package (delta-spark_4.2_2.13 4.4.0, "
            "iceberg-spark-runtime-4.1_2.13 1.12.0) is made for an older Spark and fails on 4.3; use parquet"
        )
    if name != "parquet":
        raise InvalidConfigurationError(f"there is no format {name}; use parquet")


def open_lake(log: LakeLog, kind: str, place: TopicPlace, buckets: int | None) -> dict[str, Any]:
    """Return the description of a lake, made now if it is new; refuse a lake of another kind or topic."""
    if buckets is not None and buckets < 1:
        raise InvalidConfigurationError(f"a lake has at least 1 bucket, not {buckets}")
    if not log.files.exists(ABOUT):
        # Raises TopicNotFoundError, so that no lake is made for a topic that does not exist.
        look_up(place)
    made = {"v": 1, "kind": kind, "topic": place.short_name, "buckets": buckets or BUCKETS}
    about = log.about(made)
    for name, text in (("kind", f"a lake of kind {kind}"), ("topic", f"of topic {place.short_name}")):
        if about[name] != made[name]:
            raise InvalidConfigurationError(f"{log.files.root} is not {text}; its {name} is {about[name]}")
    if buckets is not None and about["buckets"] != buckets:
        raise InvalidConfigurationError(
            f"{log.files.root} has {about['buckets']} buckets; their number cannot change later"
        )
    return about


def _total(log: LakeLog) -> int:
    return sum(one.rows for one in log.lake.files.values())


@dataclass
class _Target:
    """The archive as the target of micro-batches."""

    log: LakeLog
    buckets: int
    state: str
    given: ArchiveOptions
    dense: bool
    """Whether each position of a segment has a message that must be read."""

    def add(self, frame: Any, batch: int) -> None:
        """Add one micro-batch, unless the archive already contains it."""
        log = self.log
        cuts = batch_cuts(log.spark, self.state, batch)
        if is_done(log.lake.cut, cuts, f"the archive {log.files.root}"):
            return
        staged = NOTHING
        if cuts.start is not None:
            staged = log.stage(_arranged(with_partitions(frame, self.buckets)), PARTITIONS)
        rows = sum(one.rows for one in staged.files)
        _check_rows(rows, staged.ranges, dense=self.dense)
        log.commit(LakeCommit(log.lake.next_number, cuts.end, ranges=staged.ranges, counted=rows), staged)
        join_small_files(log, self.given.file_bytes, self.given.join_from)


def _check_rows(rows: int, ranges: Ranges, *, dense: bool) -> None:
    """Refuse more rows than positions, and also fewer rows if each position must have one."""
    expected = sum(hi - lo for lo, hi in ranges.values())
    if rows > expected:
        raise PipelineError(f"{rows} rows were read at {expected} positions; the archive stays as it was")
    if dense and rows < expected:
        raise DataLossError(
            f"only {rows} rows were read at {expected} positions; the archive stays as it was"
        )


def with_partitions(frame: Any, buckets: int) -> Any:
    """Return the rows with the two columns that determine their file, in no particular order."""
    from pyspark.sql import functions as sql

    # The day in UTC, independent of the time zone of the session.
    day = sql.date_from_unix_date(sql.floor(sql.unix_micros("timestamp") / 86_400_000_000).cast("int"))
    # Messages without a key have no order to keep, so they are spread by their position.
    hashed = sql.coalesce(sql.when(sql.col("key").isNotNull(), sql.col("keyHash")), sql.col("position"))
    return frame.select(
        *COLUMNS, day.alias("date"), sql.pmod(hashed, sql.lit(buckets)).cast("int").alias("bucket")
    )


def _arranged(frame: Any) -> Any:
    """Return the rows with one task per partition of the lake, ordered by position."""
    return frame.repartition(*PARTITIONS).sortWithinPartitions(*PARTITIONS, "segment", "position")


def join_small_files(log: LakeLog, file_bytes: int, few: int) -> None:
    """Replace small files with larger ones; each step is a commit that changes no row."""
    while groups := plan_joins(log.lake.files.values(), file_bytes, few):
        # One group of each partition at a time, because a step writes one file per partition.
        _join(log, {group[0].partition: group for group in reversed(groups)})


def _join(log: LakeLog, groups: Mapping[str, Sequence[LakeFile]]) -> None:
    """Replace each group of files with one file; the groups are given by partition."""
    old = [one for group in groups.values() for one in group]
    rows = log.spark.read.option("basePath", log.files.root).parquet(*log.urls(old))
    staged = log.stage(_arranged(rows), PARTITIONS)
    if sum(one.rows for one in staged.files) != sum(one.rows for one in old):
        raise PipelineError("joined files do not have the rows of the files they replace")
    files = tuple(
        one._replace(
            first_commit=min(part.first_commit for part in groups[one.partition]),
            last_commit=max(part.last_commit for part in groups[one.partition]),
        )
        for one in staged.files
    )
    removed = tuple(one.path for one in old)
    commit = LakeCommit(log.lake.next_number, log.lake.cut, removed=removed, kind="join")
    log.commit(commit, staged._replace(files=files))
