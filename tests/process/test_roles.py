"""Roles on several workers: names stay with their role through a takeover, and revoked rights end clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from anabranch import AsyncClient, AuthenticationToken
from anabranch.admin.client import AdminClient
from anabranch.errors import AnabranchError, AuthorizationError, ConsumerBusyError, ProducerBusyError
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.harness.rights import RIGHTS
from tests.harness.security import token_for
from tests.process.conftest import MakeBroker

TOPIC = "topic://public/default/orders"
PERMISSIONS = "/admin/v2/namespaces/public/default/permissions"
PATIENCE_S = 60.0
KEYS = [f"key-{number}" for number in range(16)]


@pytest.fixture
def broker(make_broker: MakeBroker) -> BrokerProcess:
    """Two workers with a topic of four segments, where alice and bob may produce and consume."""
    made = make_broker(workers=2, lease_s=1.5, **RIGHTS).start()
    with as_root(made) as admin:
        admin.create_topic(TopicName.parse(TOPIC), 4)
        for role in ("alice", "bob"):
            admin.call("POST", f"{PERMISSIONS}/{role}", body=["produce", "consume"])
    return made


def as_root(broker: BrokerProcess) -> AdminClient:
    return AdminClient(broker.http_url, authentication=AuthenticationToken(token_for("root")))


def client_of(broker: BrokerProcess, role: str) -> AsyncClient:
    return AsyncClient(broker.url, authentication=AuthenticationToken(token_for(role)))


async def error_of(open_: Callable[[], Awaitable[object]]) -> AnabranchError | None:
    """Return the final error of a call, which may fail before that because the segment has no owner yet."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await open_()
            except (ProducerBusyError, ConsumerBusyError) as error:
                return error
            except AnabranchError as error:
                if not error.retryable:
                    return error
                await asyncio.sleep(0.2)
            else:
                return None


async def repeat(act: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call until it fails."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await act()


async def test_names_stay_with_their_role_when_workers_die(broker: BrokerProcess) -> None:
    async with client_of(broker, "bob") as bob:
        async with client_of(broker, "alice") as alice:
            producer = await alice.create_producer(TOPIC, name="p")
            await producer.send_many([b"x"] * len(KEYS), keys=KEYS)
            await alice.subscribe_stream(TOPIC, "reader", name="c")
            for store in (None, 0, 1):
                if store is not None:
                    broker.kill_owner(store)
                    broker.worker(store)
                taking = await error_of(lambda: bob.create_producer(TOPIC, name="p"))
                assert isinstance(taking, ProducerBusyError), taking
                taking = await error_of(lambda: bob.subscribe_stream(TOPIC, "reader", name="c"))
                assert isinstance(taking, ConsumerBusyError), taking
            await producer.send_many([b"y"] * len(KEYS), keys=KEYS)
        taking = await error_of(lambda: bob.create_producer(TOPIC, name="p"))
        assert isinstance(taking, ProducerBusyError), taking
        assert await error_of(lambda: bob.subscribe_stream(TOPIC, "reader", name="c")) is None


async def test_a_revoked_role_loses_its_clients_at_every_worker(broker: BrokerProcess) -> None:
    async with client_of(broker, "alice") as alice, client_of(broker, "bob") as bob:
        producers = [await client.create_producer(TOPIC) for client in (alice, bob)]
        for producer in producers:
            await producer.send_many([b"x"] * len(KEYS), keys=KEYS)
        consumer = await alice.subscribe_stream(TOPIC, "reader", initial_position="earliest")
        await consumer.receive()
        with as_root(broker) as admin:
            admin.call("DELETE", f"{PERMISSIONS}/alice")
        with pytest.raises(AuthorizationError):
            await repeat(lambda: producers[0].send_many([b"x"] * len(KEYS), keys=KEYS))
        with pytest.raises(AuthorizationError):
            await repeat(consumer.receive)
        await producers[1].send_many([b"x"] * len(KEYS), keys=KEYS)
