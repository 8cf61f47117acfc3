"""Schemas of the official `pulsar-client` and of Anabranch's client on the same topics, both ways."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pulsar.schema as theirs
import pytest

from anabranch import Client, Schema
from anabranch.errors import IncompatibleSchemaError
from simulation.harness.process import BrokerProcess
from tests.unit.schemas.messages import message_class


@dataclasses.dataclass
class SharedOrder:
    id: int
    note: str | None = None


@dataclasses.dataclass
class NewSharedOrder:
    id: int
    note: str | None = None
    more: str = "none"


SharedOrder.__name__ = NewSharedOrder.__name__ = "Order"

TheirOrder: Any = type(
    "Order", (theirs.Record,), {"id": theirs.Long(required=True), "note": theirs.String(default=None)}
)
KINDS = [(Schema.json, theirs.JsonSchema), (Schema.avro, theirs.AvroSchema)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data: Path = tmp_path_factory.mktemp("schemas") / "data"
    with BrokerProcess(data, {}) as process:
        yield process


@pytest.fixture(scope="module")
def official(broker: BrokerProcess) -> Iterator[Any]:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.url) as made:
        yield made


@pytest.mark.parametrize(("ours", "their"), KINDS)
def test_they_read_what_we_write(client: Client, official: Any, ours: Any, their: Any) -> None:
    topic = f"persistent://public/default/ours-{their.__name__}"
    consumer = official.subscribe(
        topic, "s", schema=their(TheirOrder), initial_position=pulsar.InitialPosition.Earliest
    )
    producer = client.create_producer(topic, schema=ours(SharedOrder))
    producer.send(SharedOrder(7, "tea"), key="a")
    producer.send(SharedOrder(8), key="a")
    found = [consumer.receive(10_000).value() for _ in range(2)]
    assert [(order.id, order.note) for order in found] == [(7, "tea"), (8, None)]


@pytest.mark.parametrize(("ours", "their"), KINDS)
def test_we_read_what_they_write(client: Client, official: Any, ours: Any, their: Any) -> None:
    topic = f"persistent://public/default/theirs-{their.__name__}"
    producer = official.create_producer(topic, schema=their(TheirOrder))
    producer.send(TheirOrder(id=7, note="tea"))
    producer.send(TheirOrder(id=8))
    typed = client.subscribe_queue(topic, "typed", schema=ours(NewSharedOrder), initial_position="earliest")
    assert [typed.receive(10).value for _ in range(2)] == [NewSharedOrder(7, "tea"), NewSharedOrder(8)]
    plain = client.subscribe_queue(topic, "plain", schema=Schema.auto_consume(), initial_position="earliest")
    assert plain.receive(10).require_value()["id"] == 7


def test_both_are_checked_against_one_registry(client: Client, official: Any) -> None:
    topic = "persistent://public/default/checked"
    client.create_producer(topic, schema=Schema.avro(SharedOrder))
    assert official.create_producer(topic, schema=theirs.AvroSchema(TheirOrder))
    for schema in (theirs.JsonSchema(TheirOrder), theirs.StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            official.create_producer(topic, schema=schema)
        with pytest.raises(pulsar.IncompatibleSchema):
            official.subscribe(topic, "s", schema=schema)
    with pytest.raises(IncompatibleSchemaError):
        client.create_producer(topic, schema=Schema.json(SharedOrder))


def test_text_and_bytes_agree(client: Client, official: Any) -> None:
    topic = "persistent://public/default/texts"
    official.create_producer(topic, schema=theirs.StringSchema()).send("tea")
    consumer = client.subscribe_queue(topic, "s", schema=Schema.string(), initial_position="earliest")
    assert consumer.receive(10).value == "tea"


@pytest.mark.parametrize("separated", [False, True])
def test_pairs_go_both_ways(client: Client, official: Any, separated: bool) -> None:
    """The official Python client has no key-value schema; these bytes are those of Pulsar's other clients."""
    topic = f"persistent://public/default/pairs-{separated}"
    pairs: Any = Schema.key_value(Schema.string(), Schema.json(SharedOrder), separated=separated)
    raw = official.create_producer(topic)
    value = b'{"id":8,"note":null}'
    if separated:
        raw.send(value, partition_key="bob")
    else:
        raw.send(struct.pack(">i3si", 3, b"bob", len(value)) + value)
    client.create_producer(topic, schema=pairs).send(("alice", SharedOrder(7, "tea")))
    consumer = client.subscribe_queue(topic, "ours", schema=pairs, initial_position="earliest")
    found = [consumer.receive(10).value for _ in range(2)]
    assert found == [("bob", SharedOrder(8)), ("alice", SharedOrder(7, "tea"))]
    reading = official.subscribe(topic, "theirs", initial_position=pulsar.InitialPosition.Earliest)
    reading.receive(10_000)
    message = reading.receive(10_000)
    value = Schema.json(SharedOrder).encode(SharedOrder(7, "tea"))
    if separated:
        assert (message.data(), message.partition_key()) == (value, "alice")
    else:
        assert message.data() == struct.pack(">i5si", 5, b"alice", len(value)) + value
        assert message.partition_key() == ""


def test_native_protobuf_goes_both_ways(client: Client, official: Any) -> None:
    topic = "persistent://public/default/protobuf"
    kind = message_class("shop.Order", "id")
    producer = official.create_producer(topic, schema=theirs.ProtobufNativeSchema(kind))
    producer.send(kind(id="7"))
    consumer = client.subscribe_queue(topic, "s", schema=Schema.protobuf(kind), initial_position="earliest")
    assert consumer.receive(10).value == kind(id="7")
    reading = official.subscribe(topic, "t", schema=theirs.ProtobufNativeSchema(kind))
    client.create_producer(topic, schema=Schema.protobuf(kind)).send(kind(id="8"))
    assert reading.receive(10_000).value() == kind(id="8")
    other = message_class("shop.Bill", "id")
    with pytest.raises(pulsar.IncompatibleSchema):
        official.create_producer(topic, schema=theirs.ProtobufNativeSchema(other))
