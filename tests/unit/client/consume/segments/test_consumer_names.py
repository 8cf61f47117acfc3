"""Consumers of one name: one reads, the others are refused, and a returning consumer finds its share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch import AsyncClient, Checkpoint
from anabranch.errors import ConsumerBusyError
from anabranch.model.names import TopicName
from simulation.harness.client_insides import pool_of, tasks_of
from simulation.world.transport import Mode
from tests.harness.cluster import TOPIC, Brokers, drain

KINDS = ["stream", "checkpoint"]


async def open_as_a(client: AsyncClient, kind: str = "stream") -> Any:
    if kind == "stream":
        return await client.subscribe_stream(TOPIC, "s", name="a", initial_position="earliest")
    return await client.create_checkpoint_consumer(TOPIC, group="s", name="a", start=Checkpoint.earliest())


def hang_up(consumer: Any) -> None:
    for connection in list(pool_of(consumer).connections.values()):
        connection.pump.abort()


async def die(brokers: Brokers, consumer: Any) -> None:
    """Break a consumer's connections without notifying the broker."""
    (link,) = brokers.network.links()
    brokers.network.set_mode(link, Mode.BLACK_HOLE)
    hang_up(consumer)
    await asyncio.sleep(0.01)
    brokers.network.set_mode(link, Mode.OPEN)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_second_consumer_of_a_name_is_refused_at_once_and_the_first_reads_on(
    brokers: Brokers, kind: str
) -> None:
    async with brokers.client() as one, brokers.client() as two:
        first = await open_as_a(one, kind)
        began_at = brokers.loop.time()
        with pytest.raises(ConsumerBusyError, match=r"a is connected already, from .+:\d+; close it"):
            await open_as_a(two, kind)
        assert brokers.loop.time() - began_at < 1
        await brokers.publish(4, 1)
        assert len(await first.receive_many(10, timeout=5)) == 4
        await first.close()
        assert await open_as_a(two, kind)


async def test_a_consumer_comes_back_before_the_broker_notices_its_dead_connection(
    brokers: Brokers,
) -> None:
    async with brokers.client() as client:
        consumer = await open_as_a(client, "checkpoint")
        known = brokers[0].connections
        (old,) = (connection for connection in known if connection.registrations)
        await die(brokers, consumer)
        await asyncio.sleep(1)
        registered = [connection for connection in known if connection.registrations]
        assert len(registered) == 2
        assert old in registered, "the leader did not have to find out whether the connection is dead"
        await (await brokers.controller()).split(0)
        await brokers.publish(4, 1)
        received = 0
        while messages := await consumer.receive_many(10, timeout=5):
            received += len(messages)
        assert received == 4


async def test_the_name_of_a_dead_consumer_is_free_when_its_host_resets_the_connection(
    brokers: Brokers,
) -> None:
    async with brokers.client() as one, brokers.client() as two:
        dead = await open_as_a(one)
        await tasks_of(dead).stop()
        await die(brokers, dead)
        began_at = brokers.loop.time()
        assert await open_as_a(two)
        assert brokers.loop.time() - began_at < 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_whose_name_was_taken_raises(brokers: Brokers, kind: str) -> None:
    await brokers.publish(4, 1)
    async with brokers.client() as one, brokers.client() as two:
        first = await open_as_a(one, kind)
        await first.receive_many(10, timeout=5)
        waiting = [asyncio.ensure_future(first.receive()) for _ in range(2)]
        members: Any = (await brokers.controller()).members
        members.lost(members.holds.all("s")[0].token)
        opening = asyncio.ensure_future(open_as_a(two, kind))
        await asyncio.sleep(0.5)
        hang_up(first)
        for receiving in waiting:
            with pytest.raises(ConsumerBusyError, match="a is connected already"):
                await asyncio.wait_for(receiving, 5)
        with pytest.raises(ConsumerBusyError):
            await first.receive_many(10, timeout=5)
        if kind == "stream":
            with pytest.raises(ConsumerBusyError):
                await first.flush_acks()
        second = await asyncio.wait_for(opening, 5)
        assert len(await second.receive_many(10, timeout=5)) == 4, "the messages come again"
        began_at = brokers.loop.time()
        await first.close()
        assert brokers.loop.time() - began_at < 1


@pytest.mark.brokers(count=2)
async def test_a_name_has_one_owner_whichever_broker_leads(brokers: Brokers) -> None:
    name = TopicName.parse(TOPIC)
    await brokers[0].controllers.create_topic(name, 2)
    leader = brokers.leader_of(name)
    one, two = (brokers.client(1 - leader, leader) for _ in range(2))
    async with one, two:
        first = await open_as_a(one)
        await brokers.stop(leader)
        with pytest.raises(ConsumerBusyError, match="a is connected already"):
            await open_as_a(two)
        assert brokers.leader_of(name) == 1 - leader
        producer = await two.create_producer(TOPIC)
        await producer.send_many([b"x"] * 8, keys=[f"k{n}" for n in range(8)])
        assert len(await drain(first, timeout=5)) == 8


@pytest.mark.parametrize("seed", range(6))
async def test_one_of_two_consumers_of_a_name_reads_through_all_faults(brokers: Brokers, seed: int) -> None:
    over = False
    holders: dict[str, None] = {}
    opened: dict[str, Any] = {}
    got: set[bytes] = set()

    async def want(client: AsyncClient, who: str) -> None:
        while not over:
            try:
                consumer = opened[who] = await open_as_a(client)
                holders[who] = None
                while not over:
                    messages = await consumer.receive_many(10, timeout=0.5)
                    got.update(message.value for message in messages)
                    if messages:
                        await consumer.acknowledge_cumulative(messages[-1])
                await consumer.close()
            except ConsumerBusyError:
                holders.pop(who, None)
                await asyncio.sleep(0.5)

    async with brokers.client() as one, brokers.client() as two, brokers.client() as other:
        producer = await other.create_producer(TOPIC)
        wanting = [asyncio.ensure_future(want(one, "one")), asyncio.ensure_future(want(two, "two"))]
        for number in range(12):
            await producer.send(b"%d" % number)
            await asyncio.sleep(brokers.rng.choice([0.001, 0.1, 1.0]))
            dice = brokers.rng.random()
            if dice < 0.3:
                name = brokers.rng.choice(["one", "two"])
                if name in opened:
                    hang_up(opened[name])
            elif dice < 0.5:
                brokers.reset_links()
            elif dice < 0.7:
                brokers.kill()
                await brokers.start()
        await asyncio.sleep(8)
        assert len(holders) == 1, "the other consumer was refused"
        assert len(got) == 12
        over = True
        await asyncio.gather(*wanting)
