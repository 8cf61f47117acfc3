"""Topics that rest while several brokers serve their clients: a topic that is used has a leader."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import weakref

import pytest

from anabranch import AsyncProducer
from anabranch.config.broker import BrokerConfig
from anabranch.model.names import TopicName
from tests.harness.admin import ORDERS, Admin
from tests.harness.cluster import Brokers

EAGER = dataclasses.replace(
    BrokerConfig().auto_scale, split_msg_rate_in_threshold=5, merge_msg_rate_in_threshold=1
)

QUIET_S = 400
"""Several looks of a leader."""

pytestmark = pytest.mark.brokers(count=2, lease_s=5.0, auto_scale=EAGER)


async def topic_at(brokers: Brokers, home: int) -> TopicName:
    """A new topic with this home store, and its segment in store 0."""
    for number in range(20):
        name = TopicName.parse(f"topic://public/default/t{number}")
        await brokers[0].controllers.create_topic(name)
        record = await brokers[0].records.load(name)
        if record.store == home:
            assert [segment.store for segment in record.segments.values()] == [0]
            return name
    raise AssertionError("no topic has this home")


def is_led(brokers: Brokers, name: TopicName) -> bool:
    return any(name in broker.controllers.layouts() for broker in brokers.living.values())


async def is_split_under_load(brokers: Brokers, name: TopicName, producer: AsyncProducer[bytes]) -> bool:
    for number in range(QUIET_S):
        await producer.send_many([b"x"] * 10, keys=[f"{number}-{key}" for key in range(10)])
        await asyncio.sleep(1)
    return len((await brokers[0].records.load(name)).segments) > 1


@pytest.mark.parametrize("home", [0, 1])
async def test_a_topic_whose_producer_is_connected_elsewhere_is_scaled(brokers: Brokers, home: int) -> None:
    name = await topic_at(brokers, home)
    async with brokers.client(1 - home) as client, await client.create_producer(str(name)) as producer:
        await producer.send(b"first")
        await asyncio.sleep(QUIET_S)
        assert is_led(brokers, name)
        assert await is_split_under_load(brokers, name, producer)


@pytest.mark.parametrize("home", [0, 1])
async def test_a_topic_that_rests_until_its_producer_sends_is_scaled(brokers: Brokers, home: int) -> None:
    name = await topic_at(brokers, home)
    async with brokers.client(1 - home) as client, await client.create_producer(str(name)) as producer:
        await asyncio.sleep(QUIET_S)
        assert not is_led(brokers, name), "the producer is not attached to a segment before its first message"
        assert await is_split_under_load(brokers, name, producer)


@pytest.mark.parametrize("home", [0, 1])
async def test_a_topic_rests_after_its_clients_and_scales_for_the_next(brokers: Brokers, home: int) -> None:
    name = await topic_at(brokers, home)
    async with brokers.client(1 - home) as client:
        async with await client.create_producer(str(name)) as producer:
            await producer.send(b"first")
        await asyncio.sleep(QUIET_S)
        assert not is_led(brokers, name)
        async with await client.create_producer(str(name)) as producer:
            assert await is_split_under_load(brokers, name, producer)


async def test_a_used_topic_is_led_after_a_takeover_of_its_home_store(brokers: Brokers) -> None:
    name = await topic_at(brokers, home=1)
    async with brokers.client(0) as client, await client.create_producer(str(name)) as producer:
        await producer.send(b"first")
        brokers.kill(1)
        await asyncio.sleep(QUIET_S)
        assert brokers[0].controllers.home(name) == 1
        assert is_led(brokers, name)
        assert await is_split_under_load(brokers, name, producer)


async def test_a_segment_that_is_attached_without_a_layout_has_a_leader(brokers: Brokers) -> None:
    name = await topic_at(brokers, home=1)
    await asyncio.sleep(QUIET_S)
    assert not is_led(brokers, name)
    client = await brokers.connect(0)
    await client.producer(f"segment://{name.namespace_name}/{name.local}/0000-ffff-0")
    await asyncio.sleep(QUIET_S)
    assert is_led(brokers, name)
    client.close()


@pytest.mark.parametrize("at", [0, 1])
async def test_a_subscription_is_created_through_any_broker_while_the_topic_rests(
    brokers: Brokers, at: int
) -> None:
    name = await topic_at(brokers, home=1)
    await asyncio.sleep(QUIET_S)
    assert not is_led(brokers, name)
    path = f"{ORDERS.replace('orders', name.local)}/subscriptions/s"
    assert (await Admin(brokers).ask("PUT", path, at=at)).status == 204
    assert list(await brokers[0].records.load_subscriptions(name)) == ["s"]
    async with brokers.client(1 - at) as client, await client.create_producer(str(name)) as producer:
        await producer.send(b"kept")
        await asyncio.sleep(QUIET_S)
    (log,) = (log for log in brokers[0].logs.served if log.name.topic == name)
    assert log.subscriptions["s"].backlog == 1


@pytest.mark.brokers(count=1, log_idle_s=2.0, auto_scale_interval_s=10_000.0)
async def test_a_topic_rests_soon_after_its_clients_are_gone_and_its_leader_is_freed(
    brokers: Brokers,
) -> None:
    name = await topic_at(brokers, home=0)
    async with brokers.client() as client, await client.create_producer(str(name)) as producer:
        await producer.send(b"first")
        await asyncio.sleep(100)
        assert is_led(brokers, name)
    gc.collect()
    gc.disable()
    try:
        leader = weakref.ref(await brokers[0].controllers.lead(name))
        await asyncio.sleep(10)
        assert not is_led(brokers, name)
        assert leader() is None, "no garbage collection is needed"
    finally:
        gc.enable()
