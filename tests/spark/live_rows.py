"""Rows of numbers that go to a real broker and back through readers and writers, without Spark in between."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from anabranch.model.names import TopicName
from anabranch.spark.decide.sink_records import BatchName
from anabranch.spark.live import LiveService
from anabranch.spark.options import read_sink_options, read_source_options
from anabranch.spark.sink_writing import StagedTask, commit_staged
from anabranch.spark.source import COLUMNS
from anabranch.spark.source_reader import BatchReader
from anabranch.spark.writer import outgoing_rows
from anabranch.testing.process import BrokerProcess

KEYS = 61
ORDERS = TopicName.parse("topic://public/default/orders")
SCHEMA = StructType([StructField(name, COLUMNS[name]) for name in ("key", "value", "segment", "position")])

Row = tuple[bytes, int, int, int]
"""Key, number, segment and position."""


def numbered(numbers: range, *, keyless: bool = False) -> Any:
    """Return a batch of numbers, each with its key."""
    return pa.record_batch(
        {
            "key": pa.array([None if keyless else f"key-{n % KEYS}" for n in numbers], pa.string()),
            "value": pa.array([str(n).encode() for n in numbers], pa.binary()),
        }
    )


def read_rows(broker: BrokerProcess, **options: str) -> list[Row]:
    given = {"service.url": broker.url, "subscribe": "orders", **options}
    reader = BatchReader(LiveService(broker.url), read_source_options(given), SCHEMA)
    rows: list[Row] = []
    for partition in reader.partitions():
        for found in reader.read(partition):
            part = found.to_pydict()
            values = map(int, part["value"])
            rows += zip(part["key"], values, part["segment"], part["position"], strict=True)
    return rows


def check_rows(rows: list[Row], count: int) -> None:
    """Each number below the count is there once, and the numbers of a key ascend."""
    assert sorted(value for _, value, _, _ in rows) == list(range(count))
    seen: dict[bytes, int] = {}
    for key, value, _, _ in sorted(rows, key=lambda row: row[2:]):
        assert value > seen.get(key, -1), f"{key!r} is out of order at {value}"
        seen[key] = value


class Writing:
    """Tasks and drivers of one query."""

    def __init__(self, broker: BrokerProcess, sink_id: str = "copy", query: str = "q") -> None:
        self.service = LiveService(broker.url)
        self.sink_id = sink_id
        self.query = query
        self.options = read_sink_options({"service.url": broker.url, "topic": "orders"}, streaming=True)
        self.attempts = 0

    def stage(self, batch: int, numbers: range, *, fails: bool = False, keyless: bool = False) -> StagedTask:
        """Run a task; one that fails stops after half of its rows."""
        name = BatchName(self.query, batch)
        sink = self.service.sink("public/default", self.sink_id)
        if sink.state().has(name):
            return StagedTask("public/default", self.sink_id, name, None)
        self.attempts += 1
        stager = sink.stager(f"{self.query}-{batch}-{self.attempts}-{id(self)}", 2000, "lz4")
        part = numbers[: len(numbers) // 2] if fails else numbers
        for lo in range(0, len(part), 200):
            stager.write(
                "orders", outgoing_rows(numbered(part[lo : lo + 200], keyless=keyless), self.options)
            )
        staged = stager.finish()
        stager.close()
        return StagedTask("public/default", self.sink_id, name, staged)

    def commit(self, *tasks: StagedTask) -> None:
        commit_staged(self.service, list(tasks))
