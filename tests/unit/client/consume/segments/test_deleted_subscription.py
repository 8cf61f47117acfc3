"""A subscription that is deleted while consumers have it open: they fail, and do not create it again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch import AsyncClient, Checkpoint
from anabranch.errors import SubscriptionNotFoundError
from anabranch.model.names import TopicName
from simulation.harness.client_insides import pool_of, sources_of
from tests.harness.cluster import TOPIC, Brokers

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


async def check_gone(brokers: Brokers) -> None:
    """Check that no consumer has created the subscription again."""
    controller = await brokers.controller()
    assert "s" not in controller.records
    for segment in controller.layout.segments.values():
        served = brokers[0].logs.get(NAME.segment_name(segment.range, segment.id))
        assert served is not None
        assert "s" not in served.subscriptions


@pytest.mark.parametrize("kind", KINDS)
async def test_open_consumers_fail_and_a_new_consumer_begins_anew(brokers: Brokers, kind: str) -> None:
    await brokers[0].controllers.create_topic(NAME, 2)
    await brokers.publish(len(KEYS), 1)
    async with brokers.client() as one, brokers.client() as two:
        consumers = [await open_consumer(one, kind, "a"), await open_consumer(two, kind, "b")]
        both = await asyncio.gather(*(take(consumer) for consumer in consumers))
        assert sum(map(len, both)) == len(KEYS)
        waiting = [asyncio.ensure_future(consumer.receive()) for consumer in consumers]
        controller = await brokers.controller()
        await controller.delete_subscription("s", force=True)
        for consumer, receiving in zip(consumers, waiting, strict=True):
            await check_told(consumer, kind, receiving)
        await asyncio.sleep(5)
        await check_gone(brokers)
        again = await open_consumer(one, kind, "a")
        assert len(await take(again)) == len(KEYS)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_that_finds_the_children_of_a_split_later_creates_no_subscription_there(
    brokers: Brokers, kind: str
) -> None:
    async with brokers.client() as client:
        consumer = await open_consumer(client, kind)
        controller = await brokers.controller()
        splitting = asyncio.ensure_future(controller.split(0))
        await asyncio.gather(splitting, controller.delete_subscription("s", force=True))
        await check_told(consumer, kind)
        await controller.split(1)
        await asyncio.sleep(5)
        await check_gone(brokers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after_s", [0.0, 0.0001, 0.001, 0.003, None])
async def test_the_next_leader_refuses_consumers_that_the_dead_leader_did_not_notify(
    brokers: Brokers, kind: str, after_s: float | None
) -> None:
    await brokers.publish(len(KEYS), 1)
    async with brokers.client() as client:
        consumer = await open_consumer(client, kind)
        await take(consumer)
        waiting = asyncio.ensure_future(consumer.receive())
        controller = await brokers.controller()
        deleting = brokers.processes[0].spawn(controller.delete_subscription("s", force=True))
        if after_s is None:
            await deleting
        else:
            await asyncio.sleep(after_s)
        brokers.kill()
        await asyncio.sleep(1)
        await brokers.start()
        await asyncio.sleep(5)
        if "s" in (await brokers.controller()).records:
            assert after_s is not None
            await brokers.publish(1, 1, first=1)
            assert (await asyncio.wait_for(waiting, 5)).value == b"1"
        else:
            await check_told(consumer, kind, waiting)
            await check_gone(brokers)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_disconnected_consumer_fails_when_it_is_back_unless_the_subscription_exists_again(
    brokers: Brokers, kind: str
) -> None:
    async with brokers.client() as one, brokers.client() as two:
        consumer = await open_consumer(one, kind, "a")
        for again in (True, False):
            brokers.hold_links()
            controller = await brokers.controller()
            await controller.delete_subscription("s", force=True)
            for connection in list(pool_of(consumer).connections.values()):
                connection.pump.abort()
            await asyncio.sleep(0)
            if again:
                start: Any = "CHECKPOINT" if kind == "group" else kind.upper()
                await controller.ensure_subscription("s", start, "earliest")
            brokers.open_links()
            if again:
                await asyncio.sleep(5)
                await brokers.publish(len(KEYS), 1)
                assert len(await take(consumer)) == len(KEYS)
            else:
                await check_told(consumer, kind)
        assert await open_consumer(two, kind, "b")


@pytest.mark.brokers(count=2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("leader_goes", [False, True])
async def test_consumers_connected_to_any_broker_fail(brokers: Brokers, kind: str, leader_goes: bool) -> None:
    await brokers[0].controllers.create_topic(NAME, 4)
    leader = brokers.leader_of(NAME)
    async with brokers.client(1 - leader, leader) as client:
        consumer = await open_consumer(client, kind)
        waiting = asyncio.ensure_future(consumer.receive())
        far = await brokers[1 - leader].controllers.controller(NAME)
        await far.delete_subscription("s", force=True)
        if leader_goes:
            await brokers.stop(leader)
        await check_told(consumer, kind, waiting)
        await asyncio.sleep(10)
        number = brokers.leader_of(NAME)
        assert "s" not in (await brokers[number].controllers.lead(NAME)).records


@pytest.mark.parametrize("after_ms", range(6))
@pytest.mark.brokers(bucket_budget=1)
async def test_a_member_that_just_got_its_first_segment_does_not_create_it_again(
    brokers: Brokers, after_ms: int
) -> None:
    async with brokers.client() as one, brokers.client() as two:
        reads = await open_consumer(one, "stream", "a")
        assigned = asyncio.Event()
        waits = await open_consumer(two, "stream", "b", on_assignment=lambda *_: assigned.set())
        assert waits.assignment == ()
        controller = await brokers.controller()
        leaving = asyncio.ensure_future(reads.close())
        await assigned.wait()
        await asyncio.sleep(after_ms / 1000)
        await controller.delete_subscription("s", force=True)
        await leaving
        await check_told(waits, "stream")
        await check_gone(brokers)


async def test_a_failed_queue_consumer_takes_no_message_from_new_consumers(
    brokers: Brokers,
) -> None:
    await brokers[0].controllers.create_topic(NAME, 2)
    async with brokers.client() as one, brokers.client() as two:
        told = await open_consumer(one, "queue", "a")
        controller = await brokers.controller()
        # One segment reports the deletion; the other may be disconnected until a new subscription exists.
        source = sources_of(told)[0]
        await source.close()
        source.give_up(SubscriptionNotFoundError("deleted"))
        fresh = await open_consumer(two, "queue", "b")
        await asyncio.sleep(1)
        await controller.split(0)
        await asyncio.sleep(1)
        await brokers.publish(len(KEYS), 3)
        assert len(await take(fresh)) == 3 * len(KEYS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
async def test_consumers_fail_through_lost_connections_kills_and_splits(
    brokers: Brokers, kind: str, seed: int
) -> None:
    async with brokers.client() as one, brokers.client() as two:
        consumers = [await open_consumer(one, kind, "a"), await open_consumer(two, kind, "b")]
        waiting = [asyncio.ensure_future(consumer.receive()) for consumer in consumers]
        await disturb(brokers)
        assert not any(receiving.done() for receiving in waiting)
        controller = await brokers.controller()
        brokers.processes[0].spawn(controller.delete_subscription("s", force=True))
        await asyncio.sleep(brokers.rng.uniform(0, 0.005))
        await disturb(brokers)
        controller = await brokers.controller()
        if "s" in controller.records:
            await controller.delete_subscription("s", force=True)
        await disturb(brokers)
        for consumer, receiving in zip(consumers, waiting, strict=True):
            await check_told(consumer, kind, receiving)
        await asyncio.sleep(5)
        await check_gone(brokers)


async def disturb(brokers: Brokers) -> None:
    for _ in range(brokers.rng.randrange(4)):
        match brokers.rng.randrange(3):
            case 0:
                brokers.reset_links()
            case 1:
                brokers.kill()
                await brokers.start()
            case _:
                await brokers.change_layout(brokers.rng)
        await asyncio.sleep(brokers.rng.choice([0, 0.001, 0.01, 0.3]))
