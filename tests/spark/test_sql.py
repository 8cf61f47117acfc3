"""The SQL surface: tables, views, INSERT, names of queries, and values with a schema, through real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from anabranch.client.net.topics.schemas import TopicSchema
from tests.spark.files import FilesSource, FileTopic

# A machine that is busy takes long to start Spark.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def topic(tmp_path: Path) -> FileTopic:
    return FileTopic(tmp_path, "orders").create()


@pytest.fixture
def sql(spark: Any) -> Iterator[Any]:
    spark.dataSource.register(FilesSource)
    yield lambda text: spark.sql(text).collect()
    spark.sql("DROP TABLE IF EXISTS orders")
    spark.sql("DROP VIEW IF EXISTS orders_view")


def options(topic: FileTopic, *more: str) -> str:
    named = (f"`service.url` '{topic.root}'", f"subscribe '{topic.name}'", *more)
    return f"OPTIONS ({', '.join(named)})"


def test_a_table_is_read_written_and_streamed_with_its_options(
    sql: Any, spark: Any, topic: FileTopic, tmp_path: Path
) -> None:
    topic.send([("a", b"0"), ("b", b"1")])
    sql(f"CREATE TABLE orders USING anabranch_files {options(topic)}")
    assert [row.value for row in sql("SELECT value FROM orders ORDER BY position")] == [b"0", b"1"]
    sql("INSERT INTO orders (key, value) VALUES (CAST('c' AS BINARY), CAST('2' AS BINARY))")
    spark.table("orders").filter("key = 'a'").write.mode("append").insertInto("orders")
    cut = json.dumps({"v": 1, "topics": {"orders": {"segs": {"0": 2}}}})
    found = sql(f"SELECT key, value FROM orders WITH (startingOffsets = '{cut}') ORDER BY position")
    assert [(row.key, row.value) for row in found] == [(b"c", b"2"), (b"a", b"0")]
    query = (
        spark.readStream.option("startingOffsets", "earliest")
        .table("orders")
        .writeStream.queryName("copy_of_orders")
        .format("anabranch_files")
        .option("service.url", str(topic.root))
        .option("topic", FileTopic(topic.root, "copy").create().name)
        .option("delivery", "at-least-once")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.name == "copy_of_orders"
    assert query.awaitTermination(300)
    assert FileTopic(topic.root, "copy").tail(0).next == 4
    assert topic.tail(0).next == 4, "the stream wrote to the table that it reads"


def test_a_view_can_be_written_to(sql: Any, topic: FileTopic) -> None:
    sql(f"CREATE TEMPORARY VIEW orders_view USING anabranch_files {options(topic)}")
    sql("INSERT INTO orders_view (key, value) VALUES (CAST('c' AS BINARY), CAST('2' AS BINARY))")
    assert topic.tail(0).next == 1


def test_a_table_with_columns_has_lost_its_options_and_says_how_to_give_them(
    sql: Any, topic: FileTopic
) -> None:
    topic.send([("a", b"0")])
    sql(f"CREATE TABLE orders (key BINARY, value BINARY) USING anabranch_files {options(topic)}")
    with pytest.raises(PySparkException, match="leave the list out of CREATE TABLE"):
        sql("SELECT * FROM orders")
    with pytest.raises(PySparkException, match="leave the list out of CREATE TABLE"):
        sql("INSERT INTO orders VALUES (CAST('c' AS BINARY), CAST('2' AS BINARY))")
    given = f"WITH (`service.url` = '{topic.root}', subscribe = 'orders')"
    assert [row.value for row in sql(f"SELECT * FROM orders {given}")] == [b"0"]


def test_a_stream_to_a_table_names_the_option_it_lacks(
    sql: Any, spark: Any, topic: FileTopic, tmp_path: Path
) -> None:
    sql(f"CREATE TABLE orders USING anabranch_files {options(topic)}")
    stream = spark.readStream.table("orders").writeStream.option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(PySparkException, match=r"service\.url is required"):
        stream.trigger(availableNow=True).toTable("orders").awaitTermination(300)


def test_values_become_columns_of_a_table(sql: Any, topic: FileTopic) -> None:
    topic.send([("a", b'{"id": 1, "tags": ["x"], "at": "2024-01-01T00:00:00Z"}'), ("b", b"nonsense")])
    decoded = (
        "valueFormat 'json'",
        "valueSchema 'id bigint, tags array<string>, at timestamp'",
        "badRows 'column'",
    )
    sql(f"CREATE TABLE orders USING anabranch_files {options(topic, *decoded)}")
    good, bad = sql(
        "SELECT value.id, value.tags, string(value.at) AS at, _corrupt_record FROM orders ORDER BY position"
    )
    assert (good.id, good.tags, good.at, good["_corrupt_record"]) == (1, ["x"], "2024-01-01 00:00:00", None)
    assert (bad.id, bad["_corrupt_record"]) == (None, b"nonsense")


def test_a_registered_schema_becomes_columns_of_a_stream(
    spark: Any, topic: FileTopic, tmp_path: Path
) -> None:
    spark.dataSource.register(FilesSource)
    fields = [
        {"name": "id", "type": "long"},
        {"name": "rates", "type": {"type": "map", "values": "double"}},
        {
            "name": "in",
            "type": ["null", {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}],
        },
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ]
    definition = json.dumps({"type": "record", "name": "Order", "fields": fields}).encode()
    topic.register(TopicSchema("Json", definition))
    topic.send([("a", b'{"id": 1, "rates": {"eur": 2}, "in": {"x": 3}, "price": "1.50"}'), ("b", None)])
    stream = (
        spark.readStream.format("anabranch_files")
        .option("service.url", str(topic.root))
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("valueSchema", "registered")
        .load()
    )
    assert stream.schema["value"].dataType.names == ["id", "rates", "in", "price"]
    query = (
        stream.selectExpr(
            "value.id", "value.rates['eur'] AS eur", "value.in.x", "string(value.price) AS price"
        )
        .writeStream.format("memory")
        .queryName("decoded")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    rows = spark.table("decoded").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(None, None, None, None), (1, 2.0, 3, "1.50")]
