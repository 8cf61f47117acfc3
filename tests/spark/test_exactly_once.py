"""Exactly-once writes to a real broker, without Spark in between: attempts, crashes, drivers, layouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType

from anabranch.admin.client import AdminClient
from anabranch.failpoints import FailpointReachedError
from anabranch.model.names import TopicName
from anabranch.spark.decide.sink_records import BatchName
from anabranch.spark.live import LiveService, close_sessions
from anabranch.spark.options import read_sink_options, read_source_options
from anabranch.spark.sink_writing import StagedTask, commit_staged
from anabranch.spark.source import COLUMNS
from anabranch.spark.source_reader import BatchReader
from anabranch.spark.writer import outgoing_rows
from anabranch.testing.process import BrokerProcess

KEYS = 61
ORDERS = TopicName.parse("topic://public/default/orders")
SCHEMA = StructType([StructField(name, COLUMNS[name]) for name in ("key", "value", "segment", "position")])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false"}) as process:
        yield process
        close_sessions()


def columns(numbers: range) -> Any:
    return pa.record_batch(
        {
            "key": pa.array([f"key-{n % KEYS}" for n in numbers], pa.string()),
            "value": pa.array([str(n).encode() for n in numbers], pa.binary()),
        }
    )


class Writing:
    """Tasks and drivers of one query."""

    def __init__(self, broker: BrokerProcess, sink_id: str = "copy", query: str = "q") -> None:
        self.service = LiveService(broker.url)
        self.sink_id = sink_id
        self.query = query
        self.options = read_sink_options({"service.url": broker.url, "topic": "orders"}, streaming=True)
        self.attempts = 0

    def stage(self, batch: int, numbers: range, *, fails: bool = False, flush: int = 2000) -> StagedTask:
        """Run a task; one that fails stops after half of its rows."""
        name = BatchName(self.query, batch)
        sink = self.service.sink("public/default", self.sink_id)
        if sink.state().has(name):
            return StagedTask("public/default", self.sink_id, name, None)
        self.attempts += 1
        stager = sink.stager(f"{self.query}-{batch}-{self.attempts}-{id(self)}", flush, "lz4")
        part = numbers[: len(numbers) // 2] if fails else numbers
        for lo in range(0, len(part), 200):
            stager.write("orders", outgoing_rows(columns(part[lo : lo + 200]), self.options))
        staged = stager.finish()
        stager.close()
        return StagedTask("public/default", self.sink_id, name, staged)

    def commit(self, *tasks: StagedTask) -> None:
        commit_staged(self.service, list(tasks))


def read(broker: BrokerProcess) -> list[tuple[bytes, int, int, int]]:
    options = read_source_options({"service.url": broker.url, "subscribe": "orders"})
    reader = BatchReader(LiveService(broker.url), options, SCHEMA)
    rows: list[tuple[bytes, int, int, int]] = []
    for partition in reader.partitions():
        for found in reader.read(partition):
            part = found.to_pydict()
            values = map(int, part["value"])
            rows += zip(part["key"], values, part["segment"], part["position"], strict=True)
    return rows


def check(broker: BrokerProcess, count: int) -> None:
    rows = read(broker)
    assert sorted(value for _, value, _, _ in rows) == list(range(count))
    seen: dict[bytes, int] = {}
    for key, value, _, _ in sorted(rows, key=lambda row: row[2:]):
        assert value > seen.get(key, -1), f"{key!r} is out of order at {value}"
        seen[key] = value


def test_only_the_attempts_of_the_first_commit_are_published(broker: BrokerProcess) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 2)
    writing = Writing(broker)
    writing.stage(0, range(500), fails=True)
    speculative = writing.stage(0, range(500))
    chosen = writing.stage(0, range(500))
    writing.commit(chosen)
    writing.commit(chosen)
    writing.commit(speculative)
    assert writing.stage(0, range(500)).staged is None
    writing.commit(writing.stage(1, range(500, 900)), writing.stage(1, range(900, 1000)))
    check(broker, 1000)


@pytest.mark.parametrize("step", ["pinned", "publishing", "published", "done"])
def test_a_commit_that_dies_at_any_step_is_completed_by_the_next(
    broker: BrokerProcess, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 2)
        writing = Writing(broker)
        writing.commit(writing.stage(0, range(300)))
        staged = writing.stage(1, range(300, 1000))
        monkeypatch.setenv("ANABRANCH_FAILPOINTS", f"sink.{step}=raise")
        with pytest.raises(FailpointReachedError):
            writing.commit(staged)
        monkeypatch.delenv("ANABRANCH_FAILPOINTS")
        api.merge(ORDERS, [0, 1])
        api.split(ORDERS, 2, parts=3)
        # Spark replays the batch, with other tasks; a crash before the pin would have left nothing of it.
        writing.commit(writing.stage(1, range(300, 1000)))
        writing.commit(writing.stage(2, range(1000, 1200)))
    check(broker, 1200)
