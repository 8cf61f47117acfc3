"""A stream consumer that is refused, evicted, rewound, or whose topic is created again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.errors import ConsumerBusyError, PersistenceError, TopicNotFoundError
from anabranch.model.names import TopicName
from simulation.harness.client_insides import sources_of
from tests.harness.cluster import TOPIC, Brokers, Orders, drain

FIRST = TopicName.parse("segment://public/default/orders/0000-ffff-0")


def served(brokers: Brokers, segment: TopicName = FIRST) -> Subscription:
    found = brokers[0].logs.get(segment)
    assert found is not None
    return found.subscriptions["s"]


async def forget(brokers: Brokers, name: str) -> None:
    """Let the leader believe that a consumer's connection is lost until its grace time ends."""
    members: Any = (await brokers.controller()).members
    members.lost(members.holds.named("s", name).token)
    await asyncio.sleep(61)


async def test_a_refused_acknowledgement_is_sent_again(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await brokers.publish(1, 10)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        messages = await consumer.receive_many(4, timeout=5)
        cursor = served(brokers).cursor
        flush, refused = cursor.flush, 0

        async def failing() -> None:
            nonlocal refused
            if refused < 3:
                refused += 1
                raise PersistenceError("not on disk")
            await flush()

        monkeypatch.setattr(type(cursor), "flush", lambda _, **__: failing())
        await consumer.acknowledge_cumulative(messages[-1])
        await consumer.flush_acks()
        assert refused == 3
        assert cursor.acks.mark > 0
        rest = await drain(consumer)
        assert [message.value for message in rest] == [b"%d" % number for number in range(4, 10)]


async def test_an_evicted_consumer_gets_an_error_for_its_acknowledgements(brokers: Brokers) -> None:
    await brokers.publish(1, 10)
    async with brokers.client() as one, brokers.client() as two:
        stale = await one.subscribe_stream(TOPIC, "s", initial_position="earliest", name="a")
        messages = await stale.receive_many(10, timeout=5)
        await forget(brokers, "a")
        other = await two.subscribe_stream(TOPIC, "s", name="b")
        assert len(await drain(other)) == 10, "the other consumer gets all messages again"
        await brokers.publish(1, 1, first=10)
        assert await stale.receive_many(10, timeout=5) == []
        await stale.acknowledge_cumulative(messages[-1])
        with pytest.raises(ConsumerBusyError, match="not confirmed"):
            await stale.flush_acks()
        assert [message.value for message in await drain(other)] == [b"10"]


async def test_a_consumer_that_was_evicted_reads_again_once_it_is_registered_again(brokers: Brokers) -> None:
    await brokers.publish(8, 1)
    async with brokers.client() as one:
        consumer = await one.subscribe_stream(TOPIC, "s", initial_position="earliest", name="a")
        await drain(consumer)
        await forget(brokers, "a")
        brokers.reset_links()
        await brokers.publish(8, 1, first=1)
        assert len(await drain(consumer, timeout=5)) == 8


async def test_a_consumer_follows_its_topic_through_deletion_and_creation(brokers: Brokers) -> None:
    await brokers.publish(4, 3)
    await (await brokers.controller()).split(0)
    controllers = brokers[0].controllers
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        await drain(consumer)
        for generation in (1, 2):
            await (await brokers.controller()).delete(force=True)
            await asyncio.sleep(3)
            assert consumer.assignment == ()
            with pytest.raises(TopicNotFoundError):
                await brokers.controller()
            await controllers.create_topic(TopicName.parse(TOPIC), 2)
            await brokers.publish(4, 1, first=10 * generation)
            orders = Orders()
            orders.take(await drain(consumer, timeout=5))
            assert orders.seen == {f"key-{key}": [10 * generation] for key in range(4)}


async def test_after_a_seek_an_id_covers_no_message_after_its_own(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(TopicName.parse(TOPIC), 2)
    await brokers.publish(8, 1)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        assert len(await drain(consumer)) == 8
        await (await brokers.controller()).seek("s", 0)
        await asyncio.sleep(1)
        first, *later = await consumer.receive_many(8, timeout=5)
        assert len(later) == 7
        await consumer.acknowledge_cumulative(first.id)
        await consumer.close()
        heir = await client.subscribe_stream(TOPIC, "s")
        assert len(await drain(heir)) == 7


async def test_a_seek_ends_the_wait_of_a_hand_over(brokers: Brokers) -> None:
    await brokers.publish(8, 1)
    controller = await brokers.controller()
    async with brokers.client() as one, brokers.client() as two:
        first = await one.subscribe_stream(TOPIC, "s", initial_position="earliest", name="a")
        assert len(await first.receive_many(8, timeout=5)) == 8
        second = await two.subscribe_stream(TOPIC, "s", name="b")
        await asyncio.sleep(0.5)
        assert not second.assignment, "the first consumer holds messages"
        await controller.seek("s", 0)
        await asyncio.sleep(3)
        assert second.assignment
        orders = Orders()
        for consumer in (first, second):
            orders.take(await drain(consumer))
        orders.check(8, 1)


async def test_a_closed_subscription_ends_the_wait_of_a_hand_over(
    brokers: Brokers,
) -> None:
    await brokers.publish(8, 1)
    async with brokers.client() as one, brokers.client() as two:
        first = await one.subscribe_stream(TOPIC, "s", initial_position="earliest", name="a")
        assert len(await first.receive_many(8, timeout=5)) == 8
        second = asyncio.ensure_future(two.subscribe_stream(TOPIC, "s", name="b"))
        await asyncio.sleep(0.5)
        (source,) = sources_of(first).values()
        assert source.released
        brokers.hold_links()
        source.closed_by_broker()
        await asyncio.sleep(0.5)
        assert source not in sources_of(first).values()
        brokers.open_links()
        brokers.reset_links()
        await second


@pytest.mark.parametrize("moved", [False, True])
async def test_a_consumer_that_is_moved_keeps_the_messages_it_holds(brokers: Brokers, moved: bool) -> None:
    await brokers.publish(1, 10)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        held = await consumer.receive_many(4, timeout=5)
        served(brokers).close_consumers(moved=moved)
        await consumer.acknowledge_cumulative(held[1])
        await asyncio.sleep(1)
        if moved:
            await consumer.flush_acks()
        else:
            with pytest.raises(ConsumerBusyError, match="not confirmed"):
                await consumer.flush_acks()
        rest = [int(message.data) for message in await drain(consumer)]
        assert rest == list(range(4 if moved else 0, 10))


async def test_each_subscribe_carries_the_generation(brokers: Brokers) -> None:
    await brokers.publish(8, 1)
    async with brokers.client() as one, brokers.client() as two:
        first = await one.subscribe_stream(TOPIC, "s", initial_position="earliest", name="a")
        await drain(first)
        second = await two.subscribe_stream(TOPIC, "s", name="b")
        await asyncio.sleep(0.5)
        record = (await brokers.controller()).records["s"]
        for name, consumer in (("a", first), ("b", second)):
            (source,) = sources_of(consumer).values()
            assert source.attachment.generation == record.consumers[name].generation
        attached = {c.options.member: c.options.generation for c in served(brokers).consumers}
        assert attached == {name: member.generation for name, member in record.consumers.items()}
