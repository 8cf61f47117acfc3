"""Places in segments: by time, by index, by id, and by the acknowledgements of a subscription."""

from __future__ import annotations

import asyncio

from anabranch import Batching, MessageId
from anabranch.client.bulk.segment_tails import SegmentTails
from anabranch.model.ids import LATEST
from tests.harness.cluster import TOPIC, Brokers


async def publish(brokers: Brokers, count: int) -> str:
    """Publish messages of one key in entries of up to 7; returns the name of the only segment."""
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_messages=7))
        await producer.send_many([b"%d" % n for n in range(count)], keys=["k"] * count)
        layout = await client.layout(TOPIC)
        return layout.segment_topic(layout.layout.segment(0))


def now_ms(brokers: Brokers) -> int:
    return brokers.clock.wall_ms()


async def test_a_time_names_the_first_message_published_then_or_later(brokers: Brokers) -> None:
    topic = await publish(brokers, 10)
    await asyncio.sleep(10)
    between = now_ms(brokers)
    await asyncio.sleep(10)
    await publish(brokers, 5)
    async with brokers.client() as client:
        tails = client.tails()
        assert (await tails.at_time(topic, 0)).index == 0
        assert (await tails.at_time(topic, between)).index == 10
        assert (await tails.at_time(topic, now_ms(brokers) + 1000)).index == 15


async def test_messages_published_before_and_stored_after_a_time_are_passed(brokers: Brokers) -> None:
    topic = await publish(brokers, 10)
    then = now_ms(brokers) + 5_000
    # The clock of this producer is ten seconds behind the broker's.
    await asyncio.sleep(10)
    async with brokers.client(clock=SlowClock(brokers)) as client:
        producer = await client.create_producer(TOPIC)
        await producer.send_many([b"slow"] * 3, keys=["k"] * 3)
    await publish(brokers, 2)
    async with brokers.client() as client:
        assert (await client.tails().at_time(topic, then)).index == 13


class SlowClock:
    """Ten seconds behind the clock of the brokers."""

    def __init__(self, brokers: Brokers) -> None:
        self._clock = brokers.clock

    def wall_ms(self) -> int:
        return self._clock.wall_ms() - 10_000


async def test_an_index_and_an_id_lead_to_each_other(brokers: Brokers) -> None:
    topic = await publish(brokers, 30)
    async with brokers.client() as client:
        tails = client.tails()
        for index in range(1, 31):
            before = await tails.at_index(topic, index - 1)
            id_ = MessageId(0, before.ledger, before.entry, before.batch_index, 7)
            assert before.index == index - 1
            assert (await tails.after_id(topic, id_)).index == index
        whole = await tails.at_index(topic, 8)
        assert whole.batch_index == 1
        assert (await tails.after_id(topic, MessageId(0, whole.ledger, whole.entry))).index == 14
        assert (await tails.at_index(topic, 99)).index == 30
        assert (await tails.after_id(topic, MessageId(0, *LATEST))).index == 30
        assert (await tails.after_id(topic, MessageId(0, -1, -1))).index == 0


async def acknowledged(tails: SegmentTails, topic: str, subscription: str = "s") -> int | None:
    found = await tails.unacknowledged(topic, subscription)
    return None if found is None else found.index


async def test_a_subscription_names_its_first_unacknowledged_message(brokers: Brokers) -> None:
    topic = await publish(brokers, 30)
    async with brokers.client() as client:
        tails = client.tails()
        assert await acknowledged(tails, topic) is None
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        assert await acknowledged(tails, topic) == 0
        for message in await consumer.receive_many(17):
            await consumer.acknowledge_cumulative(message)
        await consumer.flush_acks()
        assert await acknowledged(tails, topic) == 17
        assert await acknowledged(tails, topic, "another") is None
