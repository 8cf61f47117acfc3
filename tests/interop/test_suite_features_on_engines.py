"""The features of our client on each engine, one by one; docs/pulsar-5.md lists what an engine lacks."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from anabranch import (
    AsyncQueueConsumer,
    Backoff,
    Client,
    DeadLetter,
    Decrypt,
    Encrypt,
    Interceptor,
    Message,
    PemFiles,
    Schema,
    SentMessage,
)
from anabranch.protocol.entries import EncryptedEntryError
from tests.interop.engines import EngineLimit, RunningEngine
from tests.interop.features import make_keys
from tests.interop.suite import KINDS, PATIENCE_S, SuiteReading, opened, send
from tests.unit.schemas.messages import message_class

# The first run downloads some 250 MB for Pulsar.
pytestmark = [pytest.mark.timeout(900), pytest.mark.real_time]

LARGE = bytes(range(256)) * 2**15
"""Larger than an entry."""


async def received(consumer: Any, count: int) -> list[bytes]:
    """The values of the next messages, which are acknowledged."""
    values = []
    for _ in range(count):
        message = await consumer.receive(timeout=PATIENCE_S)
        await consumer.acknowledge(message)
        values.append(message.data)
    return values


@pytest.mark.parametrize("scheme", ["topic", "persistent"])
async def test_one_consumer_reads_several_topics(engine: RunningEngine, scheme: str) -> None:
    new = engine.new_topic if scheme == "topic" else engine.new_classic_topic
    topics = [await new("several") for _ in range(3)]
    async with engine.client() as client, engine.admin() as admin:
        if scheme == "persistent" and engine.lacks(EngineLimit.CLASSIC_CREATION):
            for topic in topics:
                await admin.create_subscription(topic, "s", start="earliest")
        consumer = await client.subscribe_topics(topics, "s", initial_position="earliest")
        for topic in topics:
            await send(await client.create_producer(topic), range(20))
        found: dict[str, list[int]] = defaultdict(list)
        for _ in range(60):
            message = await consumer.receive(timeout=PATIENCE_S)
            found[message.topic].append(int(message.data))
            await consumer.acknowledge(message)
        assert found.keys() == set(topics)
        assert [sorted(numbers) for numbers in found.values()] == [list(range(20))] * 3


async def test_a_pattern_finds_topics_that_come_later(engine: RunningEngine) -> None:
    first = await engine.new_topic("patterned-first")
    async with engine.client() as client:
        consumer = await client.subscribe_topics(
            re.compile("patterned-.*"), "s", kind="stream", initial_position="earliest"
        )
        for topic in (first, await engine.new_topic("patterned-later")):
            await send(await client.create_producer(topic), range(1))
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message.topic == topic
            await consumer.acknowledge_cumulative(message)


async def test_a_large_message_is_stored_in_chunks(engine: RunningEngine) -> None:
    topic = await engine.new_topic("large")
    async with engine.client() as client:
        producer = await client.create_producer(topic, chunking=True)
        await producer.send(LARGE, key="k", properties={"colour": "red"})
        await producer.send(b"small", key="k")
        for kind in ("stream", "queue", "keyed"):
            consumer = await opened(client, kind, topic)
            message = await consumer.receive(timeout=PATIENCE_S)
            assert (message.data == LARGE, message.key, message.properties) == (True, "k", {"colour": "red"})
            assert (await consumer.receive(timeout=PATIENCE_S)).data == b"small"


async def test_only_a_consumer_with_the_key_reads_encrypted_messages(
    engine: RunningEngine, tmp_path: Path
) -> None:
    topic, keys = await engine.new_topic("secret"), make_keys(tmp_path)
    async with engine.client() as client:
        encryption = Encrypt("app", PemFiles(keys.public))
        producer = await client.create_producer(topic, encryption=encryption, compression="zstd")
        await send(producer, range(40))
        decryption = Decrypt(PemFiles(keys.private))
        for kind in ("stream", "queue", "keyed"):
            reading = SuiteReading(kind, await opened(client, kind, topic, encryption=decryption))
            await reading.until(40)
            reading.check(40)
        blind = await client.subscribe_queue(topic, "blind", initial_position="earliest")
        message = await blind.receive(timeout=PATIENCE_S)
        with pytest.raises(EncryptedEntryError, match="the entry is encrypted"):
            _ = message.data


class StepsSeen(Interceptor):
    """Marks messages that are sent, and notes what becomes of them."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def before_send(self, message: SentMessage) -> None:
        message.properties["marked"] = "yes"

    def on_receipt(self, message: SentMessage, message_id: object, error: BaseException | None) -> None:
        self.seen.append("stored" if error is None else "failed")

    def on_receive(self, message: Message[Any]) -> None:
        self.seen.append(f"received {message.properties['marked']}")

    def on_acknowledge(self, message: object) -> None:
        self.seen.append("acknowledged")


async def test_interceptors_see_each_step_of_a_message(engine: RunningEngine) -> None:
    topic, witness = await engine.new_topic("witnessed"), StepsSeen()
    async with engine.client() as client:
        await (await client.create_producer(topic, interceptors=[witness])).send(b"a", key="k")
        consumer = await opened(client, "queue", topic, interceptors=[witness])
        assert await received(consumer, 1) == [b"a"]
    assert witness.seen == ["stored", "received yes", "acknowledged"]


async def test_a_paused_consumer_gets_nothing_until_it_resumes(engine: RunningEngine) -> None:
    topic = await engine.new_topic("paused")
    async with engine.client() as client:
        producer = await client.create_producer(topic)
        for kind in KINDS[:3]:
            consumer = await opened(client, kind, topic)
            consumer.pause()
        waiting = asyncio.create_task(consumer.receive(timeout=PATIENCE_S))
        await send(producer, range(1))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done
        consumer.resume()
        assert (await waiting).data == b"0"


async def test_handlers_run_in_the_order_of_keys_and_again_after_a_failure(engine: RunningEngine) -> None:
    topic = await engine.new_topic("handled", 2)
    stop, handled = asyncio.Event(), SuiteReading("stream", None)
    failed: list[bytes] = []

    async def handle(message: Message[bytes]) -> None:
        if message.data == b"30" and not failed:
            failed.append(message.data)
            raise ValueError("not yet")
        handled.by_key[message.key].append(int(message.data))
        handled.count += 1
        if handled.count == 100:
            stop.set()

    async with engine.client() as client:
        await send(await client.create_producer(topic), range(100))
        consumer = await opened(client, "stream", topic)
        async with asyncio.timeout(PATIENCE_S):
            await consumer.run(handle, concurrency=20, retry=Backoff(0.05, 0.05), stop=stop)
        await consumer.close()
        assert failed == [b"30"]
        handled.check(100)
        again = await opened(client, "stream", topic)
        assert await again.receive_many(1, timeout=1) == [], "everything is acknowledged"


@dataclass
class Crate:
    name: str
    weight: int = 1


async def test_avro_values_have_types(engine: RunningEngine) -> None:
    topic, schema = await engine.new_topic("avro"), Schema.avro(Crate)
    async with engine.client() as client:
        await (await client.create_producer(topic, schema=schema)).send(Crate("tea", 2), key="k")
        typed: AsyncQueueConsumer[Crate] = await opened(client, "queue", topic, schema=schema)
        message = await typed.receive(timeout=PATIENCE_S)
        assert message.value == Crate("tea", 2)
        plain = await client.subscribe_queue(
            topic, "any", schema=Schema.auto_consume(), initial_position="earliest"
        )
        value = (await plain.receive(timeout=PATIENCE_S)).require_value()
        assert (value["name"], value["weight"]) == ("tea", 2)


@dataclass
class PaintedCrate:
    """A later version of Crate."""

    name: str
    weight: int = 1
    colour: str = "brown"


PaintedCrate.__name__ = Crate.__name__


async def test_avro_values_of_all_versions_and_their_letters_have_types(engine: RunningEngine) -> None:
    """The first version that a segment knows may be a later one of the topic."""
    topic = await engine.new_topic("avro-versions")
    letters = await engine.new_topic("avro-letters")
    async with engine.client() as client, engine.admin() as admin:
        old = await client.create_producer(topic, schema=Schema.avro(Crate))
        await old.send(Crate("tea", 2), key="k")
        await old.close()
        await admin.split(topic, 0)
        new = await client.create_producer(topic, schema=Schema.avro(PaintedCrate))
        for key in ("a", "b", "c", "d"):
            await new.send(PaintedCrate("ink", 3, "red"), key=key)
        consumer: AsyncQueueConsumer[PaintedCrate] = await opened(
            client,
            "queue",
            topic,
            schema=Schema.avro(PaintedCrate),
            redelivery=Backoff(0.05, 0.05),
            dead_letter=DeadLetter(0, topic=letters),
        )
        read = await client.subscribe_queue(
            letters, "read", schema=Schema.auto_consume(), initial_position="earliest"
        )
        values = []
        for _ in range(5):
            message = await consumer.receive(timeout=PATIENCE_S)
            values.append(message.require_value())
            await consumer.negative_acknowledge(message)
        red = PaintedCrate("ink", 3, "red")
        assert sorted(values, key=str) == [red] * 4 + [PaintedCrate("tea", 2)]
        assert await consumer.receive_many(1, timeout=2) == [], "what comes again is a letter"
        found = [(await read.receive(timeout=PATIENCE_S)).require_value() for _ in range(5)]
        expected: list[dict[str, Any]] = [{"name": "ink", "weight": 3, "colour": "red"}] * 4
        assert sorted(found, key=str) == [*expected, {"name": "tea", "weight": 2}]


async def test_protobuf_values_have_types(engine: RunningEngine) -> None:
    kind = message_class("shop.Crate", "name")
    topic, schema = await engine.new_topic("protobuf"), Schema.protobuf(kind)
    async with engine.client() as client:
        await (await client.create_producer(topic, schema=schema)).send(kind(name="tea"), key="k")
        consumer = await opened(client, "queue", topic, schema=schema)
        assert (await consumer.receive(timeout=PATIENCE_S)).value == kind(name="tea")


async def test_the_blocking_client_does_the_same(engine: RunningEngine) -> None:
    topic = await engine.new_topic("blocking", 2)

    def use() -> None:
        with Client(engine.service_url) as client:
            producer = client.create_producer(topic)
            producer.send_many([b"%d" % n for n in range(40)], keys=[f"key-{n % 7}" for n in range(40)])
            queue = client.subscribe_queue(topic, "q", initial_position="earliest")
            values = []
            for _ in range(40):
                message = queue.receive(timeout=PATIENCE_S)
                values.append(int(message.data))
                queue.acknowledge(message)
            assert sorted(values) == list(range(40))
            stream = client.subscribe_stream(topic, "s", initial_position="earliest")
            by_key: dict[str | None, list[int]] = defaultdict(list)
            for _ in range(40):
                message = stream.receive(timeout=PATIENCE_S)
                by_key[message.key].append(int(message.data))
            assert by_key == {f"key-{k}": list(range(k, 40, 7)) for k in range(7)}

    await asyncio.to_thread(use)


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_the_subscription_of_a_classic_topic_moves(engine: RunningEngine, kind: str) -> None:
    topic = await engine.new_classic_topic("sought")
    async with engine.client() as client, engine.admin() as admin:
        producer = await client.create_producer(topic)
        await send(producer, range(20))
        await asyncio.sleep(0.1)
        middle = datetime.now(UTC)
        await asyncio.sleep(0.1)
        await send(producer, range(20, 40))
        if engine.lacks(EngineLimit.CLASSIC_CREATION):
            await admin.create_subscription(topic, kind, start="earliest")
        consumer = await opened(client, kind, topic)
        for target, first in (("earliest", 0), (middle, 20), (middle - timedelta(hours=1), 0)):
            await consumer.seek(target)
            reading = SuiteReading(kind, consumer)
            await reading.until(40 - first)
            found = sorted(number for numbers in reading.by_key.values() for number in numbers)
            assert found == list(range(first, 40)), target
        await consumer.seek("latest")
        assert await consumer.receive_many(1, timeout=0.5) == []
