"""Producers and consumers with schemas on brokers: registered, checked, evolved, tombstones, bad bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from anabranch.client.api import AsyncClient
from anabranch.client.schema import Schema
from anabranch.errors import IncompatibleSchemaError, InvalidConfigurationError
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.schemas.schema_errors import SchemaError
from tests.harness.cluster import Brokers


@dataclasses.dataclass
class TypedOrder:
    id: int


@dataclasses.dataclass
class NewTypedOrder:
    """A later version of TypedOrder."""

    id: int
    note: str = "none"


@dataclasses.dataclass
class StrictTypedOrder:
    """A version without a default for its new field."""

    id: int
    note: str


NewTypedOrder.__name__ = StrictTypedOrder.__name__ = TypedOrder.__name__


@pytest.fixture
async def client(brokers: Brokers) -> AsyncClient:
    return brokers.client()


async def values(client: AsyncClient, schema: Any, count: int) -> list[Any]:
    """Return the values of the first messages, read with a new subscription."""
    consumer = await client.subscribe_stream(
        "orders", f"s-{id(schema)}-{count}", schema=schema, initial_position="earliest"
    )
    found = []
    for _ in range(count):
        message = await consumer.receive(5)
        found.append(message.value)
        await consumer.acknowledge_cumulative(message)
    return found


@pytest.mark.parametrize("make", [Schema.json, Schema.avro])
async def test_values_are_typed_and_a_tombstone_is_none(client: AsyncClient, make: Any) -> None:
    producer = await client.create_producer("orders", schema=make(TypedOrder))
    await producer.send(TypedOrder(1), key="a")
    await producer.send(None, key="a")
    consumer = await client.subscribe_stream(
        "orders", "s", schema=make(TypedOrder), initial_position="earliest"
    )
    first, second = [await consumer.receive(5) for _ in range(2)]
    assert (first.value, first.require_value(), second.value) == (TypedOrder(1), TypedOrder(1), None)
    with pytest.raises(SchemaError, match="tombstone") as caught:
        second.require_value()
    assert (caught.value.topic, caught.value.message_id) == (second.topic, second.id)
    registered = await client.topic_schema("orders")
    assert registered is not None
    assert (registered.kind, registered.version) == ("Json" if make is Schema.json else "Avro", bytes(8))


async def test_avro_values_are_read_with_the_version_that_wrote_them(client: AsyncClient) -> None:
    old = await client.create_producer("orders", schema=Schema.avro(TypedOrder))
    await old.send(TypedOrder(1), key="a")
    new = await client.create_producer("orders", schema=Schema.avro(NewTypedOrder))
    await new.send(NewTypedOrder(2, "more"), key="a")
    await old.send(TypedOrder(3), key="a")
    assert await values(client, Schema.avro(NewTypedOrder), 3) == [
        NewTypedOrder(1, "none"),
        NewTypedOrder(2, "more"),
        NewTypedOrder(3, "none"),
    ]
    assert await values(client, Schema.avro(TypedOrder), 3) == [TypedOrder(1), TypedOrder(2), TypedOrder(3)]
    assert await values(client, Schema.auto_consume(), 3) == [
        {"id": 1},
        {"id": 2, "note": "more"},
        {"id": 3},
    ]


async def test_segments_share_the_versions_that_were_asked_for(client: AsyncClient, brokers: Brokers) -> None:
    producer = await client.create_producer("orders", schema=Schema.avro(TypedOrder))
    await producer.send(TypedOrder(1), key="a")
    consumer = await client.subscribe_queue(
        "orders", "q", schema=Schema.avro(TypedOrder), initial_position="earliest"
    )
    assert (await consumer.receive(5)).value == TypedOrder(1)
    brokers.ignored = frozenset({pb.CommandGetSchema})
    await (await brokers.controller()).split(0)
    for key in ("a", "b", "c", "d"):
        await producer.send(TypedOrder(2), key=key)
        message = await consumer.receive(5)
        assert (message.value, message.id.segment > 0) == (TypedOrder(2), True)


async def test_auto_consume_leaves_bytes_without_a_schema(client: AsyncClient) -> None:
    producer = await client.create_producer("orders")
    await producer.send(b"raw")
    assert await values(client, Schema.auto_consume(), 1) == [b"raw"]


async def test_schemas_that_do_not_fit_are_refused_when_opened(client: AsyncClient) -> None:
    await client.create_producer("orders", schema=Schema.avro(TypedOrder))
    schemas: list[Schema[Any]] = [Schema.avro(StrictTypedOrder), Schema.json(TypedOrder), Schema.string()]
    for schema in schemas:
        with pytest.raises(IncompatibleSchemaError, match=r"^topic://public/default/orders, version 0: "):
            await client.create_producer("orders", schema=schema)
        with pytest.raises(IncompatibleSchemaError):
            await client.subscribe_stream("orders", "s", schema=schema)
        with pytest.raises(IncompatibleSchemaError):
            await client.subscribe_queue("orders", "q", schema=schema)
    assert await client.create_producer("orders", schema=Schema.avro(NewTypedOrder))
    with pytest.raises(InvalidConfigurationError, match="for consumers"):
        await client.create_producer("orders", schema=Schema.auto_consume())


async def test_a_bad_payload_raises_and_can_be_acknowledged(client: AsyncClient) -> None:
    await client.create_producer("orders", schema=Schema.json(TypedOrder))
    # A producer of bytes may write anything unless the topic enforces schemas.
    raw = await client.create_producer("orders")
    await raw.send(b"{bad", key="a")
    good = await client.create_producer("orders", schema=Schema.json(TypedOrder))
    await good.send(TypedOrder(2), key="a")
    consumer = await client.subscribe_queue(
        "orders", "q", schema=Schema.json(TypedOrder), initial_position="earliest", ack_receipts=True
    )
    bad = await consumer.receive(5)
    with pytest.raises(SchemaError, match="TypedOrder") as caught:
        _ = bad.value
    assert caught.value.message_id == bad.id
    assert bad.data == b"{bad"
    await consumer.acknowledge(bad)
    assert (await consumer.receive(5)).value == TypedOrder(2)


async def test_primitives_are_registered(client: AsyncClient) -> None:
    producer = await client.create_producer("orders", schema=Schema.int64())
    await producer.send(7)
    assert await values(client, Schema.int64(), 1) == [7]
    assert await values(client, Schema.auto_consume(), 1) == [7]
    with pytest.raises(IncompatibleSchemaError):
        await client.subscribe_stream("orders", "s", schema=Schema.string())


async def test_a_schema_goes_with_the_topic_through_a_split(brokers: Brokers, client: AsyncClient) -> None:
    producer = await client.create_producer("orders", schema=Schema.avro(TypedOrder))
    await producer.send(TypedOrder(1), key="a")
    await (await brokers.controller("topic://public/default/orders")).split(0)
    for number in range(2, 6):
        await producer.send(TypedOrder(number), key="a")
    assert await values(client, Schema.avro(NewTypedOrder), 5) == [
        NewTypedOrder(n, "none") for n in range(1, 6)
    ]
