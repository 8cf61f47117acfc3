"""The pipelines between topics and files, from the words of a command to the functions that do the work."""

from __future__ import annotations

import base64
import json
from datetime import UTC
from types import SimpleNamespace
from typing import Any

from anabranch.cli.pipelines.starting import PipelineJob, Report, pairs
from anabranch.errors import InvalidConfigurationError
from anabranch.spark import pipelines
from anabranch.spark.options.queries import sink_part, source_part
from anabranch.spark.pipelines.loading.sources import checked_format, divide_options

MB = 2**20


def archive(job: PipelineJob) -> Report:
    words = job.words
    options = pipelines.ArchiveOptions(
        buckets=words.buckets,
        rows_per_commit=words.rows_per_commit,
        file_bytes=words.file_mb * MB,
        follow=words.follow,
        state=words.state,
        format=words.format,
    )
    done = pipelines.archive(job.spark, job.place(words.topic), words.dest, options, job.show)
    text = f"{done.rows:,} rows added to {words.dest}; it has {done.total_rows:,} rows in {done.files} files"
    return {**done._asdict(), "text": text}


def load(job: PipelineJob) -> Report:
    words = job.words
    sink, reader = load_options(words)
    options = pipelines.LoadOptions(
        format=words.format,
        read_options=reader,
        key=words.key,
        value=words.value,
        event_time=words.event_time,
        order_by=tuple(filter(None, (words.order_by or "").split(","))),
        rows_per_commit=words.rows_per_commit,
        state=words.state,
    )
    place = job.place(words.topic, lambda _: sink)
    done = pipelines.load(job.spark, words.source, place, options, job.show)
    return {**done._asdict(), "text": f"{done.rows:,} rows sent to {words.topic}; new files: {done.files}"}


def load_options(words: SimpleNamespace) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of a load for its sink and for its reader; raises InvalidConfigurationError."""
    kind = checked_format(words.source, words.format)
    sink, shared = divide_options(kind, pairs(words.at.options, "--option"))
    reader = pairs(words.read_option, "--read-option")
    return sink, {**shared, **reader}


def compact(job: PipelineJob) -> Report:
    words = job.words
    options = pipelines.CompactOptions(words.buckets, follow=words.follow, state=words.state)
    if words.table is not None:
        place = job.place(words.topic)
        done = pipelines.compact_to_table(job.spark, place, words.table, options, job.show)
        text = f"{done.rows:,} messages read; {words.table} has {done.keys:,} keys"
    else:
        place, target = job.place(words.topic, source_part), job.place(words.to, sink_part)
        done = pipelines.compact_to_topic(job.spark, place, target, options, job.show)
        text = f"{done.rows:,} messages read; the latest value of each key is in {words.to}"
    return {**done._asdict(), "text": text}


def replay(job: PipelineJob) -> Report:
    words = job.words
    if words.prints:
        return _print_rows(job)
    if words.limit is not None:
        raise InvalidConfigurationError("--limit is for --print")
    options = pipelines.ReplayOptions(follow=words.follow, state=words.state, show=job.show)
    if words.topic is None:
        place, target = None, job.place(words.to)
    else:
        place, target = job.place(words.topic, source_part), job.place(words.to, sink_part)
    done = pipelines.replay_to_topic(job.spark, words.archive, place, target, options)
    return {**done._asdict(), "text": f"{done.rows:,} rows sent to {words.to}"}


def _print_rows(job: PipelineJob) -> Report:
    words = job.words
    place = None if words.topic is None else job.place(words.topic)
    if words.follow is not None:
        raise InvalidConfigurationError("--follow is for --to")
    rows = pipelines.replay(job.spark, words.archive, place).orderBy("segment", "position")
    if words.limit is not None:
        rows = rows.limit(words.limit)
    count = 0
    for row in rows.toLocalIterator():
        count += 1
        print(json.dumps(_printable(row)))
    return {"rows": count, "text": f"{count:,} rows printed"}


def _printable(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"key": _text(row.key), "value": _text(row.value)}
    if row.headers:
        found["headers"] = [[header.key, _text(header.value)] for header in row.headers]
    if row.eventTime is not None:
        found["eventTime"] = row.eventTime.astimezone(UTC).isoformat()
    return {
        **found,
        "publishTime": row.timestamp.astimezone(UTC).isoformat(),
        "segment": row.segment,
        "position": row.position,
    }


def _text(value: Any) -> str | dict[str, str] | None:
    """Return bytes as text, or as base64 if they are not text."""
    if value is None:
        return None
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(bytes(value)).decode()}
