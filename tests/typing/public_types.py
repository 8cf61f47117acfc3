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
class EditorOrder:
    amount: int


def schemas_know_the_type_of_their_values() -> None:
    assert_type(Schema.json(), Schema[Any])
    assert_type(Schema.json(EditorOrder), Schema[EditorOrder])
    assert_type(Schema.avro(EditorOrder), Schema[EditorOrder])
    assert_type(Schema.string(), Schema[str])
    assert_type(Schema.key_value(Schema.string(), Schema.json(EditorOrder)), Schema[tuple[str, EditorOrder]])


async def asynchronous_clients_pass_the_type_on(client: AsyncClient) -> None:
    orders = Schema.json(EditorOrder)
    assert_type(await client.create_producer("orders"), AsyncProducer[bytes])
    producer = await client.create_producer("orders", schema=orders)
    assert_type(producer, AsyncProducer[EditorOrder])
    assert_type(await producer.send(EditorOrder(1), key="alice"), MessageId)

    assert_type(await client.subscribe_stream("orders", "billing"), AsyncStreamConsumer[bytes])
    stream = await client.subscribe_stream("orders", "billing", schema=orders)
    assert_type(stream, AsyncStreamConsumer[EditorOrder])
    async for message in stream:
        assert_type(message, Message[EditorOrder])
        assert_type(message.value, EditorOrder | None)
        assert_type(message.key, str | None)

    queue = await client.subscribe_queue("orders", "work", schema=orders)
    assert_type(queue, AsyncQueueConsumer[EditorOrder])
    assert_type(await queue.receive_many(10), list[Message[EditorOrder]])

    reader = await client.create_checkpoint_consumer("orders", schema=orders)
    assert_type(reader, AsyncCheckpointConsumer[EditorOrder])
    assert_type(reader.checkpoint(), Checkpoint)

    several = await client.subscribe_topics(["orders", "bills"], "all", schema=orders)
    assert_type(several, AsyncTopicsConsumer[EditorOrder])


def blocking_clients_pass_the_type_on(client: Client) -> None:
    orders = Schema.json(EditorOrder)
    assert_type(client.create_producer("orders"), Producer[bytes])
    producer = client.create_producer("orders", schema=orders)
    assert_type(producer, Producer[EditorOrder])
    assert_type(producer.send(EditorOrder(1), key="alice"), MessageId)

    stream = client.subscribe_stream("orders", "billing", schema=orders)
    assert_type(stream, StreamConsumer[EditorOrder])
    assert_type(stream.receive().value, EditorOrder | None)
    for message in stream:
        assert_type(message, Message[EditorOrder])

    queue = client.subscribe_queue("orders", "work", schema=orders)
    assert_type(queue, QueueConsumer[EditorOrder])
    reader = client.create_checkpoint_consumer("orders", schema=orders)
    assert_type(reader, CheckpointConsumer[EditorOrder])
    several = client.subscribe_topics(["orders", "bills"], "all", schema=orders)
    assert_type(several, TopicsConsumer[EditorOrder])
