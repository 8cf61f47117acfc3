"""The queue consumer against a real broker on a virtual clock: acknowledgement, giving back, dead letters."""

from __future__ import annotations

import asyncio

import pytest

from anabranch import AsyncQueueConsumer, Backoff, Batching, DeadLetter, Message, MessageId
from anabranch.errors import AlreadyClosedError, ConsumerBusyError
from anabranch.model.names import TopicName
from simulation.harness.client_insides import sources_of
from tests.harness.cluster import TOPIC, Brokers


async def publish(brokers: Brokers, count: int, first: int = 0) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        numbers = range(first, first + count)
        await producer.send_many([b"%d" % n for n in numbers], keys=[f"key-{n % 10}" for n in numbers])


async def drain(consumer: AsyncQueueConsumer[bytes], timeout: float = 1.0) -> list[Message[bytes]]:
    found: list[Message[bytes]] = []
    while messages := await consumer.receive_many(100, timeout=timeout):
        found += messages
    return found


def numbers(messages: list[Message[bytes]]) -> list[int]:
    return sorted(int(message.data) for message in messages)


async def test_sealed_and_active_segments_are_read(brokers: Brokers) -> None:
    await publish(brokers, 20)
    await (await brokers.controller()).split(0)
    await publish(brokers, 20, first=20)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", initial_position="earliest")
        assert numbers(await drain(consumer)) == list(range(40))


async def test_segments_that_appear_later_are_read_from_their_beginning(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q")
        await publish(brokers, 20)
        await (await brokers.controller()).split(0)
        await publish(brokers, 20, first=20)
        assert numbers(await drain(consumer)) == list(range(40))


async def test_acknowledged_messages_never_come_again_and_the_others_do(brokers: Brokers) -> None:
    await publish(brokers, 100)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", initial_position="earliest")
        messages = await drain(consumer)
        done = [message for message in messages if int(message.data) % 3]
        await consumer.acknowledge(done[0])
        await consumer.acknowledge(done[1].id)
        await consumer.acknowledge(MessageId.from_bytes(done[2].id.to_bytes()))
        await consumer.acknowledge(done[3:])
        await consumer.acknowledge(done[3:])
        await consumer.close()
        again = await client.subscribe_queue(TOPIC, "q")
        assert numbers(await drain(again)) == list(range(0, 100, 3))


async def test_each_message_goes_to_one_consumer(brokers: Brokers) -> None:
    async with brokers.client() as one, brokers.client() as two:
        consumers = [
            await client.subscribe_queue(TOPIC, "q", receiver_queue_size=20) for client in (one, two)
        ]
        async with brokers.client() as client:
            producer = await client.create_producer(TOPIC, batching=Batching(max_messages=4))
            await producer.send_many([b"%d" % n for n in range(200)])
        counts = []
        found: list[int] = []
        tasks = [asyncio.ensure_future(drain(consumer)) for consumer in consumers]
        for task in tasks:
            messages = await task
            counts.append(len(messages))
            found += numbers(messages)
        assert sorted(found) == list(range(200))
        assert min(counts) > 0


async def test_a_message_given_back_comes_again_after_its_delay(brokers: Brokers) -> None:
    await publish(brokers, 10)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(
            TOPIC, "q", initial_position="earliest", redelivery=Backoff(3.0, 3.0, jitter=0.0)
        )
        messages = await drain(consumer)
        chosen = messages[4]
        assert chosen.redelivery_count == 0
        began = brokers.loop.time()
        await consumer.negative_acknowledge(chosen)
        again = await consumer.receive(timeout=10)
        assert 2.9 < brokers.loop.time() - began < 3.5
        assert (again.value, again.redelivery_count) == (chosen.value, 1)
        assert await consumer.receive_many(10, timeout=5) == [], "other messages of the entry are still held"
        began = brokers.loop.time()
        await consumer.negative_acknowledge(again, delay=0)
        assert (await consumer.receive(timeout=10)).redelivery_count == 2
        assert brokers.loop.time() - began < 0.1


async def test_processing_acknowledges_on_success_and_gives_back_on_failure(brokers: Brokers) -> None:
    await publish(brokers, 2)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(
            TOPIC, "q", initial_position="earliest", redelivery=Backoff(0.1, 0.1)
        )
        one, two = await drain(consumer)
        async with consumer.processing(one):
            pass
        with pytest.raises(ValueError, match="oops"):
            async with consumer.processing(two):
                raise ValueError("oops")
        assert (await consumer.receive(timeout=5)).value == two.value
        await consumer.close()
        again = await client.subscribe_queue(TOPIC, "q")
        assert numbers(await drain(again)) == [int(two.data)]


async def test_a_message_that_is_not_processed_in_time_comes_again(brokers: Brokers) -> None:
    await publish(brokers, 3)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(
            TOPIC, "q", initial_position="earliest", processing_timeout=5.0
        )
        messages = await drain(consumer)
        await consumer.acknowledge(messages[0])
        began = brokers.loop.time()
        again = [await consumer.receive(timeout=20) for _ in range(2)]
        assert brokers.loop.time() - began < 5.5
        assert numbers(again) == numbers(messages[1:])


async def test_dead_letters_go_to_their_topic_with_their_history(brokers: Brokers) -> None:
    await publish(brokers, 2)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(
            TOPIC,
            "q",
            initial_position="earliest",
            redelivery=Backoff(0.1, 0.1),
            dead_letter=DeadLetter(2, initial_subscription="undertaker"),
        )
        deliveries = 0
        while messages := await consumer.receive_many(10, timeout=3):
            for message in messages:
                if message.value == b"0":
                    await consumer.acknowledge(message)
                else:
                    deliveries += 1
                    await consumer.negative_acknowledge(message)
        assert deliveries == 3, "the first delivery and two more"
        letters = await client.subscribe_queue(f"{TOPIC}-DLQ", "undertaker")
        (letter,) = await drain(letters)
        assert (letter.value, letter.key) == (b"1", "key-1")
        assert letter.properties["REAL_TOPIC"] == TOPIC
        assert letter.properties["REAL_SUBSCRIPTION"] == "q"
        assert letter.properties["ORIGIN_MESSAGE_ID"]
        await consumer.close()
        again = await client.subscribe_queue(TOPIC, "q")
        assert await drain(again) == []


@pytest.mark.brokers(auto_create_topics=False)
async def test_a_missing_dead_letter_topic_is_named_once(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    await brokers.living[0].controllers.create_topic(TopicName.parse(TOPIC))
    await publish(brokers, 2)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(
            TOPIC,
            "q",
            initial_position="earliest",
            redelivery=Backoff(0.1, 0.1),
            dead_letter=DeadLetter(0, topic="refused"),
        )
        await asyncio.gather(*(consumer.negative_acknowledge(message) for message in await drain(consumer)))
        assert await drain(consumer, timeout=5) == []
        warnings = [line for line in caplog.messages if "a dead letter was not forwarded" in line]
        assert len(warnings) == 1
        assert "the dead letter topic refused does not exist" in warnings[0]
        await brokers.living[0].controllers.create_topic(TopicName.parse("topic://public/default/refused"))
        letters = await client.subscribe_queue("refused", "undertaker", initial_position="earliest")
        assert await drain(consumer) == []
        assert len(await drain(letters)) == 2


@pytest.mark.parametrize("seed", range(6))
async def test_one_consumer_gets_each_message_once_through_kills_and_splits(
    brokers: Brokers, seed: int
) -> None:
    rng = brokers.rng
    client = brokers.client()
    consumer = await client.subscribe_queue(
        TOPIC, "q", receiver_queue_size=rng.choice([5, 1000]), redelivery=Backoff(0.02, 0.02)
    )
    producer = await client.create_producer(TOPIC)
    done: list[int] = []

    async def consume() -> None:
        while len(done) < 600:
            for message in await consumer.receive_many(20, timeout=60):
                if rng.random() < 0.05:
                    await consumer.negative_acknowledge(message)
                else:
                    done.append(int(message.data))
                    await consumer.acknowledge(message)

    consuming = asyncio.ensure_future(consume())
    async with brokers.trouble(changes=0.6, resets=0.2):
        for number in range(0, 600, 10):
            values = [b"%d" % n for n in range(number, number + 10)]
            await producer.enqueue_many(values, keys=[f"key-{n}" for n in range(10)])
            await asyncio.sleep(rng.uniform(0.0, 0.004))
    await consuming
    assert sorted(done) == list(range(600))
    await client.close()
    async with brokers.client() as other:
        again = await other.subscribe_queue(TOPIC, "q")
        assert await again.receive_many(10, timeout=2) == []


async def test_a_consumer_leaves_a_sealed_segment_that_is_acknowledged_to_its_end(brokers: Brokers) -> None:
    await publish(brokers, 20)
    await (await brokers.controller()).split(0)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", initial_position="earliest")
        await consumer.acknowledge(await drain(consumer))
        await consumer.flush_acks()
        await asyncio.sleep(1.0)
        assert sorted(sources_of(consumer)) == [1, 2]


@pytest.mark.brokers(segment_retention_s=0.0, auto_scale_interval_s=1.0)
async def test_a_backlog_in_a_sealed_segment_outlives_any_retention_time(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q")
        await publish(brokers, 20)
        await consumer.close()
    controller = await brokers.controller()
    await controller.split(0)
    await asyncio.sleep(100)
    assert 0 in controller.layout.segments
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q")
        messages = await drain(consumer)
        assert numbers(messages) == list(range(20))
        await consumer.acknowledge(messages)
        await consumer.flush_acks()
    await asyncio.sleep(100)
    assert 0 not in controller.layout.segments, "no subscription needs the segment any more"


async def test_after_a_seek_sealed_segments_are_read_again(brokers: Brokers) -> None:
    await publish(brokers, 20)
    controller = await brokers.controller()
    await controller.split(0)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", initial_position="earliest")
        await consumer.acknowledge(await drain(consumer))
        await consumer.flush_acks()
        await asyncio.sleep(1.0)
        assert sorted(sources_of(consumer)) == [1, 2]
        await controller.seek("q", 0)
        assert len(await drain(consumer)) == 20


async def test_many_segments_share_the_buffer(brokers: Brokers) -> None:
    await publish(brokers, 1)
    controller = await brokers.controller()
    await controller.split(0, [4096 * n for n in range(1, 16)])
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(
            TOPIC, "q", initial_position="earliest", receiver_queue_size=170
        )
        permits = {source.permits.size for source in sources_of(consumer).values()}
        assert permits == {16}
        async with brokers.client() as other:
            producer = await other.create_producer(TOPIC, batching=False)
            await producer.send_many([b"%d" % n for n in range(1, 500)], keys=[f"k{n}" for n in range(499)])
        await asyncio.sleep(1.0)
        assert sum(len(source.entries) for source in sources_of(consumer).values()) <= 17 * 16
        # Segments take turns: the first messages handed out come from many of them.
        first = await consumer.receive_many(17, timeout=1)
        assert len({message.id.segment for message in first}) > 10
        assert len(await drain(consumer)) == 500 - 17


@pytest.mark.brokers(segment_retention_s=0)
async def test_a_segment_goes_on_when_its_share_of_the_buffer_grows(brokers: Brokers) -> None:
    await publish(brokers, 1)
    controller = await brokers.controller()
    await controller.split(0, [4096 * n for n in range(1, 16)])
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", receiver_queue_size=170)
        first, *others = controller.layout.active
        await controller.merge([segment.id for segment in others])
        assert sources_of(consumer)[first.id].permits.size == 16
        await asyncio.sleep(1.0)
        await controller.upkeep.prune()
        await asyncio.sleep(0.1)
        assert sources_of(consumer)[first.id].permits.size == 85
        async with brokers.client() as other:
            producer = await other.create_producer(TOPIC, batching=False)
            await producer.send_many([b"%d" % n for n in range(800)], keys=[f"k{n}" for n in range(800)])
        assert len(await drain(consumer)) == 800


async def test_a_subscription_held_by_a_stream_is_refused_at_once(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await client.subscribe_stream(TOPIC, "s")
        with pytest.raises(ConsumerBusyError):
            await client.subscribe_queue(TOPIC, "s")


async def test_a_subscription_held_by_a_queue_is_refused_to_a_stream(
    brokers: Brokers,
) -> None:
    async with brokers.client() as client, brokers.client() as other:
        queue = await client.subscribe_queue(TOPIC, "s", initial_position="earliest")
        with pytest.raises(ConsumerBusyError, match="QUEUE consumers"):
            await other.subscribe_stream(TOPIC, "s")
        assert (await brokers.controller()).records["s"].type == "QUEUE"
        await queue.close()
        assert (await other.subscribe_stream(TOPIC, "s")).assignment


async def test_a_consumer_can_be_closed_twice_and_refuses_calls_afterwards(brokers: Brokers) -> None:
    await publish(brokers, 1)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", initial_position="earliest")
        (message,) = await drain(consumer)
        await consumer.close()
        await consumer.close()
        with pytest.raises(AlreadyClosedError):
            await consumer.acknowledge(message)
        with pytest.raises(AlreadyClosedError):
            await consumer.negative_acknowledge(message)


async def test_a_classic_topic_is_read_through_a_layout_of_its_partitions(brokers: Brokers) -> None:
    name = "persistent://public/default/classic"
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(name, "q")
        producer = await client.create_producer(name)
        await producer.send_many([b"%d" % n for n in range(10)])
        messages = await drain(consumer)
        await consumer.acknowledge(messages)
        assert numbers(messages) == list(range(10))
