"""Schemas that the official client registers, read by the source from a real broker; no Spark in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Float, Integer, JsonSchema, Record, String

from anabranch.spark.service import close_sessions
from anabranch.spark.source.data_source import AnabranchSource
from simulation.harness.process import BrokerProcess

TOPIC = "persistent://public/default/typed"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    # The optional fields of the official client have no default, so only this strategy adds one.
    settings = {"schema_compatibility_strategy": "ALWAYS_COMPATIBLE"}
    with BrokerProcess(tmp_path / "data", settings) as process:
        yield process
        close_sessions()


def record(**fields: Any) -> Any:
    """Return a class of the official client; all versions of a schema have one name."""
    return type("Order", (Record,), fields)


def old_order() -> Any:
    return record(number=Integer(), gone=String())


def new_order() -> Any:
    return record(number=Integer(), amount=Float())


def send(broker: BrokerProcess, schema: Any, *rows: Any) -> None:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(TOPIC, schema=schema)
    for row in rows:
        producer.send(row)
    client.close()


def read(broker: BrokerProcess) -> tuple[Any, list[Any]]:
    source = AnabranchSource({"service.url": broker.url, "subscribe": TOPIC, "valueSchema": "registered"})
    schema = source.schema()
    reader = source.reader(schema)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return schema["value"].dataType.simpleString(), [row["value"] for row in rows]


def test_each_avro_value_is_read_with_the_schema_of_its_producer(broker: BrokerProcess) -> None:
    old, new = old_order(), new_order()
    send(broker, AvroSchema(old), old(number=1, gone="x"), old(number=2, gone=None))
    send(broker, AvroSchema(new), new(number=3, amount=1.5))
    kind, values = read(broker)
    assert kind in ("struct<amount:float,number:int>", "struct<number:int,amount:float>")
    assert values == [
        {"number": 1, "amount": None},
        {"number": 2, "amount": None},
        {"number": 3, "amount": 1.5},
    ]


def test_json_values_are_read_by_the_names_of_the_newest_schema(broker: BrokerProcess) -> None:
    old, new = old_order(), new_order()
    send(broker, JsonSchema(old), old(number=1, gone="x"))
    send(broker, JsonSchema(new), new(number=3, amount=1.5))
    _, values = read(broker)
    assert values == [{"number": 1, "amount": None}, {"number": 3, "amount": 1.5}]
