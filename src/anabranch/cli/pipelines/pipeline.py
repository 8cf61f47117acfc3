"""`anabranch pipeline`: the words of the pipelines. The modules that need Spark are imported to run one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Any

from cyclopts import Parameter

from anabranch.cli.answers import at_least_1, at_most_one, exactly_one
from anabranch.cli.options import Topic, command_group
from anabranch.cli.pipelines.options import HERE, PIPELINE, PipelineOptions, TargetOptions
from anabranch.cli.pipelines.words import (
    ARCHIVE_WORDS,
    COMPACT_WORDS,
    LOAD_WORDS,
    MIRROR_WORDS,
    REPLAY_WORDS,
    SKEW_WORDS,
    VERIFY_WORDS,
    ArchiveWords,
    CompactWords,
    LoadWords,
    MirrorWords,
    ReplayWords,
    SkewWords,
    VerifyWords,
)

EXAMPLES = """\
examples:
  anabranch pipeline archive orders /lake/orders             all messages so far into Parquet files
  anabranch pipeline load events.csv orders --key customer   rows of a file as messages, each exactly once
  anabranch pipeline replay /lake/orders orders --to again   the archive, then the live topic, into a topic
  anabranch pipeline compact orders --table /lake/latest     the latest value of each key
  anabranch pipeline verify orders                           prove that nothing was lost or reordered
  anabranch pipeline skew orders --plot orders.png           heavy keys, and where to split
  anabranch pipeline mirror orders orders --to-url URL       a copy on another broker

A pipeline that was interrupted resumes where it was when the same command runs again. On a cluster, pass
--master, or run the command with `spark-submit`; every path may be a URL that Spark opens, such as s3a:// or
hdfs://.
"""

app = command_group("pipeline", "Run a ready-made data pipeline as a Spark job.", help_epilogue=EXAMPLES)


def _run(name: str, how: object, at: PipelineOptions, **places: Any) -> int:
    from anabranch.cli.pipelines.starting import run

    return run(name, SimpleNamespace(**vars(how), **places, at=at))


@app.command
def archive(
    topic: Topic,
    dest: Annotated[str, Parameter(help="directory or URL of the archive")],
    /,
    *,
    how: ArchiveWords = ARCHIVE_WORDS,
    at: PipelineOptions = PIPELINE,
) -> int:
    """Copy a topic into a lake of Parquet files, each message exactly once.

    Files are partitioned by day of publication and by key hash; small files are joined. A manifest says
    which cut of the topic the archive covers. Every further run adds the new messages.
    """
    at_least_1(buckets=how.buckets, rows_per_commit=how.rows_per_commit, file_mb=how.file_mb)
    return _run("archive", how, at, topic=topic, dest=dest)


@app.command
def load(
    source: Annotated[str, Parameter(help="file, directory, pattern or URL of files")],
    topic: Topic,
    /,
    *,
    how: LoadWords = LOAD_WORDS,
    at: PipelineOptions = PIPELINE,
) -> int:
    """Send the rows of files to a topic, each exactly once and in order.

    Rows of one key keep the order of --order-by, or that of the files by name and of the rows in them. A
    further run sends the rows of new files.
    """
    at_least_1(rows_per_commit=how.rows_per_commit)
    return _run("load", how, at, source=source, topic=topic)


@app.command
def replay(
    archive: Annotated[str, Parameter(help="directory or URL that `anabranch pipeline archive` made")],
    topic: Annotated[str | None, Parameter(help="the live topic (none: only the archive)")] = None,
    /,
    *,
    how: ReplayWords = REPLAY_WORDS,
    at: PipelineOptions = PIPELINE,
) -> int:
    """Read an archive and then the live topic, without gap or overlap.

    Writes the messages to another topic, or prints them as JSON lines, in the order of each key.
    """
    exactly_one(to=how.to, print=how.prints)
    at_least_1(limit=how.limit)
    return _run("replay", how, at, archive=archive, topic=topic)


@app.command
def compact(
    topic: Topic,
    /,
    *,
    how: CompactWords = COMPACT_WORDS,
    at: PipelineOptions = PIPELINE,
) -> int:
    """Keep the latest value of each key of a topic, in another topic or in a table.

    A message without a value removes its key. A further run adds the changes since the last one.
    """
    exactly_one(to=how.to, table=how.table)
    at_most_one(to=how.to, buckets=how.buckets)
    at_least_1(buckets=how.buckets)
    return _run("compact", how, at, topic=topic)


@app.command
def verify(
    topic: Topic,
    /,
    *,
    how: VerifyWords = VERIFY_WORDS,
    at: PipelineOptions = PIPELINE,
) -> int:
    """Prove that a topic lost, doubled and reordered nothing, or name the places.

    Checks positions, the layout, and the sequence ids of each producer and key; with the application's own
    sequence also what producers sent. Exit code 1 if it finds a fault.
    """
    at_most_one(sequence_header=how.sequence_header, sequence_path=how.sequence_path)
    return _run("verify", how, at, topic=topic)


@app.command
def skew(
    topic: Topic,
    /,
    *,
    how: SkewWords = SKEW_WORDS,
    at: PipelineOptions = PIPELINE,
) -> int:
    """Weigh the keys and hash slots of a topic over time, and suggest splits.

    Prints the commands `anabranch topic split --points` and `anabranch topic rebucket --boundaries` that
    would share the weight evenly.
    """
    at_least_1(segments=how.segments, interval=how.interval)
    return _run("skew", how, at, topic=topic)


@app.command
def mirror(
    source: Annotated[str, Parameter(name="FROM", help="the topic to read")],
    target: Annotated[
        str, Parameter(name="TO", help="the topic to write; it is created if it does not exist")
    ],
    /,
    *,
    how: MirrorWords = MIRROR_WORDS,
    there: TargetOptions = HERE,
    at: PipelineOptions = PIPELINE,
) -> int:
    """Copy a topic to another topic, on any broker, each message exactly once.

    Keeps the order of each key, headers, event times and tombstones. The layouts of the two topics are
    independent. Runs until it is interrupted, and resumes where it was.
    """
    return _run("mirror", how, at, source=source, target=target, there=there)
