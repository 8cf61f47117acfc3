"""The attributes of live objects that applications see: each object has the listed ones and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import anabranch
from anabranch.apps import Bench
from anabranch.otel import Telemetry
from anabranch.testing.local_broker import LocalBroker
from tests.harness.public import methods

NAMES = {
    "AdminClient": "url",
    "App": "",
    "AsyncAdminClient": "url",
    "AsyncCheckpointConsumer": "name",
    "AsyncClient": "service_url",
    "AsyncProducer": "name",
    "AsyncQueueConsumer": "name subscription",
    "AsyncStreamConsumer": "name subscription",
    "AsyncTopicsConsumer": "subscription",
    "AuthenticationBasic": "method_name",
    "AuthenticationOauth2": "",
    "AuthenticationTLS": "certificate_path private_key_path",
    "AuthenticationToken": "",
    "Bench": "published",
    "CheckpointConsumer": "",
    "Client": "service_url",
    "LocalBroker": "",
    "Message": "",
    "PemFiles": "",
    "Producer": "",
    "QueueConsumer": "",
    "Schema": "",
    "StreamConsumer": "",
    "Telemetry": "",
    "TopicsConsumer": "",
}
"""The attributes of the objects of each class, beside the methods and properties of the class."""

PARTS = {"life", "opened_by", "operation_timeout_s", "outbox", "parts", "publisher"}
"""The parts that an object is made of, which other modules of the package use and applications need not."""

VALUES = {
    "AnabranchError",
    "Authentication",
    "Backoff",
    "Batching",
    "Checkpoint",
    "DeadLetter",
    "Decrypt",
    "Encrypt",
    "EncryptionContext",
    "EncryptionKey",
    "Interceptor",
    "MessageId",
    "RunStatistics",
    "SchemaError",
    "SentMessage",
}
"""Plain values, whose classes name all their fields, and classes that applications fill or inherit."""

TOPICS = ["orders", "tea"]


@dataclass
class Brew:
    """A value with a type."""

    item: str


def attributes(one: object) -> set[str]:
    """The public attributes that an object has beside those of its class."""
    slots = (vars(kind).get("__slots__", ()) for kind in type(one).__mro__)
    names = {name for each in slots for name in ([each] if isinstance(each, str) else each)}
    return {name for name in {*names, *getattr(one, "__dict__", {})} if not name.startswith("_")}


def blocking(url: str) -> Iterator[object]:
    with anabranch.Client(url) as client:
        yield client
        yield client.create_producer("orders")
        yield client.subscribe_stream("orders", "stream")
        yield client.subscribe_queue("orders", "queue")
        yield client.create_checkpoint_consumer("orders")
        yield client.subscribe_topics(TOPICS, "topics")


async def asynchronous(url: str) -> list[object]:
    async with anabranch.AsyncClient(url) as client:
        producer = await client.create_producer("orders")
        await producer.send(b"one tea")
        checkpoints = await client.create_checkpoint_consumer("orders", start=anabranch.Checkpoint.earliest())
        return [
            client,
            producer,
            checkpoints,
            await checkpoints.receive(timeout=10),
            await client.subscribe_stream("orders", "a stream"),
            await client.subscribe_queue("orders", "a queue"),
            await client.subscribe_queue("orders", "a keyed queue", order="key"),
            await client.subscribe_topics(TOPICS, "several topics"),
        ]


def without_a_broker() -> list[object]:
    return [
        anabranch.AdminClient(),
        anabranch.AsyncAdminClient(),
        anabranch.App("pulsar://127.0.0.1:6650"),
        anabranch.AuthenticationBasic("alice", "secret"),
        anabranch.AuthenticationOauth2(
            '{"issuer_url": "https://issuer.example", "private_key": "file:///key.json"}'
        ),
        anabranch.AuthenticationTLS("certificate.pem", "key.pem"),
        anabranch.AuthenticationToken("token"),
        anabranch.PemFiles({"app": "key.pem"}),
        anabranch.Schema.string(),
        anabranch.Schema.json(Brew),
        Bench([]),
        Telemetry(),
    ]


def test_live_objects_show_exactly_their_listed_attributes(anabranch_broker: LocalBroker) -> None:
    live = [anabranch_broker, *without_a_broker(), *asyncio.run(asynchronous(anabranch_broker.url))]
    live += blocking(anabranch_broker.url)
    found: dict[str, set[str]] = {}
    for one in live:
        # A queue that keeps the order of keys, or the schema of a type, has a class of its own.
        public = next(kind.__name__ for kind in type(one).__mro__ if kind.__name__ in NAMES)
        # The compiled form of a method is an attribute of the object, by the name of the method.
        found.setdefault(public, set()).update(attributes(one) - methods(type(one)).keys() - PARTS)
    assert found == {name: set(NAMES[name].split()) for name in NAMES}


def test_every_public_class_is_looked_at() -> None:
    assert not VALUES & set(NAMES)
    assert VALUES | set(NAMES) == {*anabranch.__all__, "Bench", "LocalBroker", "Telemetry"}
