"""Consumers that stay attached while their topic is deleted and created again."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from anabranch import AsyncClient, Checkpoint
from anabranch.client.consume.context import RECREATED_S
from anabranch.errors import DataLossError, TopicNotFoundError
from anabranch.model.names import TopicName
from tests.harness.cluster import TOPIC, Brokers

NAME = TopicName.parse(TOPIC)


KINDS = ["queue", "stream", "checkpoint"]


async def open_consumer(client: AsyncClient, kind: str, topic: str = TOPIC) -> Any:
    if kind == "queue":
        return await client.subscribe_queue(topic, "s", initial_position="earliest")
    if kind == "keyed":
        return await client.subscribe_queue(topic, "s", initial_position="earliest", order="key")
    if kind == "stream":
        return await client.subscribe_stream(topic, "s", initial_position="earliest")
    if kind == "topics":
        return await client.subscribe_topics([topic, f"{topic}-2"], "s", kind="stream")
    group = "g" if kind == "member" else None
    return await client.create_checkpoint_consumer(
        topic, start=Checkpoint.earliest(), fail_on_data_loss=False, group=group
    )


async def drain(consumer: Any) -> list[bytes]:
    values: list[bytes] = []
    while got := await consumer.receive_many(1000, timeout=5):
        values += [message.value for message in got]
    return values


@pytest.mark.parametrize("pause_s", [0.0, 5.0])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_attached_consumer_reads_the_new_topic_and_no_old_message(
    brokers: Brokers, kind: str, pause_s: float
) -> None:
    controllers = brokers[0].controllers
    await controllers.create_topic(NAME, 2)
    async with brokers.client() as client:
        consumer = await open_consumer(client, kind)
        producer = await client.create_producer(TOPIC)
        await producer.send_many([b"read"] * 10, keys=[f"k{n}" for n in range(10)])
        got = await consumer.receive_many(3, timeout=5)
        assert {message.value for message in got} == {b"read"}
        await producer.send_many([b"old"] * 500, keys=[f"k{n}" for n in range(500)])
        await controllers.delete_topic(NAME, force=True)
        await asyncio.sleep(pause_s)
        await controllers.create_topic(NAME, 2)
        await asyncio.sleep(2)
        # The application may still receive messages that the client had buffered before.
        await drain(consumer)
        async with brokers.client() as another:
            late = await open_consumer(another, "checkpoint")
            assert await late.receive_many(10, timeout=2) == [], "no old data in the new topic"
            fresh = await another.create_producer(TOPIC)
            await fresh.send_many([b"new"] * 10, keys=[f"k{n}" for n in range(10)])
        assert await drain(consumer) == [b"new"] * 10


async def test_a_checkpoint_consumer_raises_because_messages_are_gone(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        await producer.send_many([b"old"] * 50)
        reader = await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
        assert await reader.receive_many(1, timeout=5)
        await brokers[0].controllers.delete_topic(NAME, force=True)
        await brokers[0].controllers.create_topic(NAME)
        with pytest.raises(DataLossError):
            await drain(reader)


@pytest.mark.parametrize("kind", [*KINDS, "keyed", "member", "topics"])
async def test_a_waiting_receive_raises_when_its_topic_was_deleted(brokers: Brokers, kind: str) -> None:
    controllers = brokers[0].controllers
    await controllers.create_topic(NAME, 2)
    async with brokers.client() as client:
        consumer = await open_consumer(client, kind)
        waiting = asyncio.ensure_future(consumer.receive())
        await controllers.delete_topic(NAME, force=True)
        await asyncio.sleep(RECREATED_S - 1)
        assert not waiting.done(), "the topic may be created again"
        with pytest.raises(TopicNotFoundError, match="orders does not exist"):
            await asyncio.wait_for(waiting, 3)
        with pytest.raises(TopicNotFoundError):
            await consumer.receive_many(10, timeout=5)
        await controllers.create_topic(NAME, 2)
        await asyncio.sleep(2)
        await (await client.create_producer(TOPIC)).send(b"new")
        assert (await consumer.receive(5)).value == b"new"


async def test_a_consumer_of_a_pattern_drops_a_deleted_topic(brokers: Brokers) -> None:
    async with brokers.client() as client:
        other = await client.create_producer(f"{TOPIC}-2")
        await client.create_producer(TOPIC)
        consumer = await client.subscribe_topics(re.compile("orders.*"), "s", kind="queue")
        waiting = asyncio.ensure_future(consumer.receive())
        await brokers[0].controllers.delete_topic(NAME, force=True)
        await asyncio.sleep(2 * RECREATED_S)
        await other.send(b"other")
        assert (await waiting).value == b"other"
        assert consumer.topics == (f"{TOPIC}-2",)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_waiting_receive_outlives_a_restart_of_the_broker(brokers: Brokers, kind: str) -> None:
    await brokers[0].controllers.create_topic(NAME)
    async with brokers.client() as client:
        consumer = await open_consumer(client, kind)
        waiting = asyncio.ensure_future(consumer.receive())
        await brokers.stop()
        await asyncio.sleep(4 * RECREATED_S)
        await brokers.start()
        await (await client.create_producer(TOPIC)).send(b"new")
        assert (await waiting).value == b"new"


@pytest.mark.brokers(auto_create_topics=False)
@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_a_waiting_receive_of_a_deleted_classic_topic_raises_until_it_is_back(
    brokers: Brokers, kind: str
) -> None:
    classic = TopicName.parse("persistent://public/default/orders")
    await brokers[0].classic.create(classic)
    async with brokers.client() as client:
        consumer = await open_consumer(client, kind, str(classic))
        waiting = asyncio.ensure_future(consumer.receive())
        await brokers[0].logs.drop(classic)
        await brokers[0].records.delete_classic(classic)
        with pytest.raises(TopicNotFoundError):
            await asyncio.wait_for(waiting, 2 * RECREATED_S)
        await brokers[0].classic.create(classic)
        await (await client.create_producer(str(classic))).send(b"new")
        await asyncio.sleep(2 * RECREATED_S)
        assert (await consumer.receive(5)).value == b"new"


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_unsubscribing_from_a_deleted_topic_has_nothing_to_do(brokers: Brokers, kind: str) -> None:
    controllers = brokers[0].controllers
    await controllers.create_topic(NAME)
    async with brokers.client() as client:
        consumer = await open_consumer(client, kind)
        topics: Any = await client.subscribe_topics([TOPIC, f"{TOPIC}-2"], "t", kind="queue")
        await controllers.delete_topic(NAME, force=True)
        began = brokers.loop.time()
        await consumer.unsubscribe()
        await topics.unsubscribe()
        assert brokers.loop.time() - began < 5
        assert "closed" in repr(consumer)
        left = await client.subscribe_queue(f"{TOPIC}-2", "t", initial_position="earliest")
        await left.unsubscribe()
