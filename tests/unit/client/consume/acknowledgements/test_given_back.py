"""Messages that applications name to the wrong consumer, and values that are not messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch import AsyncClient
from anabranch.errors import InvalidConfigurationError
from tests.harness.admin import Admin
from tests.harness.cluster import TOPIC, Brokers

OTHER = "topic://public/default/other"
CLASSIC = "persistent://public/default/classic"
MIGRATED = "topic://public/default/classic"
KINDS = ["stream", "queue", "keyed", "retrying"]


async def opened(client: AsyncClient, kind: str, topic: str = TOPIC, name: str = "s") -> Any:
    if kind == "stream":
        return await client.subscribe_stream(topic, name, initial_position="earliest")
    options: dict[str, dict[str, Any]] = {"keyed": {"order": "key"}, "retrying": {"retry_topic": True}}
    more = options.get(kind, {})
    return await client.subscribe_queue(topic, name, initial_position="earliest", **more)


def acknowledge(consumer: Any) -> Any:
    return getattr(consumer, "acknowledge_cumulative", None) or consumer.acknowledge


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "wrong", ["text", None, 5, b"bytes", object()], ids=lambda wrong: type(wrong).__name__
)
async def test_a_value_that_is_no_message_is_refused(brokers: Brokers, kind: str, wrong: Any) -> None:
    async with brokers.client() as client:
        consumer = await opened(client, kind)
        calls = [acknowledge(consumer)]
        if kind != "stream":
            calls += [consumer.negative_acknowledge, lambda wrong: consumer.acknowledge([wrong])]
        for call in calls:
            with pytest.raises(InvalidConfigurationError, match="needs a message or its id, not"):
                await call(wrong)
        if kind == "retrying":
            with pytest.raises(InvalidConfigurationError, match="needs the message, not"):
                await consumer.reconsume_later(wrong)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_of_another_topic_is_refused(brokers: Brokers, kind: str) -> None:
    async with brokers.client() as client:
        # The id of a message of one topic is the id of another message, or of later ones, in another topic.
        for topic in (TOPIC, OTHER):
            await (await client.create_producer(topic)).send_many([b"0", b"1"], keys=["k", "k"])
        consumer, others = await opened(client, kind), await opened(client, kind, OTHER)
        await consumer.receive(timeout=5)
        message = await others.receive(timeout=5)
        calls = [acknowledge(consumer), consumer.seek]
        if kind != "stream":
            calls += [consumer.negative_acknowledge, lambda one: consumer.acknowledge([one])]
        if kind == "retrying":
            calls.append(consumer.reconsume_later)
        for call in calls:
            with pytest.raises(InvalidConfigurationError, match=f"is one of {OTHER}"):
                await call(message)
        await consumer.close()
        again = await opened(client, kind)
        assert [(await again.receive(timeout=5)).data for _ in range(2)] == [b"0", b"1"]
        assert await again.receive_many(1, timeout=300) == [], "no message came into a retry topic"


@pytest.mark.parametrize("kind", ["stream", "queue", "keyed"])
async def test_a_message_counts_for_every_consumer_of_its_topic(brokers: Brokers, kind: str) -> None:
    async with brokers.client() as client:
        await (await client.create_producer(TOPIC)).send_many([b"0", b"1"], keys=["k", "k"])
        first, second = await opened(client, kind, name="a"), await opened(client, kind, name="b")
        message = await first.receive(timeout=5)
        await second.receive(timeout=5)
        await acknowledge(second)(message)
        await second.close()
        again = await opened(client, kind, name="b")
        assert (await again.receive(timeout=5)).data == b"1"


async def test_the_messages_of_a_list_before_a_wrong_one_are_acknowledged(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=False)
        await producer.send_many([b"0", b"1"])
        consumer = await opened(client, "queue")
        message: Any = await consumer.receive(timeout=5)
        with pytest.raises(InvalidConfigurationError):
            await consumer.acknowledge([message, "text"])
        # The acknowledgement leaves by itself, without another call of this consumer.
        await asyncio.sleep(1)
        layout = await client.layout(TOPIC)
        log = brokers[0].stores.get(layout.segment_topic(layout.layout.segments[0]))
        assert log is not None
        assert log.cursors["s"].acks.pending_count(log.extent.next_ordinal) == 1


async def test_a_message_has_both_names_of_a_migrated_topic(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await (await client.create_producer(CLASSIC)).send(b"0")
        before = await opened(client, "queue", CLASSIC)
        message = await before.receive(timeout=5)
        migrated = await Admin(brokers).ask("POST", "/admin/v2/scalable/public/default/classic/migrate")
        assert migrated.status == 204
        after = await opened(client, "queue", MIGRATED, "t")
        assert (await after.receive(timeout=5)).data == b"0"
        await after.acknowledge(message)
        await after.close()
        again = await opened(client, "queue", MIGRATED, "t")
        assert await again.receive_many(1, timeout=5) == []
