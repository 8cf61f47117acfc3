"""Readers as Spark calls them, without Spark: the same objects, the same order of calls, topics in files."""

from __future__ import annotations

import json
import pickle
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from anabranch.spark.decide.source.topology import Topology
from anabranch.spark.options.queries import read_source_options
from anabranch.spark.source.batch_reader import BatchReader
from anabranch.spark.source.data_source import source_schema
from anabranch.spark.source.stream_reader import StreamReader
from tests.spark.files import FileService, FileTopic

SCHEMA = source_schema(event_time=False, headers=False, key_hash=False)


def options(topic: FileTopic, **given: str) -> Any:
    settings = {
        "service.url": str(topic.root),
        "subscribe": topic.name,
        "metadata.cache.ttl.ms": "0",
        **given,
    }
    return read_source_options(settings)


class FreshStreamReader(StreamReader):
    """Looks up the topic at every call, as if the cached answer were too old."""

    def _current(self) -> dict[str, Topology]:
        self._view_until = 0.0
        return super()._current()


def stream_of(topic: FileTopic, **given: str) -> StreamReader:
    return FreshStreamReader(FileService(str(topic.root)), options(topic, **given), SCHEMA)


def batch_of(topic: FileTopic, **given: str) -> BatchReader:
    return BatchReader(FileService(str(topic.root)), options(topic, **given), SCHEMA)


def through_text(offset: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(offset))
    return value


def read(reader: Any, partitions: Any) -> list[int]:
    """Values of all partitions, each read by a copy of the reader as a task would have it."""
    rows: list[int] = []
    for partition in partitions:
        task = pickle.loads(pickle.dumps(reader))
        for batch in task.read(pickle.loads(pickle.dumps(partition))):
            rows += [int(value) for value in batch.column("value").to_pylist()]
    return rows


def numbers(lo: int, hi: int) -> list[tuple[str | bytes | None, bytes | None]]:
    return [(f"key-{n % 11}", str(n).encode()) for n in range(lo, hi)]


def pinned_at_earliest(reader: StreamReader) -> dict[str, Any]:
    """The cut at the earliest messages, as a first micro-batch without rows stores it."""
    return through_text(reader.latestOffset({"v": 1, "starting": {}}, ReadAllAvailable()))


def drain(
    reader: StreamReader, start: dict[str, Any], limit: Any = None
) -> tuple[list[int], dict[str, Any], int]:
    rows: list[int] = []
    batches = 0
    while True:
        end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
        if end is start:
            return rows, start, batches
        rows += read(reader, reader.partitions(start, through_text(end)))
        start = through_text(end)
        batches += 1
