"""The credentials of a client on the wire: fresh ones for each connection and for each challenge."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from anabranch import AsyncClient, Authentication, AuthenticationBasic, AuthenticationToken
from anabranch.errors import AuthenticationError, CredentialsUnavailableError
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.network import SimNetwork
from tests.harness.hostile import URL, connected
from tests.harness.refusing import RefusingBroker, challenge, numbered
from tests.harness.segments import NAME

TIMEOUT_S = 5.0
CONNECT_S = 2.5


@pytest.fixture
async def broker(loop: SimLoop) -> RefusingBroker:
    SimNetwork(loop)
    broker = RefusingBroker()
    await broker.start()
    return broker


def client_with(loop: SimLoop, authentication: Authentication | None) -> AsyncClient:
    return AsyncClient(
        URL,
        operation_timeout=TIMEOUT_S,
        connect_timeout=CONNECT_S,
        authentication=authentication,
        clock=SimClock(loop),
        rng=loop.random("client"),
    )


async def test_a_client_without_credentials_says_so(loop: SimLoop, broker: RefusingBroker) -> None:
    async with client_with(loop, None) as client:
        await client.layout(NAME)
    assert broker.shown == [("none", b"")]


async def test_each_connection_shows_fresh_credentials(loop: SimLoop, broker: RefusingBroker) -> None:
    async with client_with(loop, AuthenticationToken(numbered())) as client:
        await client.layout(NAME)
        broker.drop()
        await asyncio.sleep(1)
        await client.layout(NAME)
    assert broker.shown == [("token", b"token-1"), ("token", b"token-2")]


async def test_a_password_is_shown_with_its_method(loop: SimLoop, broker: RefusingBroker) -> None:
    async with client_with(loop, AuthenticationBasic("alice", "sesame")) as client:
        await client.layout(NAME)
    assert broker.shown == [("basic", b"alice:sesame")]


async def test_a_challenge_is_answered_with_fresh_credentials_while_the_connection_works(
    loop: SimLoop, broker: RefusingBroker
) -> None:
    tokens = numbered()

    async def slow() -> str:
        token = tokens()
        await asyncio.sleep(0 if token == "token-1" else 2.0)
        return token

    async with client_with(loop, AuthenticationToken(slow)) as client:
        producer = await client.create_producer(NAME)
        broker.push(challenge())
        began = loop.time()
        await producer.send(b"meanwhile")
        assert loop.time() - began < 1
        assert broker.answers == []
        await asyncio.sleep(3)
        assert broker.answers == [b"token-2"]
        broker.push(challenge())
        await asyncio.sleep(3)
        assert broker.answers == [b"token-2", b"token-3"]
        await producer.send(b"afterwards")
    assert broker.connections == 1


async def test_a_challenge_before_the_handshake_is_done_is_answered(loop: SimLoop) -> None:
    SimNetwork(loop)
    broker = RefusingBroker(
        {
            pb.CommandConnect: lambda c: [challenge(b"riddle")],
            pb.CommandAuthResponse: lambda c: (
                [connected()] if c.response.auth_data == b"answer to riddle" else []
            ),
        }
    )
    await broker.start()

    class Riddles:
        method_name = "riddles"

        async def auth_data(self, host: str) -> bytes:
            return b"begin"

        async def respond(self, challenge: bytes) -> bytes:
            return b"answer to " + challenge

    async with client_with(loop, Riddles()) as client:
        assert (await client.layout(NAME)).layout.epoch == 0


async def test_without_an_answer_to_the_challenge_the_client_connects_again(
    loop: SimLoop, broker: RefusingBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broken = False

    def supply() -> str:
        nonlocal broken
        broken = not broken
        if not broken:
            raise OSError("secret")
        return "token"

    with caplog.at_level(logging.WARNING, "anabranch.client"):
        async with client_with(loop, AuthenticationToken(supply)) as client:
            producer = await client.create_producer(NAME)
            broker.push(challenge())
            await asyncio.sleep(1)
            await producer.send(b"afterwards")
    assert (broker.connections, broker.answers) == (2, [])
    (line,) = caplog.messages
    assert "gave no credentials: it raised OSError" in line
    assert "secret" not in line


async def test_a_refused_token_fails_opening_at_once(
    loop: SimLoop, broker: RefusingBroker, opening: Any
) -> None:
    broker.accepts = lambda _: False
    began = loop.time()
    async with client_with(loop, AuthenticationToken("wrong")) as client:
        with pytest.raises(AuthenticationError, match="refused by the test"):
            await opening(client)
    assert loop.time() - began < 1
    assert broker.connections == 1


async def test_a_supplier_that_fails_ends_opening_at_once(
    loop: SimLoop, broker: RefusingBroker, opening: Any
) -> None:
    began = loop.time()
    async with client_with(loop, AuthenticationToken("file:///does/not/exist")) as client:
        with pytest.raises(AuthenticationError, match="/does/not/exist"):
            await opening(client)
    assert loop.time() - began < 1
    assert broker.connections == 0


async def test_opening_waits_for_an_issuer_that_is_out_of_order(
    loop: SimLoop, broker: RefusingBroker, opening: Any
) -> None:
    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    began = loop.time()
    async with client_with(loop, AuthenticationToken(never)) as client:
        with pytest.raises(
            (CredentialsUnavailableError, TimeoutError), match=r"gave no credentials within 2\.5 s"
        ):
            await opening(client)
    assert CONNECT_S < loop.time() - began < TIMEOUT_S + 1
    assert broker.connections == 0


async def test_credentials_that_are_kept_are_renewed_when_the_broker_wants_new_ones(
    loop: SimLoop, broker: RefusingBroker
) -> None:
    class KeptCredentials:
        """Keeps its token until it has to renew it."""

        method_name = "token"
        number = 1

        async def auth_data(self, host: str) -> bytes:
            return b"token-%d" % self.number

        def renew(self) -> None:
            self.number += 1

    async with client_with(loop, KeptCredentials()) as client:
        await client.layout(NAME)
        broker.push(challenge())
        await asyncio.sleep(1)
        assert broker.answers == [b"token-2"]
        broker.accepts = lambda token: token == b"token-3"
        broker.drop()
        await asyncio.sleep(1)
        with pytest.raises(AuthenticationError):
            await client.layout(NAME)
        await client.layout(NAME)


async def test_the_client_closes_its_credentials(loop: SimLoop, broker: RefusingBroker) -> None:
    closed = []

    class ClosedCredentials(AuthenticationToken):
        async def close(self) -> None:
            closed.append(self)

    async with client_with(loop, ClosedCredentials("token")) as client:
        await client.layout(NAME)
        assert not closed
    assert len(closed) == 1


async def test_credentials_that_do_not_close_keep_the_client_no_longer_than_its_timeout(
    loop: SimLoop, broker: RefusingBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class StuckCredentials(AuthenticationToken):
        async def close(self) -> None:
            await asyncio.Event().wait()

    client = client_with(loop, StuckCredentials("token"))
    await client.layout(NAME)
    began = loop.time()
    with caplog.at_level(logging.WARNING, "anabranch.client"):
        await client.close(timeout=1)
    assert loop.time() - began < 1.5
    assert caplog.messages == ["StuckCredentials was not closed: it raised TimeoutError"]


@pytest.fixture(params=["producer", "named producer", "stream", "queue", "checkpoints", "group", "layout"])
def opening(request: pytest.FixtureRequest) -> Any:
    """A call that opens something."""
    return {
        "producer": lambda client: client.create_producer(NAME),
        "named producer": lambda client: client.create_producer(NAME, name="me"),
        "stream": lambda client: client.subscribe_stream(NAME, "s"),
        "queue": lambda client: client.subscribe_queue(NAME, "q"),
        "checkpoints": lambda client: client.create_checkpoint_consumer(NAME),
        "group": lambda client: client.create_checkpoint_consumer(NAME, group="g"),
        "layout": lambda client: client.layout(NAME),
    }[request.param]
