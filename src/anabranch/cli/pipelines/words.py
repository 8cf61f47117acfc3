"""The options of each pipeline, besides the ones that all pipelines share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from anabranch.cli.pipelines.options import STATE, Follow


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ArchiveWords:
    """The form of an archive."""

    buckets: Annotated[
        int | None, Parameter(metavar="N", help="partitions by key hash of a new archive (8)")
    ] = None
    rows_per_commit: Annotated[int, Parameter(metavar="N", help="rows of one commit (2000000)")] = 2_000_000
    file_mb: Annotated[int, Parameter(metavar="N", help="join files up to about this size (128)")] = 128
    format: Annotated[str, Parameter(metavar="NAME", help="format of the files (parquet)")] = "parquet"
    follow: Follow = None
    state: Annotated[str | None, Parameter(metavar="DIR", help=f"{STATE} (DEST/_anabranch/checkpoint)")] = (
        None
    )


ARCHIVE_WORDS: Final = ArchiveWords()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LoadWords:
    """The columns and the format of the files."""

    format: Annotated[
        Literal["parquet", "csv", "json", "iceberg"] | None,
        Parameter(help="format of the files (that of the file name); iceberg needs `anabranch[iceberg]`"),
    ] = None
    read_option: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="NAME=VALUE",
            help="an option of the reader of this format, such as header=false; may be repeated",
        ),
    ] = ()
    key: Annotated[
        str | None, Parameter(metavar="COLUMN", help="column of the message key (none: without keys)")
    ] = None
    value: Annotated[
        str | None,
        Parameter(metavar="COLUMN", help="column of the message value (the whole row as JSON)"),
    ] = None
    event_time: Annotated[
        str | None, Parameter(metavar="COLUMN", help="column of the event time, a timestamp")
    ] = None
    order_by: Annotated[
        str | None,
        Parameter(metavar="COLUMN,COLUMN", help="columns that give the order of the rows"),
    ] = None
    rows_per_commit: Annotated[int, Parameter(metavar="N", help="rows of one step (1000000)")] = 1_000_000
    state: Annotated[
        str | None,
        Parameter(metavar="DIR", help=f"{STATE} (anabranch-state/load-..., from source and topic)"),
    ] = None


LOAD_WORDS: Final = LoadWords()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ReplayWords:
    """The place that the messages go to."""

    to: Annotated[
        str | None,
        Parameter(metavar="TOPIC", help="send the messages to this topic, each exactly once"),
    ] = None
    prints: Annotated[bool, Parameter(name="--print", help="print one JSON object a line")] = False
    limit: Annotated[
        int | None, Parameter(metavar="N", help="with --print: end after this many messages")
    ] = None
    follow: Follow = None
    state: Annotated[
        str | None,
        Parameter(metavar="DIR", help=f"{STATE} (anabranch-state/replay-..., from archive and topics)"),
    ] = None


REPLAY_WORDS: Final = ReplayWords()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompactWords:
    """The place of the latest values."""

    to: Annotated[
        str | None,
        Parameter(metavar="TOPIC", help="send the latest values to this topic"),
    ] = None
    table: Annotated[
        str | None,
        Parameter(metavar="DEST", help="keep a table of Parquet files here"),
    ] = None
    buckets: Annotated[
        int | None, Parameter(metavar="N", help="with --table: partitions by key hash of a new table (8)")
    ] = None
    follow: Follow = None
    state: Annotated[
        str | None,
        Parameter(metavar="DIR", help=f"{STATE} (DEST, or anabranch-state/compact-..., from the topics)"),
    ] = None


COMPACT_WORDS: Final = CompactWords()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class VerifyWords:
    """The conditions that the topic has to meet."""

    sequence_header: Annotated[
        str | None,
        Parameter(
            metavar="NAME",
            help="header with the application's own number, which rises by one from message to message of a "
            "key",
        ),
    ] = None
    sequence_path: Annotated[
        str | None,
        Parameter(
            metavar="PATH",
            help="JSON path of that number in the value, such as $.number",
        ),
    ] = None
    sequence_first: Annotated[
        int | None, Parameter(metavar="N", help="the first number of each key (any number)")
    ] = None
    dense_producers: Annotated[
        bool, Parameter(help="a sequence id that a producer skipped is a lost message")
    ] = False
    complete: Annotated[bool, Parameter(help="messages that retention removed are lost messages")] = False
    clock_tolerance: Annotated[
        float,
        Parameter(metavar="SECONDS", help="how far the publish times of a producer may step back (60)"),
    ] = 60.0


VERIFY_WORDS: Final = VerifyWords()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SkewWords:
    """The weights, and how fine."""

    by: Annotated[Literal["messages", "bytes"], Parameter(help="what to weigh (messages)")] = "messages"
    segments: Annotated[
        int | None,
        Parameter(metavar="N", help="number of segments to aim at (as many as there are)"),
    ] = None
    interval: Annotated[
        int | None,
        Parameter(metavar="SECONDS", help="length of an interval (a round one, at most 48 of them)"),
    ] = None
    plot: Annotated[
        str | None,
        Parameter(metavar="FILE", help="also write a picture, .png or .svg; needs `anabranch[plot]`"),
    ] = None


SKEW_WORDS: Final = SkewWords()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MirrorWords:
    """When and where a copy begins."""

    once: Annotated[bool, Parameter(help="end when all messages so far are copied")] = False
    interval: Annotated[
        str,
        Parameter(
            metavar="TIME", help="look for new messages at this interval, such as '10 seconds' (1 second)"
        ),
    ] = "1 second"
    start: Annotated[
        str,
        Parameter(
            metavar="OFFSETS",
            help="earliest, latest or the JSON of a cut, for a new copy (earliest)",
        ),
    ] = "earliest"
    state: Annotated[
        str | None,
        Parameter(metavar="DIR", help=f"{STATE} (anabranch-state/mirror-..., from both topics and brokers)"),
    ] = None


MIRROR_WORDS: Final = MirrorWords()
