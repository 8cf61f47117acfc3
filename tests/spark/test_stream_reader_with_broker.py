"""Streaming reads against a real broker, without Spark: recreated topics, limits over several segments."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType

from anabranch.admin.client import AdminClient
from anabranch.errors import DataLossError
from anabranch.model.names import TopicName
from anabranch.spark.options.queries import read_sink_options, read_source_options
from anabranch.spark.service import BrokerService, close_sessions
from anabranch.spark.sink.writer import write_batches
from anabranch.spark.source.data_source import COLUMNS
from anabranch.spark.source.stream_reader import StreamReader
from simulation.harness.process import BrokerProcess

CLASSIC = "persistent://public/default/classic"
SCHEMA = StructType([StructField(name, COLUMNS[name]) for name in ("value", "segment", "position")])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false"}) as process:
        yield process
        close_sessions()


def write(broker: BrokerProcess, topic: str, lo: int, hi: int) -> None:
    numbers = range(lo, hi)
    keys = pa.array([f"key-{n % 61}" for n in numbers], pa.string())
    values = pa.array([str(n).encode() for n in numbers], pa.binary())
    sink = read_sink_options({"service.url": broker.url, "topic": topic})
    rows = pa.record_batch({"key": keys, "value": values})
    write_batches(BrokerService(broker.url), sink, iter([rows]))


def stream_of(broker: BrokerProcess, topic: str, **options: str) -> StreamReader:
    given = {"service.url": broker.url, "subscribe": topic, "metadata.cache.ttl.ms": "0", **options}
    settings = read_source_options({"startingOffsets": "earliest", **given})
    return StreamReader(BrokerService(broker.url), settings, SCHEMA)


def drain(reader: StreamReader, start: dict[str, Any]) -> tuple[list[list[int]], dict[str, Any]]:
    """Return the values of each micro-batch with rows, and the offset reached."""
    found: list[list[int]] = []
    while True:
        time.sleep(0.002)
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end is start:
            return [rows for rows in found if rows], start
        batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        found.append([int(value) for batch in batches for value in batch.column("value").to_pylist()])
        start = json.loads(json.dumps(end))


def test_a_classic_topic_created_again_is_not_skipped(broker: BrokerProcess) -> None:
    write(broker, CLASSIC, 0, 1000)
    rows, end = drain(stream_of(broker, CLASSIC), stream_of(broker, CLASSIC).initialOffset())
    assert sum(map(len, rows)) == 1000
    url = f"{broker.http_url}/admin/v2/persistent/public/default/classic?force=true"
    urlopen(Request(url, method="DELETE"), timeout=10).close()
    write(broker, CLASSIC, 5000, 6500)
    close_sessions()
    with pytest.raises(DataLossError, match="deleted and created again"):
        drain(stream_of(broker, CLASSIC), end)
    again, _ = drain(stream_of(broker, CLASSIC, failOnDataLoss="false"), end)
    assert sorted(n for rows in again for n in rows) == list(range(5000, 6500))


def test_limited_batches_take_the_oldest_messages_of_all_segments(broker: BrokerProcess) -> None:
    orders = TopicName.parse("topic://public/default/orders")
    with AdminClient(broker.http_url) as api:
        api.create_topic(orders, 3)
        for block in range(12):
            if block == 6:
                api.split(orders, 0)
            write(broker, "orders", block * 100, block * 100 + 100)
            # Blocks must not share a millisecond.
            time.sleep(0.005)
    reader = stream_of(broker, "orders", maxOffsetsPerTrigger="250")
    rows, _ = drain(reader, reader.initialOffset())
    assert sorted(n for batch in rows for n in batch) == list(range(1200))
    assert all(len(batch) <= 250 for batch in rows)
    blocks = [[n // 100 for n in batch] for batch in rows]
    assert all(max(before) <= min(after) for before, after in pairwise(blocks))
