"""Rows of numbers that go to a real broker and back through readers and writers, without Spark in between."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from anabranch.model.names import TopicName
from anabranch.spark.decide.sink.records import BatchName
from anabranch.spark.options.queries import read_sink_options, read_source_options
from anabranch.spark.service import BrokerService
from anabranch.spark.sink.exactly_once import StagedTask, commit_staged
from anabranch.spark.sink.writer import outgoing_rows
from anabranch.spark.source.batch_reader import BatchReader
from anabranch.spark.source.data_source import COLUMNS
from anabranch.spark.topics import Stager

KEYS = 61
ORDERS = TopicName.parse("topic://public/default/orders")
SCHEMA = StructType([StructField(name, COLUMNS[name]) for name in ("key", "value", "segment", "position")])

Row = tuple[bytes, int, int, int]
"""Key, number, segment and position."""


class Reachable(Protocol):
    """A broker or a control process."""

    @property
    def url(self) -> str: ...


def numbered(numbers: range, *, keyless: bool = False) -> Any:
    """Return a batch of numbers, each with its key."""
    return pa.record_batch(
        {
            "key": pa.array([None if keyless else f"key-{n % KEYS}" for n in numbers], pa.string()),
            "value": pa.array([str(n).encode() for n in numbers], pa.binary()),
        }
    )


def read_rows(broker: Reachable, **options: str) -> list[Row]:
    given = read_source_options({"service.url": broker.url, "subscribe": "orders", **options})
    reader = BatchReader(BrokerService(broker.url, given.client), given, SCHEMA)
    rows: list[Row] = []
    for partition in reader.partitions():
        for found in reader.read(partition):
            part = found.to_pydict()
            values = map(int, part["value"])
            rows += zip(part["key"], values, part["segment"], part["position"], strict=True)
    return rows


def check_rows(rows: list[Row], count: int) -> None:
    """Each number below the count is there once, and the numbers of a key ascend."""
    found = Counter(value for _, value, _, _ in rows)
    assert not [value for value in range(count) if value not in found], "rows are missing"
    assert not {value: times for value, times in found.items() if times > 1 or value >= count}
    seen: dict[bytes, int] = {}
    for key, value, _, _ in sorted(rows, key=lambda row: row[2:]):
        assert value > seen.get(key, -1), f"{key!r} is out of order at {value}"
        seen[key] = value


class Writing:
    """Tasks and drivers of one query."""

    def __init__(
        self,
        broker: Reachable,
        sink_id: str = "copy",
        query: str = "q",
        topic: str = "orders",
        **options: str,
    ) -> None:
        self.sink_id = sink_id
        self.query = query
        self.topic = topic
        self.namespace = "public/default"
        """Of the sink's own logs."""
        given = {"service.url": broker.url, "topic": topic, **options}
        self.options = read_sink_options(given, streaming=True)
        self.service = BrokerService(broker.url, self.options.client)
        self.attempts = 0

    def stage(self, batch: int, numbers: range, *, fails: bool = False, keyless: bool = False) -> StagedTask:
        """Run a task; one that fails stops after half of its rows."""
        name = BatchName(self.query, batch)
        if self.service.sink(self.namespace, self.sink_id).state().has(name):
            return StagedTask(self.namespace, self.sink_id, name, None)
        stager = self.stager(batch)
        self.write(stager, numbers[: len(numbers) // 2] if fails else numbers, keyless=keyless)
        return self.finish(stager, batch)

    def stager(self, batch: int) -> Stager:
        """Begin a task, which has found that its batch is not written."""
        self.attempts += 1
        sink = self.service.sink(self.namespace, self.sink_id)
        return sink.stager(f"{self.query}-{batch}-{self.attempts}-{id(self)}", 2000, "lz4")

    def write(self, stager: Stager, numbers: range, *, keyless: bool = False) -> None:
        for lo in range(0, len(numbers), 200):
            rows = numbered(numbers[lo : lo + 200], keyless=keyless)
            stager.write(self.topic, outgoing_rows(rows, self.options))

    def finish(self, stager: Stager, batch: int) -> StagedTask:
        staged = stager.finish()
        stager.close()
        return StagedTask(self.namespace, self.sink_id, BatchName(self.query, batch), staged)

    def commit(self, *tasks: StagedTask) -> None:
        commit_staged(self.service, list(tasks))


class OtherDriver:
    """A driver in a process of its own that commits one batch of staged rows, and stops at a step."""

    def __init__(self, broker: Reachable, staged: StagedTask, step: str, scratch: Path) -> None:
        # The first step of this name removes the file, so the driver stops once.
        steps = scratch / "failpoints"
        steps.write_text(f"sink.{step}=stop")
        code = (
            "import pickle, sys; from anabranch.spark.service import BrokerService;"
            "from anabranch.spark.sink.exactly_once import commit_staged;"
            "commit_staged(BrokerService(sys.argv[1]), [pickle.loads(sys.stdin.buffer.read())])"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, broker.url],
            env={**os.environ, "ANABRANCH_FAILPOINTS": f"@{steps}"},
            stdin=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(pickle.dumps(staged))
        self._process.stdin.close()
        state = Path(f"/proc/{self._process.pid}/stat")
        while " T " not in state.read_text():
            assert self._process.poll() is None, "the driver ended before it reached the step"
            time.sleep(0.02)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def resume(self) -> int:
        self._process.send_signal(signal.SIGCONT)
        try:
            return self._process.wait(120)
        finally:
            self._process.kill()
