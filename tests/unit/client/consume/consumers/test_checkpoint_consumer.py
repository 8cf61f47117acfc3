"""The checkpoint consumer against a real broker on a virtual clock: exactly once from any checkpoint."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from anabranch import AsyncCheckpointConsumer, Checkpoint, Message
from simulation.harness.client_insides import sources_of
from tests.harness.cluster import TOPIC, Brokers, Orders


async def drain(consumer: AsyncCheckpointConsumer[bytes], timeout: float = 1.0) -> list[Message[bytes]]:
    found: list[Message[bytes]] = []
    while messages := await consumer.receive_many(100, timeout=timeout):
        found += messages
    return found


async def test_a_topic_is_read_from_its_beginning_or_its_end(brokers: Brokers) -> None:
    await brokers.publish(5, 2)
    async with brokers.client() as client:
        from_start = await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
        from_end = await client.create_checkpoint_consumer("orders")
        assert from_end.topic == TOPIC
        await brokers.publish(5, 1, first=2)
        assert len(await drain(from_start)) == 15
        assert {message.value for message in await drain(from_end)} == {b"2"}


async def test_a_checkpoint_taken_before_anything_was_received_loses_nothing(brokers: Brokers) -> None:
    await brokers.publish(5, 2)
    controller = await brokers.controller()
    await controller.split(0)
    async with brokers.client() as client:
        consumer = await client.create_checkpoint_consumer(TOPIC)
        checkpoint = consumer.checkpoint()
        assert sorted(checkpoint.positions) == [0, 1, 2]
        await consumer.close()
        await brokers.publish(5, 1, first=2)
        restored = await client.create_checkpoint_consumer(TOPIC, start=checkpoint)
        assert {message.value for message in await drain(restored)} == {b"2"}


@pytest.mark.virtual_time(seed="client 0")
async def test_a_checkpoint_covers_exactly_the_messages_handed_out(brokers: Brokers) -> None:
    await brokers.publish(7, 30)
    async with brokers.client() as client:
        orders = Orders()
        checkpoint = Checkpoint.earliest()
        while True:
            consumer = await client.create_checkpoint_consumer(TOPIC, start=checkpoint)
            messages = await consumer.receive_many(brokers.rng.randrange(1, 40), timeout=1)
            if messages and brokers.rng.random() < 0.5:
                messages.append(await consumer.receive(timeout=1))
            orders.take(messages)
            checkpoint = Checkpoint.from_bytes(consumer.checkpoint().to_bytes())
            assert consumer.checkpoint() == checkpoint
            await consumer.close()
            assert consumer.checkpoint() == checkpoint
            if not messages:
                break
        orders.check(7, 30)


async def test_children_come_after_their_parents(brokers: Brokers) -> None:
    await brokers.publish(10, 3)
    controller = await brokers.controller()
    await controller.split(0)
    await brokers.publish(10, 3, first=3)
    await controller.merge([1, 2])
    await brokers.publish(10, 3, first=6)
    async with brokers.client() as client:
        for queue in (1, 10, 1000):
            consumer = await client.create_checkpoint_consumer(
                TOPIC, start=Checkpoint.earliest(), receiver_queue_size=queue
            )
            orders = Orders()
            orders.take(await drain(consumer))
            orders.check(10, 9)


async def test_a_checkpoint_from_before_a_split_reads_the_rest_of_the_parent_first(brokers: Brokers) -> None:
    await brokers.publish(10, 4)
    async with brokers.client() as client:
        consumer = await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
        orders = Orders()
        orders.take(await consumer.receive_many(13, timeout=1))
        checkpoint = consumer.checkpoint()
        await (await brokers.controller()).split(0)
        await brokers.publish(10, 4, first=4)
        restored = await client.create_checkpoint_consumer(TOPIC, start=checkpoint)
        orders.take(await drain(restored))
        orders.check(10, 8)


@pytest.mark.parametrize("seed", range(6))
async def test_restoring_again_and_again_gives_each_message_once_in_order(
    brokers: Brokers, seed: int
) -> None:
    rng = brokers.rng
    client = brokers.client()
    producer = await client.create_producer(TOPIC)
    orders = Orders()

    async def consume() -> None:
        checkpoint = Checkpoint.earliest()
        while orders.total < 800:
            consumer = await client.create_checkpoint_consumer(
                TOPIC, start=checkpoint, receiver_queue_size=rng.choice([3, 30, 1000])
            )
            for _ in range(rng.randrange(1, 15)):
                orders.take(await consumer.receive_many(rng.randrange(1, 50), timeout=0.2))
            checkpoint = consumer.checkpoint()
            await consumer.close()

    consuming = asyncio.ensure_future(consume())
    await brokers.publish_in_trouble(producer)
    await consuming
    orders.check(10, 80)
    await client.close()


async def test_reading_can_start_at_a_time(brokers: Brokers) -> None:
    await brokers.publish(5, 1)
    await (await brokers.controller()).split(0)
    await brokers.publish(5, 1, first=1)
    await asyncio.sleep(10.0)
    now = datetime.fromtimestamp(1_700_000_000 + brokers.loop.time(), UTC)
    await brokers.publish(5, 1, first=2)
    async with brokers.client() as client:
        start = Checkpoint.at_ms(int((now - timedelta(seconds=1)).timestamp() * 1000))
        consumer = await client.create_checkpoint_consumer(TOPIC, start=start)
        assert {message.value for message in await drain(consumer)} == {b"2"}


async def test_a_checkpoint_of_a_reader_that_started_at_a_time_keeps_the_time(brokers: Brokers) -> None:
    await brokers.publish(5, 10)
    await asyncio.sleep(10.0)
    now_ms = int(1000 * (1_700_000_000 + brokers.loop.time()))
    await brokers.publish(5, 1, first=10)
    async with brokers.client() as client:
        start = Checkpoint.at_ms(now_ms - 1000)
        consumer = await client.create_checkpoint_consumer(TOPIC, start=start, receiver_queue_size=1)
        early = Checkpoint.from_bytes(consumer.checkpoint().to_bytes())
        taken = [await consumer.receive(timeout=5) for _ in range(2)]
        later = Checkpoint.from_bytes(consumer.checkpoint().to_bytes())
        for checkpoint, expected in ((early, 5), (later, 5 - len(taken))):
            again = await client.create_checkpoint_consumer(TOPIC, start=checkpoint)
            assert [message.value for message in await drain(again)] == [b"10"] * expected


async def test_iteration_hands_out_and_ends_with_the_consumer(brokers: Brokers) -> None:
    await brokers.publish(1, 5)
    async with brokers.client() as client:
        async with await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest()) as consumer:
            values = []
            async for message in consumer:
                values.append(message.value)
                if len(values) == 3:
                    break
            assert values == [b"0", b"1", b"2"]
            checkpoint = consumer.checkpoint()
        rest = await client.create_checkpoint_consumer(TOPIC, start=checkpoint)
        assert [message.value for message in await drain(rest)] == [b"3", b"4"]


async def test_the_members_of_a_group_share_the_segments(brokers: Brokers) -> None:
    await brokers.publish(20, 2)
    await (await brokers.controller()).split(0)
    await brokers.publish(20, 2, first=2)
    start = Checkpoint.earliest()
    async with brokers.client() as one, brokers.client() as two:
        first = await one.create_checkpoint_consumer(TOPIC, start=start, group="g")
        second = await two.create_checkpoint_consumer(TOPIC, start=start, group="g")
        await asyncio.sleep(1.0)
        orders = Orders()
        for _ in range(3):
            for consumer in (first, second):
                orders.take(await drain(consumer))
        orders.check(20, 4)
        assert len(sources_of(first)) == len(sources_of(second)) == 1
        both = Checkpoint.merge([first.checkpoint(), second.checkpoint()])
        assert sorted(both.positions) == [0, 1, 2]
        await first.close()
        await second.close()
        await brokers.publish(20, 1, first=4)
        alone = await one.create_checkpoint_consumer(TOPIC, start=both, group="g")
        assert {message.value for message in await drain(alone)} == {b"4"}


@pytest.mark.parametrize("seed", range(5))
async def test_members_of_a_group_that_open_at_once_find_their_shares_at_its_end(
    brokers: Brokers, seed: int
) -> None:
    await brokers.publish(20, 1)
    controller = await brokers.controller()
    await controller.split(0, [0x2000 * number for number in range(1, 8)])
    clients = [brokers.client() for _ in range(6)]
    began = brokers.loop.time()
    members = await asyncio.gather(
        *(client.create_checkpoint_consumer(TOPIC, group="g") for client in clients)
    )
    assert brokers.loop.time() - began < 5
    await brokers.publish(20, 1, first=1)
    found = [message for member in members for message in await drain(member)]
    assert sorted(message.data for message in found) == [b"1"] * 20
    for client in clients:
        await client.close()


@pytest.mark.parametrize("seed", range(5))
async def test_a_member_gets_a_child_when_another_has_read_the_parent(brokers: Brokers) -> None:
    await brokers.publish(20, 2)
    controller = await brokers.controller()
    await controller.split(0)
    await brokers.publish(20, 2, first=2)
    await controller.merge([1, 2])
    await brokers.publish(20, 2, first=4)
    await controller.split(3)
    await brokers.publish(20, 2, first=6)
    start = Checkpoint.earliest()
    async with brokers.client() as one, brokers.client() as two:
        members = [
            await client.create_checkpoint_consumer(TOPIC, start=start, group="g", receiver_queue_size=5)
            for client in (one, two)
        ]
        orders = Orders()
        idle = 0
        while idle < 10:
            # One member receives at a time: its unread segments keep children from the other member.
            member = members[idle % 2 if idle else brokers.rng.randrange(2)]
            got = await member.receive_many(brokers.rng.randrange(1, 10), timeout=0.5)
            idle = 0 if got else idle + 1
            orders.take(got)
        orders.check(20, 8)
        waiting = (await controller.explain())["subscriptions"]["g"]["waiting"]  # type: ignore[index]
        assert waiting == {}


async def test_segments_of_a_member_that_leaves_are_read_again(brokers: Brokers) -> None:
    """The member kept its checkpoint, so the group does not know how far it had read."""

    await brokers.publish(5, 1)
    controller = await brokers.controller()
    start = Checkpoint.earliest()
    async with brokers.client() as client:
        first = await client.create_checkpoint_consumer(TOPIC, start=start, group="g")
        assert len(await drain(first)) == 5
        await controller.split(0)
        await brokers.publish(20, 1, first=1)
        assert len(await drain(first)) == 20
        second = await client.create_checkpoint_consumer(TOPIC, start=start, group="g")
        await asyncio.sleep(1.0)
        assert len(sources_of(second)) == 1
        await first.close()
        orders = Orders()
        orders.take(await drain(second))
        assert orders.total >= 25
        for key in range(5):
            assert orders.seen[f"key-{key}"][-2:] == [0, 1], "each key is in order the second time"


async def test_a_group_survives_the_loss_of_its_broker_without_reading_again(brokers: Brokers) -> None:
    await brokers.publish(10, 1)
    await (await brokers.controller()).split(0)
    await brokers.publish(10, 1, first=1)
    async with brokers.client() as client:
        members = [
            await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest(), group="g")
            for _ in range(2)
        ]
        orders = Orders()
        for _ in range(3):
            for member in members:
                orders.take(await drain(member))
        brokers.kill()
        await asyncio.sleep(0.1)
        await brokers.start()
        await brokers.publish(10, 1, first=2)
        for member in members:
            orders.take(await drain(member, timeout=5.0))
        orders.check(10, 3)
