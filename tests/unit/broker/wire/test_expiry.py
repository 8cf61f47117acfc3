"""Credentials that expire while a connection is open: challenges, answers, and clients that cannot answer."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from anabranch import AuthenticationToken
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.expiry import Expiry
from anabranch.protocol.commands import CommandCutter, encode
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights.callers import Caller
from simulation.world.faults import EPOCH_MS
from tests.harness.cluster import Brokers
from tests.harness.security import SECURE, token_for
from tests.harness.wire import TOPIC, WireClient

START_S = EPOCH_MS // 1000
ANSWER_S = 30.0

pytestmark = pytest.mark.brokers(**SECURE, authentication_refresh_check_s=ANSWER_S)


def lasting(seconds: float, role: str = "alice") -> str:
    """Return a token that expires this long after the start of the test."""
    return token_for(role, exp=START_S + seconds)


def response(token: str) -> pb.CommandAuthResponse:
    return pb.CommandAuthResponse(response=pb.AuthData(auth_method_name="token", auth_data=token.encode()))


async def until(brokers: Brokers, at_s: float) -> None:
    await asyncio.sleep(at_s - brokers.loop.time())


async def attached(brokers: Brokers, seconds: float) -> WireClient:
    """Return a client with a producer and a consumer, whose token lasts this long."""
    client = await brokers.connect(token=lasting(seconds))
    await client.producer(TOPIC)
    await client.subscribe(TOPIC)
    return client


async def test_a_client_refreshes_its_credentials_and_stays_attached(brokers: Brokers) -> None:
    client = await attached(brokers, 100)
    await until(brokers, 99)
    assert not client.has(pb.CommandAuthChallenge)
    await until(brokers, 102)
    (challenge,) = client.has(pb.CommandAuthChallenge)
    assert challenge.challenge.auth_method_name == "token"
    assert challenge.challenge.auth_data == b"PulsarAuthRefresh"
    client.send(response(lasting(1000)))
    await until(brokers, 900)
    assert len(client.has(pb.CommandAuthChallenge)) == 1
    await client.publish_all([b"still here"])
    assert len(await client.deliveries(1)) == 1
    await until(brokers, 1002)
    assert len(client.has(pb.CommandAuthChallenge)) == 2
    await until(brokers, 1000 + ANSWER_S + 3)
    assert client.hung_up


async def test_a_client_may_refresh_before_it_is_asked(brokers: Brokers) -> None:
    client = await attached(brokers, 100)
    client.send(response(lasting(1000)))
    await until(brokers, 900)
    assert not client.has(pb.CommandAuthChallenge)
    assert not client.hung_up


async def test_a_client_that_does_not_answer_is_disconnected(brokers: Brokers) -> None:
    client = await attached(brokers, 100)
    await until(brokers, 100 + ANSWER_S - 1)
    assert not client.hung_up
    await until(brokers, 100 + ANSWER_S + 3)
    assert client.hung_up
    assert "sent no new ones in time" in brokers.audit.reasons[-1]
    assert brokers.audit.events[-1].caller.role == "alice"


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (lasting(1000, "bob"), "another role"),
        (lasting(100), "expired"),
        ("rubbish", "not valid"),
    ],
)
async def test_wrong_new_credentials_disconnect_a_client(brokers: Brokers, token: str, reason: str) -> None:
    client = await attached(brokers, 100)
    await until(brokers, 102)
    client.send(response(token))
    refused = await client.expect(pb.CommandError)
    assert (refused.error, refused.message) == (pb.AuthenticationError, "authentication failed")
    await asyncio.sleep(1)
    assert client.hung_up
    assert not brokers[0].connections
    assert reason in brokers.audit.reasons[-1]


async def test_a_client_without_the_feature_is_disconnected_at_expiry(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ClientMachine.start

    def start_without_the_feature(machine: ClientMachine) -> bytes:
        (connect,) = CommandCutter().read(start(machine))
        assert isinstance(connect, pb.CommandConnect)
        connect.ClearField("feature_flags")
        return encode(connect)

    monkeypatch.setattr(ClientMachine, "start", start_without_the_feature)
    client = await attached(brokers, 100)
    await until(brokers, 99)
    assert not client.hung_up
    await until(brokers, 102)
    assert client.hung_up
    assert not client.has(pb.CommandAuthChallenge)
    assert brokers.audit.reasons == ["the credentials expired"]


class StubbornConnection:
    """A connection that stays open for a while after it is closed, because its client does not read."""

    caller = Caller("alice", method="token", expires_s=0.0)
    address = "10.0.0.1:1"
    ended = refreshes = False

    def __init__(self) -> None:
        self.closings = 0

    def hang_up(self) -> None:
        self.closings += 1


async def test_a_client_that_does_not_read_is_disconnected_once(brokers: Brokers) -> None:
    connection = StubbornConnection()
    expiry = Expiry([cast(ServerConnection, connection)], brokers.clock, brokers.audit, ANSWER_S)
    looking = asyncio.ensure_future(expiry.run())
    await asyncio.sleep(10)
    looking.cancel()
    assert connection.closings == len(brokers.audit.reasons) == 1


async def test_a_clock_that_is_set_forward_counts_at_once(brokers: Brokers) -> None:
    client = await attached(brokers, 10_000)
    brokers.clock.jump(by_ms=10_001_000)
    await asyncio.sleep(2)
    assert client.has(pb.CommandAuthChallenge)


async def test_a_token_that_never_expires_is_never_asked_for_again(brokers: Brokers) -> None:
    client = await brokers.connect(token=token_for("alice"))
    await until(brokers, 3000)
    assert not client.has(pb.CommandAuthChallenge)
    assert not client.hung_up


async def test_our_client_refreshes_by_itself(brokers: Brokers) -> None:
    authentication = AuthenticationToken(lambda: lasting(brokers.loop.time() + 100))
    async with brokers.client(authentication=authentication) as client:
        producer = await client.create_producer("orders")
        await producer.send(b"one")
        before = list(brokers[0].connections)
        await until(brokers, 500)
        await producer.send(b"two")
        assert list(brokers[0].connections) == before
    assert brokers.audit.events == []
