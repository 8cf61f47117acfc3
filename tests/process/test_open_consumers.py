"""Two workers, open consumers: a name is taken, a subscription deleted, the leader killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch import AsyncClient
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.errors import ConsumerBusyError, SubscriptionNotFoundError
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess

from .conftest import MakeBroker

pytestmark = pytest.mark.timed

TOPIC = TopicName.parse("topic://public/default/orders")
SUBSCRIPTIONS = "/admin/v2/scalable/public/default/orders/subscriptions"
PATIENCE_S = 30.0


@pytest.fixture
def broker(make_broker: MakeBroker) -> Iterator[BrokerProcess]:
    with make_broker(workers=2, **{"auto_scale.enabled": "false"}) as process:
        with AdminClient(process.http_url) as admin:
            admin.create_topic(TOPIC, 4)
        yield process


def kill_leader(broker: BrokerProcess) -> None:
    with AdminClient(broker.http_url) as admin:
        home = plain(admin.topic_metadata(TOPIC))["store"]
    owner = broker.owner_of(home)
    assert owner is not None
    os.kill(owner[1], signal.SIGKILL)


async def open_as_a(client: AsyncClient) -> Any:
    return await client.subscribe_stream(str(TOPIC), "s", name="a", initial_position="earliest")


async def test_the_second_of_a_name_hears_so_at_once(broker: BrokerProcess) -> None:
    async with AsyncClient(broker.url) as one, AsyncClient(broker.url) as two:
        first = await open_as_a(one)
        began = time.monotonic()
        with pytest.raises(
            ConsumerBusyError, match=r"a is connected already, from 127\.0\.0\.1:\d+; close it"
        ):
            await open_as_a(two)
        assert time.monotonic() - began < 2
        await first.close()
        assert await open_as_a(two)


async def test_a_name_has_one_owner_when_its_leader_is_killed(broker: BrokerProcess) -> None:
    async with AsyncClient(broker.url) as one, AsyncClient(broker.url) as two:
        first = await open_as_a(one)
        receiving = asyncio.create_task(first.receive())
        await asyncio.to_thread(kill_leader, broker)
        stranger: Any = (await asyncio.gather(open_as_a(two), return_exceptions=True))[0]
        producer = await two.create_producer(str(TOPIC))
        await producer.send(b"one", key="k")
        try:
            message = await asyncio.wait_for(receiving, PATIENCE_S)
        except ConsumerBusyError:
            # It was too slow, and the other got the name.
            message = await asyncio.wait_for(stranger.receive(), PATIENCE_S)
        else:
            assert isinstance(stranger, ConsumerBusyError)
        assert message.value == b"one"


@pytest.mark.parametrize("killed", [False, True])
async def test_open_consumers_hear_that_their_subscription_was_deleted(
    broker: BrokerProcess, killed: bool
) -> None:
    async with AsyncClient(broker.url) as client:
        consumers: list[Any] = [
            await client.subscribe_stream(str(TOPIC), "stream"),
            await client.subscribe_queue(str(TOPIC), "queue"),
            await client.create_checkpoint_consumer(str(TOPIC), group="group"),
        ]
        receiving = [asyncio.create_task(consumer.receive()) for consumer in consumers]
        with AdminClient(broker.http_url) as admin:
            for name in ("stream", "queue", "group"):
                await asyncio.to_thread(
                    admin.call, "DELETE", f"{SUBSCRIPTIONS}/{name}", query={"force": "true"}
                )
            if killed:
                await asyncio.to_thread(kill_leader, broker)
            for waiting in receiving:
                with pytest.raises(SubscriptionNotFoundError, match="was deleted; open it again"):
                    await asyncio.wait_for(waiting, PATIENCE_S)
            for consumer in consumers:
                await asyncio.wait_for(consumer.close(), PATIENCE_S)
            stats = await asyncio.to_thread(admin.topic_stats, TOPIC)
            assert stats.subscriptions == {}, "no consumer was opened again"
