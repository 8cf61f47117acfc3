"""The consumer of one log on a connection: it is known before the broker answers, and ends with a refusal."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.ends import ConsumerEnd
from anabranch.client.net.subscribing import begin_consumer
from anabranch.errors import ConsumerBusyError
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.unit.client.fakes import FakeConnection, FakePool, settle_down

CONSUMER = cast(ConsumerEnd, object())


async def begin(answer: Any) -> tuple[FakeConnection, asyncio.Task[pb.CommandSuccess]]:
    """Subscribe on a connection that answers like this; return when the subscription waits or has ended."""
    connection, pool = FakeConnection(lambda _: answer), FakePool(lambda _: answer)
    command = pb.CommandSubscribe(
        topic="t",
        subscription="s",
        subType=pb.CommandSubscribe.Shared,
        consumer_id=7,
        request_id=pool.next_id(),
    )
    call = begin_consumer(cast(ConnectionPool, pool), cast(BrokerConnection, connection), command, CONSUMER)
    task = asyncio.create_task(call)
    await settle_down()
    return connection, task


async def test_a_consumer_is_known_to_its_connection_before_the_broker_answers() -> None:
    answer: asyncio.Future[pb.CommandSuccess] = asyncio.get_running_loop().create_future()
    connection, task = await begin(answer)
    assert connection.consumers == {7: CONSUMER}, "entries may arrive right behind the answer"
    answer.set_result(pb.CommandSuccess(request_id=1))
    assert await task == pb.CommandSuccess(request_id=1)
    assert connection.consumers == {7: CONSUMER}
    assert [type(command) for command in connection.sent] == [pb.CommandSubscribe]


async def test_a_refused_consumer_ends_at_both_ends() -> None:
    connection, task = await begin(ConsumerBusyError("another one reads"))
    with pytest.raises(ConsumerBusyError):
        await task
    assert not connection.consumers
    (_, closed) = connection.sent
    assert isinstance(closed, pb.CommandCloseConsumer)
    assert closed.consumer_id == 7


async def test_a_cancelled_subscription_ends_at_both_ends() -> None:
    connection, task = await begin(asyncio.get_running_loop().create_future())
    task.cancel()
    await settle_down()
    assert task.cancelled()
    assert not connection.consumers
    assert isinstance(connection.sent[-1], pb.CommandCloseConsumer)
