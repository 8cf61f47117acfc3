"""The types that a user's editor infers for the public API; `make check` has pyright compare them.

mypy and pyright disagree about some generic code, so that a package that mypy finds sound can still show
`Unknown` to every user of VS Code. Nothing here runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from anabranch import (
    AsyncCheckpointConsumer,
    AsyncClient,
    AsyncProducer,
    AsyncQueueConsumer,
    AsyncStreamConsumer,
    AsyncTopicsConsumer,
    Checkpoint,
    CheckpointConsumer,
    Client,
    Message,
    MessageId,
    Producer,
    QueueConsumer,
    Schema,
    StreamConsumer,
    TopicsConsumer,
)


@dataclass
class Order:
    amount: int


def schemas_know_the_type_of_their_values() -> None:
    assert_type(Schema.json(), Schema[Any])
    assert_type(Schema.json(Order), Schema[Order])
    assert_type(Schema.avro(Order), Schema[Order])
    assert_type(Schema.string(), Schema[str])
    assert_type(Schema.key_value(Schema.string(), Schema.json(Order)), Schema[tuple[str, Order]])


async def asynchronous_clients_pass_the_type_on(client: AsyncClient) -> None:
    orders = Schema.json(Order)
    assert_type(await client.create_producer("orders"), AsyncProducer[bytes])
    producer = await client.create_producer("orders", schema=orders)
    assert_type(producer, AsyncProducer[Order])
    assert_type(await producer.send(Order(1), key="alice"), MessageId)

    assert_type(await client.subscribe_stream("orders", "billing"), AsyncStreamConsumer[bytes])
    stream = await client.subscribe_stream("orders", "billing", schema=orders)
    assert_type(stream, AsyncStreamConsumer[Order])
    async for message in stream:
        assert_type(message, Message[Order])
        assert_type(message.value, Order | None)
        assert_type(message.key, str | None)

    queue = await client.subscribe_queue("orders", "work", schema=orders)
    assert_type(queue, AsyncQueueConsumer[Order])
    assert_type(await queue.receive_many(10), list[Message[Order]])

    reader = await client.create_checkpoint_consumer("orders", schema=orders)
    assert_type(reader, AsyncCheckpointConsumer[Order])
    assert_type(reader.checkpoint(), Checkpoint)

    several = await client.subscribe_topics(["orders", "bills"], "all", schema=orders)
    assert_type(several, AsyncTopicsConsumer[Order])


def blocking_clients_pass_the_type_on(client: Client) -> None:
    orders = Schema.json(Order)
    assert_type(client.create_producer("orders"), Producer[bytes])
    producer = client.create_producer("orders", schema=orders)
    assert_type(producer, Producer[Order])
    assert_type(producer.send(Order(1), key="alice"), MessageId)

    stream = client.subscribe_stream("orders", "billing", schema=orders)
    assert_type(stream, StreamConsumer[Order])
    assert_type(stream.receive().value, Order | None)
    for message in stream:
        assert_type(message, Message[Order])

    queue = client.subscribe_queue("orders", "work", schema=orders)
    assert_type(queue, QueueConsumer[Order])
    reader = client.create_checkpoint_consumer("orders", schema=orders)
    assert_type(reader, CheckpointConsumer[Order])
    several = client.subscribe_topics(["orders", "bills"], "all", schema=orders)
    assert_type(several, TopicsConsumer[Order])
