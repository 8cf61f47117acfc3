"""A subscription that is deleted while consumers have it open: they fail, and do not create it again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch import AsyncClient, Checkpoint
from anabranch.errors import SubscriptionNotFoundError
from anabranch.model.names import TopicName
from tests.harness.cluster import TOPIC, World

NAME = TopicName.parse(TOPIC)
KINDS = ["stream", "queue", "group"]
KEYS = [f"key-{n}" for n in range(8)]


async def open_consumer(client: AsyncClient, kind: str, name: str = "a", **options: Any) -> Any:
    if kind == "stream":
        return await client.subscribe_stream(TOPIC, "s", name=name, initial_position="earliest", **options)
    if kind == "queue":
        return await client.subscribe_queue(TOPIC, "s", name=name, initial_position="earliest", **options)
    return await client.create_checkpoint_consumer(TOPIC, group="s", name=name, start=Checkpoint.earliest())


async def take(consumer: Any) -> list[bytes]:
    found: list[bytes] = []
    while got := await consumer.receive_many(100, timeout=5):
        found += [message.value for message in got]
    return found


async def check_told(consumer: Any, kind: str, *waiting: asyncio.Future[Any]) -> None:
    """Check that every waiting and every later receive raises."""
    for receiving in (*waiting, consumer.receive(), consumer.receive_many(10)):
        with pytest.raises(
            SubscriptionNotFoundError, match=r"subscription s of .+ was deleted; open it again"
        ):
            await asyncio.wait_for(receiving, 10)
    if kind != "group":
        with pytest.raises(SubscriptionNotFoundError):
            await asyncio.wait_for(consumer.flush_acks(), 10)
    await asyncio.wait_for(consumer.close(), 1)


async def check_gone(world: World) -> None:
    """Check that no consumer has created the subscription again."""
    controller = await world.controller()
    assert "s" not in controller.subscriptions()
    for segment in controller.layout.segments.values():
        served = world.broker.logs.get(NAME.segment_name(segment.range, segment.id))
        assert served is not None
        assert "s" not in served.subscriptions


@pytest.mark.parametrize("kind", KINDS)
async def test_open_consumers_fail_and_a_new_consumer_begins_anew(world: World, kind: str) -> None:
    await world.broker.controllers.create_topic(NAME, 2)
    await world.publish(len(KEYS), 1)
    async with world.client() as one, world.client() as two:
        consumers = [await open_consumer(one, kind, "a"), await open_consumer(two, kind, "b")]
        both = await asyncio.gather(*(take(consumer) for consumer in consumers))
        assert sum(map(len, both)) == len(KEYS)
        waiting = [asyncio.ensure_future(consumer.receive()) for consumer in consumers]
        controller = await world.controller()
        await controller.delete_subscription("s", force=True)
        for consumer, receiving in zip(consumers, waiting, strict=True):
            await check_told(consumer, kind, receiving)
        await asyncio.sleep(5)
        await check_gone(world)
        again = await open_consumer(one, kind, "a")
        assert len(await take(again)) == len(KEYS)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_that_finds_the_children_of_a_split_later_creates_no_subscription_there(
    world: World, kind: str
) -> None:
    async with world.client() as client:
        consumer = await open_consumer(client, kind)
        controller = await world.controller()
        splitting = asyncio.ensure_future(controller.split(0))
        await asyncio.gather(splitting, controller.delete_subscription("s", force=True))
        await check_told(consumer, kind)
        await controller.split(1)
        await asyncio.sleep(5)
        await check_gone(world)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after_s", [0.0, 0.0001, 0.001, 0.003, None])
async def test_the_next_leader_refuses_consumers_that_the_dead_leader_did_not_notify(
    world: World, kind: str, after_s: float | None
) -> None:
    await world.publish(len(KEYS), 1)
    async with world.client() as client:
        consumer = await open_consumer(client, kind)
        await take(consumer)
        waiting = asyncio.ensure_future(consumer.receive())
        controller = await world.controller()
        deleting = world.process.spawn(controller.delete_subscription("s", force=True))
        if after_s is None:
            await deleting
        else:
            await asyncio.sleep(after_s)
        world.kill()
        await asyncio.sleep(1)
        await world.start()
        await asyncio.sleep(5)
        if "s" in (await world.controller()).subscriptions():
            assert after_s is not None
            await world.publish(1, 1, first=1)
            assert (await asyncio.wait_for(waiting, 5)).value == b"1"
        else:
            await check_told(consumer, kind, waiting)
            await check_gone(world)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_disconnected_consumer_fails_when_it_is_back_unless_the_subscription_exists_again(
    world: World, kind: str
) -> None:
    async with world.client() as one, world.client() as two:
        consumer = await open_consumer(one, kind, "a")
        for again in (True, False):
            world.hold_links()
            controller = await world.controller()
            await controller.delete_subscription("s", force=True)
            for connection in list(consumer.pool.connections.values()):
                connection.pump.abort()
            await asyncio.sleep(0)
            if again:
                start: Any = "CHECKPOINT" if kind == "group" else kind.upper()
                await controller.ensure_subscription("s", start, "earliest")
            world.open_links()
            if again:
                await asyncio.sleep(5)
                await world.publish(len(KEYS), 1)
                assert len(await take(consumer)) == len(KEYS)
            else:
                await check_told(consumer, kind)
        assert await open_consumer(two, kind, "b")


@pytest.mark.world(count=2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("leader_goes", [False, True])
async def test_consumers_connected_to_any_broker_fail(world: World, kind: str, leader_goes: bool) -> None:
    await world[0].controllers.create_topic(NAME, 4)
    leader = world.leader_of(NAME)
    async with world.client(1 - leader, leader) as client:
        consumer = await open_consumer(client, kind)
        waiting = asyncio.ensure_future(consumer.receive())
        far = await world[1 - leader].controllers.controller(NAME)
        await far.delete_subscription("s", force=True)
        if leader_goes:
            await world.stop(leader)
        await check_told(consumer, kind, waiting)
        await asyncio.sleep(10)
        number = world.leader_of(NAME)
        assert "s" not in (await world[number].controllers.lead(NAME)).subscriptions()


@pytest.mark.parametrize("after_ms", range(6))
@pytest.mark.world(bucket_budget=1)
async def test_a_member_that_just_got_its_first_segment_does_not_create_it_again(
    world: World, after_ms: int
) -> None:
    async with world.client() as one, world.client() as two:
        reads = await open_consumer(one, "stream", "a")
        assigned = asyncio.Event()
        waits = await open_consumer(two, "stream", "b", on_assignment=lambda *_: assigned.set())
        assert waits.assignment == ()
        controller = await world.controller()
        leaving = asyncio.ensure_future(reads.close())
        await assigned.wait()
        await asyncio.sleep(after_ms / 1000)
        await controller.delete_subscription("s", force=True)
        await leaving
        await check_told(waits, "stream")
        await check_gone(world)


async def test_a_failed_queue_consumer_takes_no_message_from_new_consumers(
    world: World,
) -> None:
    await world.broker.controllers.create_topic(NAME, 2)
    async with world.client() as one, world.client() as two:
        told = await open_consumer(one, "queue", "a")
        controller = await world.controller()
        # One segment reports the deletion; the other may be disconnected until a new subscription exists.
        source = told.sources[0]
        await source.close()
        told.gave_up(source, SubscriptionNotFoundError("deleted"))
        fresh = await open_consumer(two, "queue", "b")
        await asyncio.sleep(1)
        await controller.split(0)
        await asyncio.sleep(1)
        await world.publish(len(KEYS), 3)
        assert len(await take(fresh)) == 3 * len(KEYS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
async def test_consumers_fail_through_lost_connections_kills_and_splits(
    world: World, kind: str, seed: int
) -> None:
    async with world.client() as one, world.client() as two:
        consumers = [await open_consumer(one, kind, "a"), await open_consumer(two, kind, "b")]
        waiting = [asyncio.ensure_future(consumer.receive()) for consumer in consumers]
        await disturb(world)
        assert not any(receiving.done() for receiving in waiting)
        controller = await world.controller()
        world.process.spawn(controller.delete_subscription("s", force=True))
        await asyncio.sleep(world.rng.uniform(0, 0.005))
        await disturb(world)
        controller = await world.controller()
        if "s" in controller.subscriptions():
            await controller.delete_subscription("s", force=True)
        await disturb(world)
        for consumer, receiving in zip(consumers, waiting, strict=True):
            await check_told(consumer, kind, receiving)
        await asyncio.sleep(5)
        await check_gone(world)


async def disturb(world: World) -> None:
    for _ in range(world.rng.randrange(4)):
        match world.rng.randrange(3):
            case 0:
                world.reset_links()
            case 1:
                world.kill()
                await world.start()
            case _:
                await world.change_layout(world.rng)
        await asyncio.sleep(world.rng.choice([0, 0.001, 0.01, 0.3]))
