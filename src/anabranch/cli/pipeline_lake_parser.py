"""The options of the pipelines between topics and files. Imports nothing that takes time."""

from __future__ import annotations

import argparse

from anabranch.cli.pipeline_options import TOPIC_HELP, add_one, add_shared, add_state
from anabranch.cli.topic_parser import Commands


def add_lake_pipelines(actions: Commands) -> None:
    _add_archive(actions)
    _add_load(actions)
    _add_replay(actions)
    _add_compact(actions)


def _add_archive(actions: Commands) -> None:
    parser = add_one(
        actions,
        "archive",
        "copy a topic into a lake of Parquet files, each message exactly once",
        "Files are partitioned by day of publication and by key hash; small files are joined. A manifest "
        "says which cut of the topic the archive covers. Every further run adds the new messages.",
    )
    parser.add_argument("topic", help=TOPIC_HELP)
    parser.add_argument("dest", help="directory or URL of the archive")
    parser.add_argument(
        "--buckets", type=int, metavar="N", help="partitions by key hash of a new archive (8)"
    )
    parser.add_argument(
        "--rows-per-commit", type=int, default=2_000_000, metavar="N", help="rows of one commit (2000000)"
    )
    parser.add_argument(
        "--file-mb", type=int, default=128, metavar="N", help="join files up to about this size (128)"
    )
    parser.add_argument("--format", default="parquet", metavar="NAME", help="format of the files (parquet)")
    _add_follow(parser)
    add_state(parser, "DEST/_anabranch/checkpoint")
    add_shared(parser)


def _add_load(actions: Commands) -> None:
    parser = add_one(
        actions,
        "load",
        "send the rows of files to a topic, each exactly once and in order",
        "Rows of one key keep the order of --order-by, or that of the files by name and of the rows in them. "
        "A further run sends the rows of new files.",
    )
    parser.add_argument("source", help="file, directory, pattern or URL of files")
    parser.add_argument("topic", help=TOPIC_HELP)
    parser.add_argument(
        "--format",
        choices=["parquet", "csv", "json"],
        help="format of the files (that of the file name)",
    )
    parser.add_argument(
        "--read-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of Spark's reader, such as header=false; may be repeated",
    )
    parser.add_argument("--key", metavar="COLUMN", help="column of the message key (none: without keys)")
    parser.add_argument(
        "--value", metavar="COLUMN", help="column of the message value (the whole row as JSON)"
    )
    parser.add_argument("--event-time", metavar="COLUMN", help="column of the event time, a timestamp")
    parser.add_argument("--order-by", metavar="COLUMN,COLUMN", help="columns that give the order of the rows")
    parser.add_argument(
        "--rows-per-commit", type=int, default=1_000_000, metavar="N", help="rows of one step (1000000)"
    )
    add_state(parser, "anabranch-state/load-..., from source and topic")
    add_shared(parser)


def _add_replay(actions: Commands) -> None:
    parser = add_one(
        actions,
        "replay",
        "read an archive and then the live topic, without gap or overlap",
        "Writes the messages to another topic, or prints them as JSON lines, in the order of each key.",
    )
    parser.add_argument("archive", help="directory or URL that `anabranch pipeline archive` made")
    parser.add_argument("topic", nargs="?", help="the live topic (none: only the archive)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", metavar="TOPIC", help="send the messages to this topic, each exactly once")
    where.add_argument("--print", action="store_true", dest="prints", help="print one JSON object a line")
    parser.add_argument("--limit", type=int, metavar="N", help="with --print: end after this many messages")
    _add_follow(parser)
    add_state(parser, "anabranch-state/replay-..., from archive and topics")
    add_shared(parser)


def _add_compact(actions: Commands) -> None:
    parser = add_one(
        actions,
        "compact",
        "keep the latest value of each key of a topic, in another topic or in a table",
        "A message without a value removes its key. A further run adds the changes since the last one.",
    )
    parser.add_argument("topic", help=TOPIC_HELP)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", metavar="TOPIC", help="send the latest values to this topic")
    where.add_argument("--table", metavar="DEST", help="keep a table of Parquet files here")
    parser.add_argument("--buckets", type=int, metavar="N", help="partitions by key hash of a new table (8)")
    _add_follow(parser)
    add_state(parser, "DEST, or anabranch-state/compact-..., from the topics")
    add_shared(parser)


def _add_follow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--follow",
        metavar="INTERVAL",
        help="go on with new messages at this interval, such as '10 seconds', until interrupted "
        "(end when all messages so far are done)",
    )
