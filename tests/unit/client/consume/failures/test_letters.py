"""Dead letters carry the schema of the messages that they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from anabranch import AsyncClient, AsyncQueueConsumer, Backoff, DeadLetter, Message, Schema
from tests.harness.cluster import TOPIC, Brokers

LETTERS = f"{TOPIC}-DLQ"


@dataclass
class Parcel:
    weight: int


@dataclass
class NewParcel:
    weight: int
    colour: str = "brown"


Parcel.__name__ = NewParcel.__name__ = "Parcel"


async def refuse(consumer: AsyncQueueConsumer[Any], count: int) -> None:
    """Give the next messages back until each of them is a dead letter."""
    for _ in range(count):
        await consumer.negative_acknowledge(await consumer.receive(timeout=5))
    assert await consumer.receive_many(1, timeout=2) == []


async def letters(client: AsyncClient, schema: Schema[Any], count: int) -> list[Message[Any]]:
    reading = await client.subscribe_queue(LETTERS, "look", schema=schema, initial_position="earliest")
    return [await reading.receive(timeout=20) for _ in range(count)]


async def test_a_dead_letter_carries_the_schema_that_wrote_it(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(
            TOPIC, "q", initial_position="earliest", redelivery=Backoff(0.1, 0.1), dead_letter=DeadLetter(0)
        )
        old = await client.create_producer(TOPIC, schema=Schema.avro(Parcel))
        await old.send(Parcel(7), key="a")
        new = await client.create_producer(TOPIC, schema=Schema.avro(NewParcel))
        await new.send(NewParcel(8, "red"), key="a")
        await refuse(consumer, 2)
        found = await letters(client, Schema.auto_consume(), 2)
        assert sorted((letter.value for letter in found), key=str) == [
            {"weight": 7},
            {"weight": 8, "colour": "red"},
        ]


async def test_a_tombstone_stays_one(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(
            TOPIC, "q", initial_position="earliest", redelivery=Backoff(0.1, 0.1), dead_letter=DeadLetter(0)
        )
        await (await client.create_producer(TOPIC, schema=Schema.string())).send(None, key="a")
        await refuse(consumer, 1)
        (letter,) = await letters(client, Schema.string(), 1)
        assert (letter.value, letter.key) == (None, "a")
        assert letter.properties["DEAD_LETTER_ATTEMPTS"] == "1"


async def test_a_letter_topic_with_another_schema_still_takes_the_letter(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(
            TOPIC, "q", initial_position="earliest", redelivery=Backoff(0.1, 0.1), dead_letter=DeadLetter(0)
        )
        await client.create_producer(LETTERS, schema=Schema.string())
        await (await client.create_producer(TOPIC, schema=Schema.avro(Parcel))).send(Parcel(7))
        await refuse(consumer, 1)
        (letter,) = await letters(client, Schema.bytes(), 1)
        assert letter.data == Schema.avro(Parcel).encode(Parcel(7))
        assert "does not take the schema" in caplog.text
