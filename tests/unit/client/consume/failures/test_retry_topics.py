"""Retry topics: messages wait there for their next attempt, with the properties of Pulsar's clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch import AsyncQueueConsumer, Backoff, DeadLetter, Decrypt, Message, PemFiles, Schema
from anabranch.errors import AlreadyClosedError, InvalidConfigurationError
from tests.harness.cluster import TOPIC, Brokers

RETRY = f"{TOPIC}-q-RETRY"
OPTIONS: Any = {"initial_position": "earliest", "redelivery": Backoff(1, 1, jitter=0.0), "retry_topic": True}


async def attempts(
    consumer: AsyncQueueConsumer[Any], brokers: Brokers, **later: Any
) -> list[tuple[float, Message[Any]]]:
    """Send each message to the retry topic until none comes any more; the time of each attempt."""
    found = []
    began = brokers.loop.time()
    while messages := await consumer.receive_many(10, timeout=20):
        for message in messages:
            found.append((brokers.loop.time() - began, message))
            await consumer.reconsume_later(message, **later)
    return found


async def test_a_message_comes_again_after_each_delay_and_then_becomes_a_dead_letter(
    brokers: Brokers,
) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, schema=Schema.string())
        first = await producer.send("tea", key="alice", properties={"size": "small"})
        consumer = await client.subscribe_queue(
            TOPIC, "q", schema=Schema.string(), dead_letter=DeadLetter(2), **OPTIONS
        )
        found = await attempts(consumer, brokers, delay=5, properties={"extra": "1"}, reason="no cup")
        assert [round(at) for at, _ in found] == [0, 5, 10]
        assert [message.topic for _, message in found] == [TOPIC, RETRY, RETRY]
        assert [message.value for _, message in found] == ["tea"] * 3
        assert {message.key for _, message in found} == {"alice"}
        last = found[-1][1].properties
        expected = {
            "RECONSUMETIMES": "2",
            "DELAY_TIME": "5000",
            "REAL_TOPIC": TOPIC,
            "REAL_SUBSCRIPTION": "q",
            "ORIGIN_MESSAGE_ID": str(first),
            "size": "small",
            "extra": "1",
        }
        assert expected.items() <= dict(last).items()
        letters = await client.subscribe_queue(
            f"{TOPIC}-DLQ", "look", schema=Schema.string(), initial_position="earliest"
        )
        letter = await letters.receive(timeout=5)
        assert letter.value == "tea"
        assert letter.properties["REAL_TOPIC"] == TOPIC
        assert letter.properties["ORIGIN_MESSAGE_ID"] == str(first)
        assert letter.properties["DEAD_LETTER_REASON"] == "no cup"
        assert letter.properties["DEAD_LETTER_ATTEMPTS"] == "3"
        await consumer.close()
        again = await client.subscribe_queue(TOPIC, "q", **OPTIONS)
        assert await again.receive_many(1, timeout=20) == [], "both topics are acknowledged"


async def test_a_run_sends_failed_messages_to_the_retry_topic_and_goes_on(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        await producer.send_many([b"bad", b"good"])
        consumer = await client.subscribe_queue(TOPIC, "q", dead_letter=DeadLetter(1), **OPTIONS)
        handled: list[tuple[bytes, str]] = []

        async def handle(message: Message[bytes]) -> None:
            handled.append((message.data, message.topic))
            if message.data == b"bad":
                raise ValueError("not today")

        statistics = await consumer.run(handle, stop=10)
        assert sorted(handled) == [(b"bad", TOPIC), (b"bad", RETRY), (b"good", TOPIC)]
        assert (statistics.handled, statistics.failed, statistics.dead_letters) == (1, 2, 1)
        assert await consumer.receive_many(1, timeout=5) == []


async def test_messages_of_the_retry_topic_are_refused_and_acknowledged_as_any_other(
    brokers: Brokers,
) -> None:
    async with brokers.client() as client:
        await (await client.create_producer(TOPIC)).send(b"tea")
        consumer = await client.subscribe_queue(TOPIC, "q", ack_receipts=True, **OPTIONS)
        await consumer.reconsume_later(await consumer.receive(timeout=5), delay=0)
        retry = await consumer.receive(timeout=5)
        await consumer.negative_acknowledge(retry)
        again = await consumer.receive(timeout=5)
        assert (again.topic, again.redelivery_count) == (RETRY, 1)
        async with consumer.processing(again):
            pass
        await consumer.close()
        with pytest.raises(AlreadyClosedError):
            await consumer.reconsume_later(again)
        reading = await client.subscribe_queue(TOPIC, "q", **OPTIONS)
        assert await reading.receive_many(1, timeout=5) == []


async def test_acknowledgements_of_the_retry_topic_leave_by_themselves(brokers: Brokers) -> None:
    client = brokers.client()
    await (await client.create_producer(TOPIC)).send(b"tea")
    consumer = await client.subscribe_queue(TOPIC, "q", **OPTIONS)
    await consumer.reconsume_later(await consumer.receive(timeout=5), delay=0)
    await consumer.acknowledge(await consumer.receive(timeout=5))
    await asyncio.sleep(1)
    brokers.kill()
    await client.shutdown()
    await brokers.start()
    async with brokers.client() as other:
        again = await other.subscribe_queue(TOPIC, "q", **OPTIONS)
        assert await again.receive_many(1, timeout=5) == []


async def test_a_busy_topic_does_not_starve_its_retries(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=False)
        await producer.send(b"again")
        consumer = await client.subscribe_queue(TOPIC, "q", **OPTIONS)
        await consumer.reconsume_later(await consumer.receive(timeout=5), delay=0)
        await asyncio.sleep(1)
        await producer.send_many([b"more"] * 50)
        await asyncio.sleep(1)
        found = [(await consumer.receive(timeout=5)).data for _ in range(51)]
        assert found.index(b"again") < 2


@pytest.mark.parametrize("seed", range(3))
async def test_retries_survive_kills_and_splits(brokers: Brokers, seed: int) -> None:
    client = brokers.client()
    producer = await client.create_producer(TOPIC)
    consumer = await client.subscribe_queue(
        TOPIC, "q", retry_topic=True, initial_position="earliest", redelivery=Backoff(0.05, 0.05)
    )
    done: list[int] = []

    async def consume() -> None:
        while len(set(done)) < 200:
            for message in await consumer.receive_many(20, timeout=60):
                if message.properties.get("RECONSUMETIMES", "0") < "2":
                    await consumer.reconsume_later(message, delay=0.01)
                else:
                    done.append(int(message.data))
                    await consumer.acknowledge(message)

    consuming = asyncio.ensure_future(consume())
    async with brokers.trouble(changes=0.6, resets=0.2):
        for number in range(0, 200, 10):
            values = [b"%d" % each for each in range(number, number + 10)]
            await producer.enqueue_many(values, keys=[f"key-{each}" for each in range(10)])
            await asyncio.sleep(brokers.rng.uniform(0.0, 0.01))
    await consuming
    assert set(done) == set(range(200))
    await client.close()


async def test_a_retry_topic_may_have_a_name_of_its_own(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await (await client.create_producer(TOPIC)).send(b"tea")
        named = f"{TOPIC}-later"
        consumer = await client.subscribe_queue(
            TOPIC, "q", dead_letter=DeadLetter(2), **{**OPTIONS, "retry_topic": named}
        )
        found = await attempts(consumer, brokers)
        assert [message.topic for _, message in found] == [TOPIC, named, named]


async def test_several_topics_have_their_own_retry_topics(brokers: Brokers) -> None:
    async with brokers.client() as client:
        names = [f"{TOPIC}-a", f"{TOPIC}-b"]
        for name in names:
            await (await client.create_producer(name)).send(b"tea")
        consumer = await client.subscribe_topics(names, "q", **OPTIONS)
        for _ in names:
            await consumer.reconsume_later(await consumer.receive(timeout=5), delay=1)
        found = [await consumer.receive(timeout=5) for _ in names]
        assert sorted(message.topic for message in found) == [f"{name}-q-RETRY" for name in names]
        await consumer.reconsume_later(found[0], delay=1)
        await consumer.acknowledge(found[1])
        assert (await consumer.receive(timeout=5)).properties["RECONSUMETIMES"] == "2"


async def test_a_retry_topic_needs_to_be_asked_for_and_a_queue_without_order(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await (await client.create_producer(TOPIC)).send(b"tea")
        plain = await client.subscribe_queue(TOPIC, "q", initial_position="earliest")
        with pytest.raises(InvalidConfigurationError, match="retry_topic"):
            await plain.reconsume_later(await plain.receive(timeout=5))
        with pytest.raises(InvalidConfigurationError, match="order"):
            await client.subscribe_queue(TOPIC, "k", order="key", retry_topic=True)
        with pytest.raises(InvalidConfigurationError, match="decrypts"):
            await client.subscribe_queue(
                TOPIC, "e", retry_topic=True, encryption=Decrypt(PemFiles("private.pem"))
            )
        with pytest.raises(InvalidConfigurationError, match="queue"):
            await client.subscribe_topics([TOPIC], "s", kind="stream", retry_topic=True)
