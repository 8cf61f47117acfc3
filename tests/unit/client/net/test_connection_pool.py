"""The connection pool: connections are shared, looked up and lost."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.client.net.connection import address_of
from anabranch.client.net.connection_pool import ConnectionPool, PoolTimes
from anabranch.errors import (
    AlreadyClosedError,
    ConnectError,
    InvalidServiceUrlError,
    NotConnectedError,
    OperationTimeoutError,
)
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.process import SimProcess
from tests.harness.cluster import HOST, PORT, TOPIC, Brokers


def pool(brokers: Brokers, *hosts: tuple[str, int]) -> ConnectionPool:
    times = PoolTimes(operation_s=5.0, connect_s=2.0)
    return ConnectionPool(hosts or ((HOST, PORT),), times, rng=brokers.rng)


async def test_all_callers_share_one_connection(brokers: Brokers) -> None:
    connections = pool(brokers)
    found = await asyncio.gather(*(connections.any_connection() for _ in range(5)))
    assert len(set(map(id, found))) == 1
    assert await connections.connection_for(TOPIC) is found[0]
    assert await connections.connection(address_of(f"pulsar://{HOST}:{PORT}/")) is found[0]
    assert found[0].is_ours
    await connections.close()


async def test_a_cancelled_caller_does_not_end_the_attempt_for_others(brokers: Brokers) -> None:
    connections = pool(brokers)
    first = asyncio.ensure_future(connections.any_connection())
    second = asyncio.ensure_future(connections.any_connection())
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).open
    await connections.close()


async def test_the_next_host_is_tried_when_one_is_down(brokers: Brokers) -> None:
    connections = pool(brokers, ("nowhere", 1), (HOST, PORT), ("nowhere", 2))
    assert (await connections.any_connection()).address == (HOST, PORT)
    await connections.close()
    with pytest.raises(ConnectError):
        await pool(brokers, ("nowhere", 1)).any_connection()


async def test_a_lost_connection_fails_its_requests_and_is_forgotten(brokers: Brokers) -> None:
    connections = pool(brokers)
    connection = await connections.any_connection()
    brokers.hold_links()
    waiting = asyncio.ensure_future(
        connection.request(
            pb.CommandLookupTopic(topic=TOPIC, request_id=99), pb.CommandLookupTopicResponse, 60.0
        )
    )
    await asyncio.sleep(0.1)
    brokers.network.heal()
    brokers.reset_links()
    with pytest.raises(NotConnectedError):
        await waiting
    assert not connection.open
    with pytest.raises(NotConnectedError):
        await connection.post(pb.CommandLookupTopic(topic=TOPIC, request_id=100))
    again = await connections.any_connection()
    assert again is not connection
    await connections.close()
    with pytest.raises(AlreadyClosedError):
        await connections.any_connection()


async def test_an_unanswered_request_times_out(brokers: Brokers) -> None:
    connections = pool(brokers)
    connection = await connections.any_connection()
    brokers.hold_links()
    with pytest.raises(OperationTimeoutError, match="LookupTopic"):
        await connection.request(
            pb.CommandLookupTopic(topic=TOPIC, request_id=99), pb.CommandLookupTopicResponse, 1.0
        )
    brokers.network.heal()
    await connections.close()


async def test_a_url_of_a_broker_must_be_an_address(brokers: Brokers) -> None:
    connections = pool(brokers)
    with pytest.raises(InvalidServiceUrlError):
        await connections.connection(address_of("pulsar://"))
    await connections.close()


async def start_mute(brokers: Brokers, host: str) -> None:
    """A host whose kernel accepts connections while its broker is paused and does not answer."""
    await SimProcess(brokers.loop, host).spawn(brokers.loop.create_server(asyncio.Protocol, host, PORT))


async def test_a_host_that_never_answers_is_left_for_the_next_soon(brokers: Brokers) -> None:
    await start_mute(brokers, "mute")
    for _ in range(4):
        connections = pool(brokers, ("mute", PORT), (HOST, PORT))
        began = brokers.loop.time()
        assert (await connections.any_connection()).address == (HOST, PORT)
        assert brokers.loop.time() - began < 1.5
        await connections.close()


async def test_timeouts_grow_for_a_broker_that_may_only_be_slow(brokers: Brokers) -> None:
    await start_mute(brokers, "mute")
    connections = ConnectionPool((("mute", PORT),), PoolTimes(connect_s=3.0), rng=brokers.rng)
    waits = []
    for _ in range(4):
        began = brokers.loop.time()
        with pytest.raises(ConnectError):
            await connections.any_connection()
        waits.append(round(brokers.loop.time() - began))
    assert waits == [1, 2, 3, 3]
    await connections.close()


class Watcher:
    """A watch that keeps a connection in use."""

    def updated(self, update: object) -> None: ...

    def connection_lost(self) -> None: ...


async def test_a_connection_that_answers_no_look_up_gets_no_new_users(brokers: Brokers) -> None:
    connections = pool(brokers)
    paused = await connections.any_connection()
    paused.watches[99] = Watcher()
    brokers.processes[0].pause()
    with pytest.raises(OperationTimeoutError):
        await connections.connection_for(TOPIC)
    brokers.processes[0].resume()
    assert paused.open, "its watches may still get their updates"
    again = await connections.connection_for(TOPIC)
    assert again is not paused
    await connections.close()
    await asyncio.sleep(1)
    assert not paused.open
    assert not again.open


async def test_silent_connections_without_users_are_closed(brokers: Brokers) -> None:
    connections = pool(brokers)
    paused = await connections.any_connection()
    brokers.processes[0].pause()
    with pytest.raises(OperationTimeoutError):
        await connections.connection_for(TOPIC)
    await asyncio.sleep(6)
    assert not paused.open
    brokers.processes[0].resume()
    await connections.close()
    await asyncio.sleep(1)


async def test_a_layout_request_waits_for_a_slow_broker(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await client.create_producer(TOPIC)
    brokers.processes[0].pause()
    brokers.loop.call_later(4.0, brokers.processes[0].resume)
    async with brokers.client() as client:
        assert (await client.layout(TOPIC)).layout.active


async def test_after_a_loss_another_host_is_asked(brokers: Brokers) -> None:
    other = SimProcess(brokers.loop, "other")
    accepted: list[asyncio.Protocol] = []

    def accept() -> asyncio.Protocol:
        accepted.append(asyncio.Protocol())
        return accepted[-1]

    await other.spawn(brokers.loop.create_server(accept, "other", PORT))
    connections = pool(brokers, (HOST, PORT), ("other", PORT))
    while (await connections.any_connection()).address != (HOST, PORT):
        await connections.close()
        connections = pool(brokers, (HOST, PORT), ("other", PORT))
    brokers.kill()
    await asyncio.sleep(0.1)
    accepted.clear()
    dialing = asyncio.ensure_future(connections.any_connection())
    await asyncio.sleep(0.1)
    assert len(accepted) == 1
    dialing.cancel()
    await connections.close()
