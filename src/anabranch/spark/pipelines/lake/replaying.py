"""Reads an archive and then its topic, joined at the cut of the archive without gap or overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.options.starts import START_OPTIONS
from anabranch.spark.pipelines.files import Files
from anabranch.spark.pipelines.lake.archiving import COLUMNS, EVERYTHING
from anabranch.spark.pipelines.lake.lake_log import ABOUT, LakeLog
from anabranch.spark.pipelines.progress import Show, Summary, run_stream, showing
from anabranch.spark.pipelines.sessions import make_known
from anabranch.spark.pipelines.state_directories import claim_state, kept_name, same_brokers
from anabranch.spark.pipelines.stored_topics import check_source
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

SCHEMA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, eventTime timestamp, "
    "timestamp timestamp, segment bigint, position bigint, keyHash int"
)


def read_archive(spark: Any, archive: str) -> Any:
    """Return the messages of an archive as a DataFrame: exactly those of its commits.

    Example:
        pipelines.read_archive(spark, "/lake/orders").groupBy("segment").count().show()
    """
    return _rows_of(open_archive(spark, archive))


def read_table(spark: Any, table: str) -> Any:
    """Return the latest message of each key in a table of `compact_to_table`: exactly those of its commits.

    A plain Parquet reader may see a key twice while a commit replaces files, and cannot read an empty table.

    Example:
        pipelines.read_table(spark, "/lake/latest").select("key", "value").show()
    """
    return _rows_of(_open(spark, table, "compact", "table"))


def _rows_of(log: LakeLog) -> Any:
    files = sorted(log.lake.files)
    if not files:
        return log.spark.createDataFrame([], SCHEMA)
    return log.spark.read.schema(SCHEMA).parquet(*(log.files.url(path) for path in files))


def open_archive(spark: Any, archive: str) -> LakeLog:
    return _open(spark, archive, "archive", "archive")


def _open(spark: Any, lake: str, kind: str, name: str) -> LakeLog:
    """Return the log of a lake; raises InvalidConfigurationError unless this kind of pipeline made it."""
    log = LakeLog(spark, lake)
    if not log.files.exists(ABOUT) or log.about({})["kind"] != kind:
        article = "an" if name.startswith("a") else "a"
        raise InvalidConfigurationError(f"{lake} is not {article} {name} made by `anabranch pipeline {kind}`")
    return log


def replay(spark: Any, archive: str, topic: TopicPlace | str | None = None) -> Any:
    """Return a DataFrame of the archive and of the topic's messages after the archive's cut.

    Without a topic, it contains only the archive. `orderBy("segment", "position")` restores the order of
    keys.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        everything = pipelines.replay(spark, "/lake/orders", orders)
        everything.orderBy("segment", "position").show()
    """
    log = open_archive(spark, archive)
    archived = _rows_of(log)
    if topic is None:
        return archived
    place = checked_place(log, topic)
    make_known(spark)
    options = place.to_read(**EVERYTHING, startingOffsets=log.lake.cut or "earliest")
    return archived.unionByName(spark.read.format(FORMAT).options(**options).load().select(*COLUMNS))


def checked_place(log: LakeLog, topic: TopicPlace | str) -> TopicPlace:
    """Return the place of a topic; raises InvalidConfigurationError if it is not the archive's topic."""
    place, about = as_topic_place(topic), log.about({})
    refuse_options(place, (*READING, *START_OPTIONS), "replay")
    if about["topic"] != place.short_name:
        raise InvalidConfigurationError(
            f"{log.files.root} is the archive of topic {about['topic']}, not of {place.short_name}"
        )
    return place


@dataclass(frozen=True)
class ReplayOptions:
    """How to replay into a topic. Example: `pipelines.ReplayOptions(rows_per_commit=100_000)`"""

    rows_per_commit: int = 1_000_000
    follow: str | None = None
    """Continue with new messages at this interval, such as `10 seconds`; None stops at the present end."""
    state: str | None = None
    """The directory of Spark's checkpoint; in `anabranch-state/` if None."""
    show: Show | None = None
    """Displays the progress; None displays it on standard error."""


def replay_stream(
    spark: Any, archive: str, topic: TopicPlace | str | None, options: dict[str, object] | None = None
) -> Any:
    """Return a streaming DataFrame: all messages of the archive, then those of the topic after it.

    The order of each key is kept across both. `options` are options of the source, such as
    maxOffsetsPerTrigger; a micro-batch contains at least one commit of the archive. Without a topic, only the
    archive is read.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        stream = pipelines.replay_stream(spark, "/lake/orders", orders)
        query = stream.writeStream.format("noop").start()
        query.processAllAvailable()
        query.stop()
    """
    from anabranch.spark.pipelines.lake.replay_source import ALONE, ARCHIVE, NAME, ReplaySource

    log = open_archive(spark, archive)
    place = TopicPlace(log.about({})["topic"]) if topic is None else checked_place(log, topic)
    make_known(spark)
    spark.dataSource.register(ReplaySource)
    more = {ARCHIVE: log.files.root, ALONE: topic is None}
    given = place.to_read(**EVERYTHING, **(options or {}), **more)
    return spark.readStream.format(NAME).options(**given).load()


def replay_to_topic(
    spark: Any,
    archive: str,
    topic: TopicPlace | str | None,
    to: TopicPlace | str,
    options: ReplayOptions | None = None,
) -> Summary:
    """Send the archive, and then its topic, to another topic: each message once, keys in order.

    Without a topic, only the archive is sent.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        again = pipelines.TopicPlace("again", "pulsar://127.0.0.1:6650")
        options = pipelines.ReplayOptions(state="/data/state/again")
        pipelines.replay_to_topic(spark, "/lake/orders", orders, again, options)
    """
    given, target = options or ReplayOptions(), as_topic_place(to)
    place = None if topic is None else as_topic_place(topic)
    if place is not None:
        refuse_same(place, target, "replayed")
    check_target(target, (*WRITING, *ONCE), "replay")
    log = open_archive(spark, archive)
    if place is not None:
        check_source(checked_place(log, place))
    source = ("", "") if place is None else (place.url, place.short_name)
    names = (archive, *source, target.url, target.short_name)
    state = given.state or default_state("replay", *names)
    files = Files(spark, state)
    claim_state(files, {"pipeline": "replay", "from": log.about({})["topic"], "to": target.short_name})
    sink = kept_name(files, f"replay-{identity(state, *names)}")
    written = target.to_write(delivery="exactly-once", sinkId=sink, checkpointLocation=state)
    writer = _sent(spark, archive, place, given).writeStream.format(FORMAT).options(**written)
    brokers = same_brokers(files, target, {"sinkId": sink})
    with brokers, showing(given.show, f"replay of {archive}") as display:
        return run_stream(writer, display, follow=given.follow)


def _sent(spark: Any, archive: str, place: TopicPlace | None, given: ReplayOptions) -> Any:
    """Return the stream that a replay sends, with the columns that it keeps of each message."""
    limited = place is not None and place.gives(LIMIT)
    stream = replay_stream(spark, archive, place, {} if limited else {LIMIT: given.rows_per_commit})
    return stream.select("key", "value", "headers", "eventTime")
