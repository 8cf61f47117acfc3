"""Topics of a real Apache Pulsar for tests: its admin calls, its official client, and readers of Spark."""

from __future__ import annotations

import asyncio
import json
import pickle
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulsar

from anabranch.client.api import AsyncClient
from anabranch.client.produce.producer import AsyncProducer
from anabranch.spark.decide.source.topology import Topology
from anabranch.spark.options.queries import read_source_options
from anabranch.spark.service import BrokerService, close_sessions
from anabranch.spark.source.batch_reader import BatchReader
from anabranch.spark.source.data_source import source_schema
from anabranch.spark.source.stream_reader import StreamReader
from benchmarks.peers.pulsar_peer import PulsarServer

KEYS = 13
SCHEMA = source_schema(event_time=False, headers=False, key_hash=False)

Row = tuple[str, int, int, int]
"""Key, number, segment and position."""


class UncachedStreamReader(StreamReader):
    """Looks up the topic at every call: a slow look-up would otherwise serve the next calls, too."""

    def _current(self) -> dict[str, Topology]:
        self._view_until = 0.0
        return super()._current()


@dataclass(frozen=True)
class PulsarTopics:
    """The topics of one server."""

    server: PulsarServer

    def call(self, method: str, path: str, body: object = None) -> None:
        request = urllib.request.Request(
            f"{self.server.http_url}/admin/v2/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60):
            pass

    def create_classic(self, name: str, partitions: int = 0) -> None:
        if partitions:
            self.call("PUT", f"{path(name)}/partitions", partitions)
        else:
            self.call("PUT", path(name))

    def publish(self, name: str, lo: int, hi: int, batch: int, compression: str = "NONE") -> None:
        """Send numbers through the official client, in batches of that size; 1 sends them without batches."""
        client = pulsar.Client(self.server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            producer = client.create_producer(
                path(name).replace("/", "://", 1),
                batching_enabled=batch > 1,
                batching_max_messages=max(2, batch),
                batching_max_publish_delay_ms=1000,
                block_if_queue_full=True,
                compression_type=getattr(pulsar.CompressionType, compression),
            )
            for n in range(lo, hi):
                producer.send_async(str(n).encode(), None, partition_key=f"key-{n % KEYS}")
            producer.flush()
        finally:
            client.close()

    def publish_by_ours(self, name: str, lo: int, hi: int) -> None:
        """Send numbers through our client, which also reaches scalable topics."""

        async def send() -> None:
            async with AsyncClient(self.server.url) as client:
                producer: AsyncProducer[bytes] = await client.create_producer(name)
                for at in range(lo, hi, 50):
                    some = range(at, min(at + 50, hi))
                    await producer.send_many(
                        [str(n).encode() for n in some], [f"key-{n % KEYS}" for n in some]
                    )

        asyncio.run(send())

    def options(self, name: str, given: dict[str, str]) -> Any:
        settings = {"service.url": self.server.url, "subscribe": name, "metadata.cache.ttl.ms": "0"}
        return read_source_options({**settings, **given})

    def batch_of_pattern(self, pattern: str) -> list[Row]:
        settings = {"service.url": self.server.url, "subscribePattern": pattern}
        reader = BatchReader(BrokerService(self.server.url), read_source_options(settings), SCHEMA)
        return read(reader, reader.partitions())

    def stream(self, name: str, **given: str) -> StreamReader:
        return UncachedStreamReader(BrokerService(self.server.url), self.options(name, given), SCHEMA)

    def batch(self, name: str, **given: str) -> list[Row]:
        reader = BatchReader(BrokerService(self.server.url), self.options(name, given), SCHEMA)
        return read(reader, reader.partitions())


def path(name: str) -> str:
    """The path of a classic topic in admin calls; a bare name is one of public/default."""
    return f"persistent/{name}" if "/" in name else f"persistent/public/default/{name}"


def read(reader: Any, partitions: Any) -> list[Row]:
    """Rows of all partitions, each read by a copy of the reader as a task would have it."""
    rows: list[Row] = []
    for partition in pickle.loads(pickle.dumps(partitions)):
        for batch in pickle.loads(pickle.dumps(reader)).read(partition):
            columns = [batch.column(name).to_pylist() for name in ("key", "value", "segment", "position")]
            rows += [(key.decode(), int(value), *place) for key, value, *place in zip(*columns, strict=True)]
    return rows


class PulsarQuery:
    """A stream whose driver may be replaced after any micro-batch; the offsets are its only memory."""

    def __init__(self, topics: PulsarTopics, name: str, **given: str) -> None:
        self._topics = topics
        self._name = name
        self._options = {"startingOffsets": "earliest", **given}
        self._reader = topics.stream(name, **self._options)
        self.at: dict[str, Any] = self._reader.initialOffset()
        self.rows: list[Row] = []
        self.batches: list[int] = []

    def restart(self) -> None:
        """Continue as a new process: with other connections, and with the offsets of the old one."""
        close_sessions()
        self._reader = self._topics.stream(self._name, **self._options)

    def go_on_from(self, other: PulsarQuery) -> None:
        """Take over the offsets of another query."""
        self.at = other.at

    def step(self, *, replay: bool = False) -> bool:
        """Run one micro-batch; False when there is nothing to read. With `replay` a new driver repeats it."""
        end = self._reader.latestOffset(self.at, self._reader.getDefaultReadLimit())
        if end is self.at:
            return False
        found = read(self._reader, self._reader.partitions(self.at, end))
        if replay:
            self.restart()
            again = read(self._reader, self._reader.partitions(self.at, json.loads(json.dumps(end))))
            assert sorted(again) == sorted(found)
        self.rows += found
        self.batches.append(len(found))
        self.at = json.loads(json.dumps(end))
        return True

    def drain(self) -> None:
        while self.step():
            pass


def by_key(rows: Sequence[Row]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for key, number, _, _ in rows:
        found[key].append(number)
    return dict(found)


def expected(count: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for n in range(count):
        found[f"key-{n % KEYS}"].append(n)
    return dict(found)
