"""Key-value schemas: pairs in one value, or with the first half as the key of the message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from anabranch import AsyncClient, Schema, SchemaError
from anabranch.errors import IncompatibleSchemaError, InvalidConfigurationError
from tests.harness.cluster import Brokers


@dataclass
class Cup:
    size: int


@dataclass
class NewCup:
    size: int
    colour: str = "white"


NewCup.__name__ = Cup.__name__ = "Cup"


def pairs(value: Any, *, separated: bool) -> Any:
    return Schema.key_value(Schema.string(), value, separated=separated)


async def first(client: AsyncClient, schema: Any, subscription: str) -> Any:
    consumer = await client.subscribe_queue("cups", subscription, schema=schema, initial_position="earliest")
    return await consumer.receive(timeout=5)


@pytest.mark.parametrize("separated", [False, True])
@pytest.mark.parametrize("make", [Schema.json, Schema.avro])
async def test_pairs_are_read_with_another_version_of_their_value(
    brokers: Brokers, make: Any, separated: bool
) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer("cups", schema=pairs(make(Cup), separated=separated))
        await producer.send(("alice", Cup(3)))
        message = await first(client, pairs(make(NewCup), separated=separated), "new")
        assert message.value == ("alice", NewCup(3))
        assert message.key == ("alice" if separated else None)


@pytest.mark.parametrize("separated", [False, True])
async def test_lists_of_pairs_are_routed_by_their_keys(brokers: Brokers, separated: bool) -> None:
    schema = pairs(Schema.int32(), separated=separated)
    async with brokers.client() as client:
        producer = await client.create_producer("cups", schema=schema)
        await (await brokers.controller("cups")).split(0)
        values = [(f"k{number % 8}", number) for number in range(40)]
        await producer.send_many(values)
        consumer = await client.subscribe_stream("cups", "s", schema=schema, initial_position="earliest")
        found: list[Any] = []
        while len(found) < 40:
            found += await consumer.receive_many(40, timeout=5)
        assert sorted(message.require_value() for message in found) == sorted(values)
        segments = {(message.value[0], message.id.segment) for message in found}
        assert (len(segments) == 8) is separated


async def test_keys_of_separated_pairs_come_from_the_value_alone(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer("cups", schema=pairs(Schema.string(), separated=True))
        with pytest.raises(InvalidConfigurationError, match="takes the key from the value"):
            await producer.send(("alice", "tea"), key="bob")
        with pytest.raises(InvalidConfigurationError, match="takes the key from the value"):
            await producer.send_many([("alice", "tea")], keys=["bob"])
        for wrong in ("tea", ("alice", "tea", "milk")):
            with pytest.raises(TypeError, match="pair"):
                await producer.send(wrong)
        await producer.send(None, key="alice")
        tombstone = await first(client, pairs(Schema.string(), separated=True), "s")
        assert (tombstone.value, tombstone.key) == (None, "alice")


def test_a_pair_without_its_key_is_a_bad_value() -> None:
    with pytest.raises(SchemaError, match="no key"):
        pairs(Schema.string(), separated=True).decode_key(None)


async def test_pairs_are_registered_and_compared(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await client.create_producer("cups", schema=pairs(Schema.avro(Cup), separated=False))
        found = await client.topic_schema("cups")
        assert found is not None
        assert (found.kind, found.properties["kv.encoding.type"]) == ("KeyValue", "INLINE")
        assert found.properties["value.schema.type"] == "AVRO"
        with pytest.raises(IncompatibleSchemaError):
            await client.create_producer("cups", schema=pairs(Schema.string(), separated=False))
        message = client.create_producer("cups", schema=pairs(Schema.avro(Cup), separated=False))
        await (await message).send(("alice", Cup(3)))
        assert (await first(client, Schema.auto_consume(), "s")).value == ("alice", {"size": 3})


@pytest.mark.parametrize("make", [Schema.json, Schema.avro])
async def test_auto_consume_reads_pairs_with_a_separated_key(brokers: Brokers, make: Any) -> None:
    schema: Any = Schema.key_value(make(Cup), make(NewCup), separated=True)
    async with brokers.client() as client:
        producer = await client.create_producer("cups", schema=schema)
        await producer.send((Cup(1), NewCup(3)))
        message = await first(client, Schema.auto_consume(), "s")
        assert message.value == ({"size": 1}, {"size": 3, "colour": "white"})


async def test_a_separated_key_is_read_with_the_version_that_wrote_it(brokers: Brokers) -> None:
    old, new = (Schema.key_value(Schema.avro(kind), Schema.int32(), separated=True) for kind in (Cup, NewCup))
    async with brokers.client() as client:
        await (await client.create_producer("cups", schema=old)).send((Cup(1), 7))
        assert (await first(client, new, "s")).value == (NewCup(1), 7)


def test_auto_consume_refuses_a_separated_key_that_does_not_fit() -> None:
    written = Schema.key_value(Schema.int32(), Schema.string(), separated=True)
    decode = Schema.auto_consume().key_decoder(written.definition)
    assert decode is not None
    for bad in (b"alice", None):
        with pytest.raises(SchemaError):
            decode(bad)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00\x00\x05abc",
        b"\x00\x00\x00\x01a",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x00\x00\x00\x00\x00\x00x",
    ],
)
def test_bytes_that_are_no_pair_are_refused(data: bytes) -> None:
    with pytest.raises(SchemaError):
        Schema.key_value(Schema.bytes(), Schema.bytes()).decode(data)


def test_halves_are_plain_schemas() -> None:
    for half in (Schema.auto_consume(), Schema.key_value(Schema.bytes(), Schema.bytes()), 7):
        with pytest.raises(InvalidConfigurationError):
            Schema.key_value(Schema.string(), half)  # type: ignore[arg-type]
