"""Spark against a real broker process: split, merged, killed and started again."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as sql

from anabranch.admin.client import AdminClient
from anabranch.client.api import AsyncClient
from anabranch.client.consume.consumers.checkpoint_consumer import AsyncCheckpointConsumer
from anabranch.client.produce.producer import AsyncProducer
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess

# A machine that is busy takes long to start Spark, and a query that is interrupted spoils all that follow.
pytestmark = pytest.mark.timeout(600)

KEYS = 37
ORDERS = TopicName.parse("topic://public/default/orders")
COPY = TopicName.parse("topic://public/default/copy")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    # Only these tests change layouts, so that they know which segments there are.
    process = BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false"})
    with process:
        yield process


def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient(broker.http_url)


def publish(broker: BrokerProcess, lo: int, hi: int, name: str = "orders") -> None:
    async def send() -> None:
        async with AsyncClient(broker.url) as client:
            producer: AsyncProducer[bytes] = await client.create_producer(name)
            keys = [f"key-{n % KEYS}" for n in range(lo, hi)]
            await producer.send_many([str(n).encode() for n in range(lo, hi)], keys)

    asyncio.run(send())


def consume(broker: BrokerProcess, name: str, count: int) -> dict[str, list[int]]:
    """Return the values that the client reads, by key."""

    async def receive() -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        taken = 0
        async with AsyncClient(broker.url) as client:
            consumer: AsyncCheckpointConsumer[bytes] = await client.create_checkpoint_consumer(
                name, start=Checkpoint.earliest()
            )
            while taken < count:
                messages = await consumer.receive_many(1000, timeout=20)
                assert messages, f"only {taken} of {count} messages came"
                for message in messages:
                    found[str(message.key)].append(int(message.data))
                taken += len(messages)
            assert not await consumer.receive_many(1, timeout=0.3), "a message came twice"
        return found

    return asyncio.run(receive())


def expected(count: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for n in range(count):
        found.setdefault(f"key-{n % KEYS}", []).append(n)
    return found


def by_key(rows: Sequence[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(bytes(row.key).decode(), []).append(int(bytes(row.value)))
    return found


def frame(spark: Any, broker: BrokerProcess, name: str = "orders") -> Any:
    return spark.read.format("anabranch").option("service.url", broker.url).option("subscribe", name).load()


def copy_stream(spark: Any, broker: BrokerProcess, checkpoint: Path, **options: str) -> Any:
    """A stream from orders to copy, not yet started."""
    return (
        spark.readStream.format("anabranch")
        .option("service.url", broker.url)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
        .select("key", "value")
        .writeStream.format("anabranch")
        .option("service.url", broker.url)
        .option("topic", "copy")
        .option("checkpointLocation", str(checkpoint))
    )


def run_available(stream: Any) -> list[int]:
    """Run until all messages are copied; return the rows of each micro-batch."""
    query = stream.trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    return [progress.numInputRows for progress in query.recentProgress]


def test_a_topic_split_and_merged_twice_is_read_once_and_in_key_order(
    spark: Any, broker: BrokerProcess
) -> None:
    with admin(broker) as api:
        api.create_topic(ORDERS, 1)
        publish(broker, 0, 2000)
        api.split(ORDERS, 0)
        publish(broker, 2000, 4000)
        api.merge(ORDERS, [1, 2])
        publish(broker, 4000, 6000)
        api.split(ORDERS, 3, parts=3)
        publish(broker, 6000, 8000)
        api.merge(ORDERS, [4, 5])
        publish(broker, 8000, 10_000)
    rows = frame(spark, broker).orderBy("segment", "position").collect()
    assert by_key(rows) == expected(10_000)
    places = [(row.segment, row.position) for row in rows]
    assert len(set(places)) == len(places)
    assert {segment for segment, _ in places} == set(range(8))


def test_a_stream_stopped_while_the_topic_splits_goes_on_from_its_checkpoint(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    with admin(broker) as api:
        api.create_topic(ORDERS, 1)
        api.create_topic(COPY, 2)
        publish(broker, 0, 1000)
        rows = run_available(copy_stream(spark, broker, tmp_path / "c", maxOffsetsPerTrigger="400"))
        assert [count for count in rows if count] == [400, 400, 200]
        api.split(ORDERS, 0)
        publish(broker, 1000, 2000)
        api.merge(ORDERS, [1, 2])
        api.split(COPY, 0)
        publish(broker, 2000, 3000)
    run_available(copy_stream(spark, broker, tmp_path / "c"))
    assert consume(broker, "copy", 3000) == expected(3000)


def test_rows_written_by_spark_are_read_by_the_client_in_key_order(spark: Any, broker: BrokerProcess) -> None:
    with admin(broker) as api:
        api.create_topic(COPY, 3)
    rows = (
        spark.range(0, 20_000)
        .select(
            sql.concat(sql.lit("key-"), (sql.col("id") % KEYS).cast("string")).alias("key"),
            sql.col("id").cast("string").alias("value"),
        )
        .repartition(2, "key")
        .sortWithinPartitions(sql.col("value").cast("bigint"))
    )
    rows.write.format("anabranch").option("service.url", broker.url).option("topic", "copy").mode(
        "append"
    ).save()
    assert consume(broker, "copy", 20_000) == expected(20_000)
    assert by_key(frame(spark, broker, "copy").orderBy("segment", "position").collect()) == expected(20_000)


def test_every_column_goes_out_and_comes_back(spark: Any, broker: BrokerProcess) -> None:
    spark.sql(
        """SELECT array(struct('a' AS key, CAST('b' AS BINARY) AS value)) AS headers,
        CAST('k' AS BINARY) AS key, CAST(NULL AS BINARY) AS value,
        TIMESTAMP '2024-01-02 03:04:05.678' AS eventTime, 'copy' AS topic
        UNION ALL SELECT array(), X'FF00', X'00', NULL, 'copy'"""
    ).write.format("anabranch").option("service.url", broker.url).mode("append").save()
    options = {"includeHeaders": "true", "includeEventTime": "true", "includeHash": "true"}
    reader = spark.read.format("anabranch").option("service.url", broker.url).options(**options)
    rows = {row.key and bytes(row.key): row for row in reader.load("copy").collect()}
    text, binary = rows[b"k"], rows[b"\xff\x00"]
    assert (text.value, bytes(binary.value)) == (None, b"\x00")
    assert [(header.key, bytes(header.value)) for header in text.headers] == [("a", b"b")]
    assert (binary.headers, binary.eventTime) == ([], None)
    # The session's time zone is UTC; collected times are in the machine's.
    assert text.eventTime.astimezone(UTC) == datetime(2024, 1, 2, 3, 4, 5, 678_000, UTC)


def test_a_running_stream_follows_splits_merges_and_a_killed_broker(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    with admin(broker) as api:
        api.create_topic(ORDERS, 1)
        api.create_topic(COPY, 1)
        query = copy_stream(spark, broker, tmp_path / "c").start()
        try:
            publish(broker, 0, 500)
            api.split(ORDERS, 0)
            publish(broker, 500, 1000)
            query.processAllAvailable()
            publish(broker, 1000, 1500)
            broker.kill()
            broker.start()
            api.merge(ORDERS, [1, 2])
            publish(broker, 1500, 2000)
            # The copy has no other producer, so it is whole when it is as long as the original.
            deadline = time.monotonic() + 300
            while time.monotonic() < deadline and query.isActive:
                if sum(progress.numInputRows for progress in query.recentProgress) >= 2000:
                    break
                time.sleep(0.2)
            assert query.isActive, query.exception()
            query.processAllAvailable()
        finally:
            query.stop()
    rows = by_key(frame(spark, broker, "copy").orderBy("segment", "position").collect())
    assert rows == expected(2000)
