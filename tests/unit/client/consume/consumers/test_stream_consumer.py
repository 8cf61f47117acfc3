"""The stream consumer against a real broker on a virtual clock: shares, order, hand-over, acks."""

from __future__ import annotations

import asyncio

import pytest

from anabranch import Message, MessageId
from anabranch.errors import (
    AlreadyClosedError,
    ConsumerBusyError,
    InvalidConfigurationError,
    ReceiveTimeoutError,
    TopicNotFoundError,
)
from simulation.harness.client_insides import sources_of
from tests.harness.cluster import TOPIC, Brokers, Orders, drain


async def test_messages_come_in_key_order_and_only_once(brokers: Brokers) -> None:
    await brokers.publish(10, 20)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream("orders", "s", initial_position="earliest")
        assert (consumer.topic, consumer.subscription) == (TOPIC, "s")
        assert consumer.assignment == ("segment://public/default/orders/0000-ffff-0",)
        orders = Orders()
        orders.take(await drain(consumer))
        orders.check(10, 20)
        await consumer.close()
        again = await client.subscribe_stream(TOPIC, "s")
        assert await again.receive_many(10, timeout=1) == []


async def test_a_new_subscription_starts_at_the_end_by_default(brokers: Brokers) -> None:
    await brokers.publish(5, 1)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s")
        await brokers.publish(5, 1, first=1)
        assert {message.value for message in await drain(consumer)} == {b"1"}


async def test_children_open_when_their_parent_is_acknowledged(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        await brokers.publish(8, 1)
        await (await brokers.controller()).split(0)
        await brokers.publish(8, 1, first=1)
        parents: list[Message[bytes]] = []
        while len(parents) < 8:
            parents += await consumer.receive_many(100, timeout=1)
        assert {message.value for message in parents} == {b"0"}
        assert await consumer.receive_many(1, timeout=1) == [], "the parent is not acknowledged yet"
        await consumer.acknowledge_cumulative(parents[-1])
        began = brokers.loop.time()
        first = await consumer.receive(timeout=5)
        assert first.value == b"1"
        assert brokers.loop.time() - began < 0.05
        rest = await drain(consumer)
        assert len(rest) == 7


async def test_consumers_of_one_subscription_share_the_segments(brokers: Brokers) -> None:
    await brokers.publish(1, 1)
    controller = await brokers.controller()
    await controller.split(0)
    async with brokers.client() as one, brokers.client() as two:
        changes: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        first = await one.subscribe_stream(
            TOPIC,
            "s",
            initial_position="earliest",
            on_assignment=lambda added, removed: changes.append((added, removed)),
        )
        await drain(first, 0.2)
        assert len(first.assignment) >= 2
        second = await two.subscribe_stream(TOPIC, "s", initial_position="earliest")
        await asyncio.sleep(1.0)
        active = {segment.id for segment in controller.layout.active}
        shares = [
            {id_ for id_, source in sources_of(consumer).items() if not source.released} & active
            for consumer in (first, second)
        ]
        assert shares[0] | shares[1] == active
        assert not shares[0] & shares[1]
        assert changes[0][0]
        assert any(removed for _, removed in changes)
        await brokers.publish(20, 5, first=1)
        orders = Orders()
        for consumer in (first, second):
            orders.take(await drain(consumer))
        assert orders.total == 100
        for numbers in orders.seen.values():
            assert numbers == [1, 2, 3, 4, 5]


async def test_more_consumers_than_segments_share_one_by_buckets(brokers: Brokers) -> None:
    await brokers.publish(1, 1)
    clients = [brokers.client() for _ in range(3)]
    consumers = [await client.subscribe_stream(TOPIC, "s", initial_position="earliest") for client in clients]
    await asyncio.sleep(1.0)
    for consumer in consumers:
        await drain(consumer, 0.2)
    await brokers.publish(60, 3, first=1)
    orders = Orders()
    counts = []
    for consumer in consumers:
        messages = await drain(consumer)
        counts.append(len(messages))
        orders.take(messages)
    assert sum(counts) == 180
    assert min(counts) > 0
    for numbers in orders.seen.values():
        assert numbers == [1, 2, 3]
    for client in clients:
        await client.close()


async def test_a_segment_is_handed_over_only_after_its_messages_are_acknowledged(brokers: Brokers) -> None:
    await brokers.publish(20, 1)
    await (await brokers.controller()).split(0)
    async with brokers.client() as one, brokers.client() as two:
        first = await one.subscribe_stream(TOPIC, "s", initial_position="earliest")
        await drain(first, 0.2)
        await brokers.publish(20, 1, first=1)
        held: list[Message[bytes]] = []
        while len(held) < 20:
            held += await first.receive_many(100, timeout=1)
        began = brokers.loop.time()
        other = await two.subscribe_stream(TOPIC, "s", initial_position="earliest")
        assert brokers.loop.time() - began < 0.5, "opening does not wait for the first consumer"
        await brokers.publish(20, 1, first=2)
        await asyncio.sleep(2.0)
        assert not other.assignment, "the first consumer still works on the segment"
        (awaited,) = other.awaited
        assert await other.receive_many(1, timeout=1) == []
        await first.acknowledge_cumulative(held[-1])
        await asyncio.sleep(2.0)
        assert (other.assignment, other.awaited) == ((awaited,), ())
        orders = Orders()
        orders.take(held)
        for consumer in (first, other):
            orders.take(await drain(consumer))
        for numbers in orders.seen.values():
            assert numbers == [1, 2]


async def test_closing_gives_the_share_to_the_others_at_once(brokers: Brokers) -> None:
    await brokers.publish(1, 1)
    await (await brokers.controller()).split(0)
    async with brokers.client() as client:
        first = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        await drain(first, 0.2)
        second = await client.subscribe_stream(TOPIC, "s")
        await asyncio.sleep(0.5)
        assert len(second.assignment) == 1
        await first.close()
        await asyncio.sleep(0.5)
        assert len(second.assignment) >= 2


async def test_a_lost_connection_repeats_nothing_that_was_handed_out(brokers: Brokers) -> None:
    await brokers.publish(5, 40)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(
            TOPIC, "s", initial_position="earliest", receiver_queue_size=20
        )
        orders = Orders()
        last: Message[bytes] | None = None
        while orders.total < 200:
            messages = await consumer.receive_many(brokers.rng.randrange(1, 20), timeout=5)
            assert messages, f"only {orders.total} came"
            orders.take(messages)
            if last is not None and brokers.rng.random() < 0.5:
                await consumer.acknowledge_cumulative(last)
            last = messages[-1]
            if brokers.rng.random() < 0.3:
                brokers.reset_links()
        orders.check(5, 40)
        assert last is not None
        await consumer.acknowledge_cumulative(last)
        await consumer.close()
        again = await client.subscribe_stream(TOPIC, "s")
        assert await again.receive_many(10, timeout=1) == []


async def test_a_consumer_given_up_while_it_registers_keeps_no_share(brokers: Brokers) -> None:
    await brokers.publish(4, 1)
    controller = await brokers.controller()
    async with brokers.client() as one, brokers.client() as two:
        await one.subscribe_stream(TOPIC, "another")
        busy = asyncio.ensure_future(controller.changes.run(lambda: asyncio.sleep(5)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await one.subscribe_stream(TOPIC, "s", initial_position="earliest")
        await busy
        await asyncio.sleep(1)
        assert not controller.records["s"].consumers
        consumer = await two.subscribe_stream(TOPIC, "s")
        assert len(await drain(consumer)) == 4


async def test_a_segment_given_up_after_a_restart_is_attached_again_as_assigned(brokers: Brokers) -> None:
    """A restart during the hand-over lets the second consumer attach first; then both share the segment."""

    await brokers.publish(8, 1)
    async with brokers.client() as one, brokers.client() as two:
        first = await one.subscribe_stream(TOPIC, "s", initial_position="earliest", name="a")
        held = await first.receive_many(100, timeout=1)
        second = await two.subscribe_stream(TOPIC, "s", name="b")
        await asyncio.sleep(1.0)
        assert not second.assignment, "the first consumer still holds messages"
        (source,) = sources_of(first).values()
        assert source.released
        brokers.kill()
        await brokers.start()
        # The broker answers so when the second consumer was faster.
        source.give_up(ConsumerBusyError("in use"))
        (again,) = sources_of(first).values()
        assert again.attachment.bucket_ranges, "the leader does not push the assignment by buckets again"
        await first.acknowledge_cumulative(held[-1])
        await asyncio.sleep(1.0)
        assert len(first.assignment) == 1, "the member reads its share"


@pytest.mark.parametrize("seed", range(8))
async def test_one_consumer_gets_each_message_once_in_order_through_kills_and_splits(
    brokers: Brokers, seed: int
) -> None:
    rng = brokers.rng
    client = brokers.client()
    consumer = await client.subscribe_stream(
        TOPIC, "s", initial_position="earliest", receiver_queue_size=rng.choice([5, 50, 1000])
    )
    producer = await client.create_producer(TOPIC)
    orders = Orders()

    async def consume() -> None:
        while orders.total < 10 * 80:
            messages = await consumer.receive_many(rng.randrange(1, 40), timeout=60)
            assert messages, f"only {orders.total} came"
            orders.take(messages)
            await consumer.acknowledge_cumulative(messages[-1])

    consuming = asyncio.ensure_future(consume())
    await brokers.publish_in_trouble(producer)
    await consuming
    orders.check(10, 80)
    await client.close()


async def test_a_receive_waits_no_longer_than_its_timeout(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s")
        began = brokers.loop.time()
        with pytest.raises(ReceiveTimeoutError):
            await consumer.receive(timeout=2)
        assert 1.99 < brokers.loop.time() - began < 2.01
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=0)
        assert await consumer.receive_many(5, timeout=0) == []
        with pytest.raises(InvalidConfigurationError):
            await consumer.receive_many(0)


async def test_a_cancelled_receive_loses_no_message(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s")
        waiting = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
        await asyncio.sleep(0.01)
        publishing = asyncio.ensure_future(brokers.publish(1, 2))
        for _ in range(40):
            await asyncio.sleep(0.0005)
            if brokers.rng.random() < 0.3 and not (victim := brokers.rng.choice(waiting)).done():
                waiting.remove(victim)
                victim.cancel()
                waiting.append(asyncio.ensure_future(consumer.receive()))
        await publishing
        got = [await task for task in list(waiting) if task.done() and not task.cancelled()]
        while len(got) < 2:
            done, _ = await asyncio.wait(
                [task for task in waiting if not task.done()], return_when=asyncio.FIRST_COMPLETED
            )
            got += [task.result() for task in done]
        assert sorted(message.data for message in got) == [b"0", b"1"]
        for task in waiting:
            task.cancel()


async def test_closing_ends_waiting_receives_and_iterations(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s")

        async def iterate() -> int:
            return sum([1 async for _ in consumer])

        iterating = asyncio.ensure_future(iterate())
        receiving = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0.1)
        await brokers.publish(1, 1)
        await asyncio.sleep(0.1)
        await consumer.close()
        await consumer.close()
        assert await iterating == 1
        with pytest.raises(AlreadyClosedError):
            await receiving
        for call in (consumer.receive(), consumer.receive_many(1)):
            with pytest.raises(AlreadyClosedError):
                await call
        with pytest.raises(AlreadyClosedError):
            await consumer.acknowledge_cumulative(MessageId.earliest())


@pytest.mark.brokers(auto_create_topics=False)
async def test_an_unknown_topic_that_must_not_be_created_is_not_found(brokers: Brokers) -> None:
    async with brokers.client() as client:
        with pytest.raises(TopicNotFoundError):
            await client.subscribe_stream(TOPIC, "s")
        with pytest.raises(TopicNotFoundError):
            await client.create_producer(TOPIC)


async def test_flow_control_bounds_the_buffer_of_a_slow_application(brokers: Brokers) -> None:
    await brokers.publish(50, 20)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(
            TOPIC, "s", initial_position="earliest", receiver_queue_size=30
        )
        await asyncio.sleep(5.0)
        (source,) = sources_of(consumer).values()
        # Entries are never split, so the last one may exceed the permits.
        assert sum(entry.count for entry in source.entries) < 30 + 50
        assert len(await drain(consumer)) == 1000
