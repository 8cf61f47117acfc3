"""The client behind the readers and writers, against a real broker, without Spark in between."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

from anabranch.admin.client import AdminClient
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.errors import MessageTooBigError, OperationTimeoutError, TopicNotFoundError
from anabranch.model.layout import Layout
from anabranch.model.ranges import FULL
from anabranch.spark.brokers.anabranch_reader import AnabranchReader
from anabranch.spark.brokers.thread_client import ThreadClient
from anabranch.spark.decide.source.topology import Slice
from anabranch.spark.options.queries import read_sink_options
from anabranch.spark.service import BrokerService, close_sessions
from anabranch.spark.sink.writer import outgoing_rows, write_batches
from simulation.harness.process import BrokerProcess
from tests.harness.spark_rows import ORDERS, check_rows, numbered, read_rows

JSON = {"Content-Type": "application/json"}


def write(broker: BrokerProcess, batches: Iterator[Any], **options: str) -> int:
    service = BrokerService(broker.url)
    sink = read_sink_options({"service.url": broker.url, "topic": "orders", **options})
    return write_batches(service, sink, batches).rows


def test_columns_are_written_in_key_order_while_the_topic_splits_and_merges(broker: BrokerProcess) -> None:
    count, size = 60_000, 500
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 1)
    halfway = threading.Event()
    changed: list[Any] = []

    def change() -> None:
        with AdminClient(broker.http_url) as api:
            api.split(ORDERS, 0)
            api.split(ORDERS, 1, parts=3)
            halfway.wait(20)
            api.merge(ORDERS, [2, 5])
            api.merge(ORDERS, [3, 4])
        changed.append(True)

    def batches() -> Iterator[Any]:
        changing = threading.Thread(target=change)
        changing.start()
        for lo in range(0, count, size):
            if lo == count // 2:
                halfway.set()
            yield numbered(range(lo, lo + size))
        changing.join(20)
        assert changed, "the layout did not change as planned"

    assert write(broker, batches(), compression="lz4") == count
    rows = read_rows(broker)
    check_rows(rows, count)
    assert len({segment for _, _, segment, _ in rows}) > 1
    check_rows(read_rows(broker, ordering="key", maxPartitions="3"), count)


@pytest.mark.parametrize(("size", "end"), [(1, 50), (7, 700), (1000, 2500)])
def test_a_slice_may_begin_and_end_inside_an_entry(broker: BrokerProcess, size: int, end: int) -> None:
    write(broker, iter([numbered(range(3000))]))
    whole = {position: value for _, value, _, position in read_rows(broker)}
    cut = f'{{"v": 1, "topics": {{"orders": {{"segs": {{"0": {end}}}}}}}}}'
    rows = read_rows(broker, maxRecordsPerPartition=str(size), endingOffsets=cut)
    assert {position: value for _, value, _, position in rows} == {at: whole[at] for at in range(end)}
    assert len(rows) == end


def test_many_small_slices_are_read_in_their_order(broker: BrokerProcess) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 40)
    write(broker, iter([numbered(range(4000))]))
    service = BrokerService(broker.url)
    topology = service.reader().topology("orders")
    slices = [
        Slice("orders", id_, topology.layout.segments[id_].range, 0, tail.next)
        for id_, tail in sorted(topology.tails.items())
        if tail.next
    ]
    order = [number for number, _ in service.reader().read(slices, 10)]
    assert order == sorted(order)
    assert set(order) == set(range(len(slices)))


def test_a_reader_that_is_left_early_leaves_nothing_behind(broker: BrokerProcess) -> None:
    write(broker, iter([numbered(range(5000))]))
    service = BrokerService(broker.url)
    for _ in range(3):
        reading = service.reader().read([Slice("orders", 0, FULL, 0, 5000)], 10)
        next(reading)
        reading.close()  # type: ignore[attr-defined]
    check_rows(read_rows(broker), 5000)


def test_a_slice_beyond_the_end_times_out(broker: BrokerProcess) -> None:
    write(broker, iter([numbered(range(10))]))
    with pytest.raises(OperationTimeoutError, match="segment 0 of topic orders"):
        list(BrokerService(broker.url).reader().read([Slice("orders", 0, FULL, 0, 50)], 0.3))


def test_a_segment_that_is_gone_gives_nothing(broker: BrokerProcess) -> None:
    write(broker, iter([numbered(range(10))]))
    assert list(BrokerService(broker.url).reader().read([Slice("orders", 77, FULL, 0, 5)], 5)) == []


def test_a_classic_topic_is_read_and_written_through_its_synthetic_layout(broker: BrokerProcess) -> None:
    classic = "persistent://public/default/classic"
    write(broker, iter([numbered(range(1000))]), topic=classic)
    check_rows(read_rows(broker, subscribe=classic), 1000)


def test_unused_partitions_are_empty_and_not_missing(broker: BrokerProcess) -> None:
    url = f"{broker.http_url}/admin/v2/persistent/public/default/classic/partitions"
    urlopen(Request(url, b"3", JSON, method="PUT"), timeout=10).close()
    classic = "persistent://public/default/classic"
    check_rows(read_rows(broker, subscribe=classic), 0)
    write(broker, iter([numbered(range(100))]), topic=classic)
    urlopen(Request(url, b"5", JSON, method="POST"), timeout=10).close()
    check_rows(read_rows(broker, subscribe=classic), 100)


class StaleReader(AnabranchReader):
    """Looks up layouts with a segment that the topic does not have, until `stale` look-ups are over."""

    def __init__(self, clients: ThreadClient, stale: int) -> None:
        super().__init__(clients)
        self._stale = stale

    async def layout(self, topic: str) -> TopicLayout:
        found = await super().layout(topic)
        self._stale -= 1
        if self._stale < 0:
            return found
        return replace(found, layout=Layout.initial(1, now_ms=0).split(0, now_ms=0))


def test_a_segment_pruned_since_the_layout_was_looked_up_is_passed(broker: BrokerProcess) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 1)
    clients = ThreadClient(broker.url, ())
    assert list(StaleReader(clients, 1).topology("orders").tails) == [0]
    assert list(StaleReader(clients, 1).read([Slice("orders", 1, FULL, 0, 5)], 5)) == []
    clients.close()


@pytest.mark.parametrize("name", ["nothing", "persistent://public/default/nothing"])
def test_reading_creates_no_topic(broker: BrokerProcess, name: str) -> None:
    with pytest.raises(TopicNotFoundError):
        BrokerService(broker.url).reader().topology(name)


def test_a_row_that_is_too_large_fails_the_write_and_not_the_session(broker: BrokerProcess) -> None:
    large = pa.record_batch({"key": pa.array(["k"]), "value": pa.array([b"x" * 6 * 2**20])})
    with pytest.raises(MessageTooBigError):
        write(broker, iter([numbered(range(10)), large]))
    write(broker, iter([numbered(range(10, 20))]))
    assert {value for _, value, _, _ in read_rows(broker)} >= set(range(10, 20))


def test_a_session_outlives_a_killed_broker(broker: BrokerProcess) -> None:
    write(broker, iter([numbered(range(1000))]))
    check_rows(read_rows(broker), 1000)
    broker.kill()
    broker.start()
    check_rows(read_rows(broker), 1000)
    write(broker, iter([numbered(range(1000, 2000))]))
    check_rows(read_rows(broker), 2000)


@pytest.mark.parametrize("away", ["gone", "stopped"])
def test_reads_and_writes_end_in_time_and_name_the_broker(broker: BrokerProcess, away: str) -> None:
    write(broker, iter([numbered(range(100))]))
    service = BrokerService(broker.url, (("operation_timeout", 1.0), ("connect_timeout", 0.5)))
    reader, writer = service.reader(), service.writer("orders", 2**20, None)
    reader.topology("orders")
    sink = read_sink_options({"service.url": broker.url, "topic": "orders"})
    if away == "gone":
        broker.kill()
    else:
        os.kill(broker.pid, signal.SIGSTOP)

    def write_rows() -> None:
        writer.write(outgoing_rows(numbered(range(10)), sink))
        writer.finish()

    calls: list[Callable[[], Any]] = [
        lambda: reader.topology("orders"),
        lambda: list(reader.read([Slice("orders", 0, FULL, 0, 50)], 1.0)),
        lambda: service.writer("orders", 2**20, None),
        lambda: write_batches(service, sink, iter([numbered(range(10))])),
        write_rows,
    ]
    try:
        for call in calls:
            began = time.monotonic()
            with pytest.raises(OperationTimeoutError, match=rf"127\.0\.0\.1:{broker.port}"):
                call()
            assert time.monotonic() - began < 20
        writer.close()
        close_sessions()
    finally:
        broker.kill()
