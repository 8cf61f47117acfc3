"""Calls between brokers: answers, errors, pushes, losses, limits and authentication."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, cast

import pytest

from anabranch.aio import TaskRegistry
from anabranch.broker.cluster import peer_link
from anabranch.broker.cluster.cluster_secret import PEER_VERSION, ClusterSecret
from anabranch.broker.cluster.peers import Peers, RemoteSession, Target
from anabranch.broker.cluster.remote_calls import Port, Verb, VerbCall
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers import HANDLERS
from anabranch.broker.wire.handshake import Handshake
from anabranch.broker.wire.publish_room import PublishRoom
from anabranch.broker.wire.services import Services
from anabranch.config.broker import BrokerConfig
from anabranch.controller.ports.verbs import ends_session, opens_session
from anabranch.errors import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    LayoutError,
    LocalProtocolError,
    NotConnectedError,
    OperationTimeoutError,
    RemoteProtocolError,
    TooManyRequestsError,
    UnknownServerError,
)
from anabranch.metadata.memory import MemoryStore
from anabranch.protocol.connection import ClientMachine, ServerMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.security.gate import Gate
from anabranch.security.peer_secrets import PeerSecrets
from anabranch.testing.seeded_secrets import SeededSecrets
from anabranch.transport.dialing import dial, listen
from anabranch.transport.fair_pump import SharedLimits
from anabranch.transport.pump import Pump
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.network import SimNetwork
from tests.harness.wire import WireClient

URL = "pulsar://other:6650"
SECRET = b"only brokers know".ljust(32)


@dataclass(frozen=True)
class PeerFollower:
    token: int
    topics: str


class Echo(Protocol):
    async def say(self, text: str, times: int = 1) -> str: ...

    async def fail(self, kind: str) -> None: ...

    async def hang(self) -> None: ...

    @opens_session(push="push", lost="forget")
    async def follow(self, topic: str, push: Callable[[str | None], None]) -> PeerFollower: ...

    @ends_session("follower")
    def forget(self, follower: PeerFollower) -> None: ...

    def note(self, text: str) -> None: ...


ECHO = Port(Echo)  # type: ignore[type-abstract]


class NewerEcho(Protocol):
    """The port at a broker of another version."""

    async def fly(self) -> None: ...

    async def say(self, text: str) -> int: ...


class LocalEcho:
    def __init__(self) -> None:
        self.noted: list[str] = []
        self.forgotten: list[int] = []
        self.followers: list[Callable[[str | None], None]] = []
        self.going = asyncio.Event()

    async def say(self, text: str, times: int = 1) -> str:
        self.noted.append(text)
        return text * times

    async def fail(self, kind: str) -> None:
        raise {"layout": LayoutError("the layout says no"), "bug": ZeroDivisionError("oops")}[kind]

    async def hang(self) -> None:
        await self.going.wait()

    async def follow(self, topic: str, push: Callable[[str | None], None]) -> PeerFollower:
        self.followers.append(push)
        return PeerFollower(len(self.followers), 2 * topic)

    def forget(self, follower: PeerFollower) -> None:
        self.forgotten.append(follower.token)

    def note(self, text: str) -> None:
        self.noted.append(text)


async def cluster_secret(value: bytes) -> ClusterSecret:
    source = SeededSecrets(random.Random(1))
    source.secrets = PeerSecrets(value)
    secret = ClusterSecret(source, SimClock(cast(SimLoop, asyncio.get_running_loop())))
    await secret.load(MemoryStore())
    return secret


class PeerHost:
    """A broker that serves one port, an echo."""

    def __init__(self) -> None:
        self.echo = LocalEcho()
        self.connections: dict[ServerConnection, None] = {}
        self.tasks = TaskRegistry()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        config = BrokerConfig(max_message_bytes=100_000)
        limits = SharedLimits(config, self._accept)
        self._services = cast(
            Services,
            SimpleNamespace(
                config=config,
                tasks=self.tasks,
                secret=await cluster_secret(SECRET),
                limits=limits,
                gate=Gate(),
                authorizer=SimpleNamespace(grants=SimpleNamespace(changes=0)),
                requests_max=1000,
                room=PublishRoom(config, self.connections),
                targets={"echo": Target(ECHO, self._find)},
            ),
        )
        self._server = await listen("other", 6650, limits.door.open)

    def _accept(self) -> Pump:
        machine = ServerMachine(now=asyncio.get_running_loop().time(), max_message_bytes=100_000)
        machine.admits_all = False
        return Pump(machine, Handshake(ServerConnection(self._services, HANDLERS, self.connections)))

    async def _find(self, rest: str) -> LocalEcho:
        return self.echo

    def cut(self) -> None:
        for connection in list(self.connections):
            connection.hang_up()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await self.tasks.stop()


class CallingPeer:
    """Carries the verbs of an echo to the host."""

    def __init__(self, peers: Peers, timeout_s: float = 5.0) -> None:
        self.peers = peers
        self.timeout_s = timeout_s
        self.sessions: list[RemoteSession] = []

    async def call(self, call: VerbCall) -> Any:
        if call.push is None:
            return await self.peers.call(URL, "echo", call, timeout_s=self.timeout_s)
        result, session = await self.peers.open_session(URL, "echo", call, timeout_s=self.timeout_s)
        self.sessions.append(session)
        return result

    def notify(self, call: VerbCall) -> None:
        self.sessions[-1].notify(call)


@pytest.fixture
async def host(loop: SimLoop) -> AsyncIterator[PeerHost]:
    SimNetwork(loop)
    host = PeerHost()
    await host.start()
    yield host
    await host.stop()


@pytest.fixture
def secret() -> bytes:
    return SECRET


@pytest.fixture
async def peers(host: PeerHost, secret: bytes) -> AsyncIterator[Peers]:
    peers = Peers(await cluster_secret(secret))
    yield peers
    await peers.close()


@pytest.fixture
def caller(peers: Peers) -> CallingPeer:
    return CallingPeer(peers)


@pytest.fixture
def echo(caller: CallingPeer) -> Echo:
    return ECHO.proxy(caller)


async def test_calls_are_answered_out_of_order_over_one_connection(host: PeerHost, echo: Echo) -> None:
    slow = asyncio.get_running_loop().create_task(echo.hang())
    said = await asyncio.gather(*(echo.say(str(number), 2) for number in range(50)))
    assert said == [str(number) * 2 for number in range(50)]
    assert await echo.say("alone") == "alone"
    assert len(host.connections) == 1
    host.echo.going.set()
    await slow


async def test_an_error_is_raised_as_its_own_class_and_a_bug_stays_where_it_is(
    peers: Peers, echo: Echo, caller: CallingPeer
) -> None:
    with pytest.raises(LayoutError, match="the layout says no"):
        await echo.fail("layout")
    with pytest.raises(UnknownServerError) as failed:
        await echo.fail("bug")
    assert "oops" not in str(failed.value)
    with pytest.raises(RemoteProtocolError, match="no verb"):
        await caller.call(Verb(NewerEcho, "fly").bind())
    with pytest.raises(RemoteProtocolError, match="the result of say"):
        await caller.call(Verb(NewerEcho, "say").bind("hello"))
    with pytest.raises(RemoteProtocolError, match="do not call"):
        await peers.call(URL, "moon", ECHO.verb("hang").bind())


async def test_a_call_fails_in_time_and_when_the_connection_is_lost_and_the_next_one_dials_again(
    host: PeerHost, echo: Echo
) -> None:
    with pytest.raises(OperationTimeoutError, match="did not answer hang"):
        await echo.hang()
    waiting = asyncio.get_running_loop().create_task(echo.hang())
    await asyncio.sleep(1.0)
    host.cut()
    with pytest.raises(NotConnectedError):
        await waiting
    assert await echo.say("again") == "again"
    await host.stop()
    await asyncio.sleep(1.0)
    with pytest.raises(ConnectError):
        await echo.say("nobody")


async def test_a_call_does_not_wait_for_the_address_of_a_broker_that_is_gone(
    host: PeerHost, peers: Peers, echo: Echo
) -> None:
    waiting = asyncio.get_running_loop().create_task(echo.say("hello"))
    await asyncio.sleep(0)
    peers.keep([])
    with pytest.raises(ConnectError, match="is gone"):
        await waiting
    assert not host.connections
    assert await echo.say("again") == "again"


async def test_calls_under_way_are_bounded_and_others_wait_for_their_turn(
    host: PeerHost, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_link, "PENDING_MAX", 3)
    monkeypatch.setattr(peer_link, "WAITING_MAX", 5)

    loop = asyncio.get_running_loop()
    slow = [loop.create_task(echo.hang()) for _ in range(3)]
    await asyncio.sleep(0.5)
    waiting = [loop.create_task(echo.say(str(number))) for number in range(5)]
    await asyncio.sleep(0.5)
    assert host.echo.noted == []
    with pytest.raises(TooManyRequestsError):
        await echo.say("one too many")
    host.echo.going.set()
    assert await asyncio.gather(*waiting) == ["0", "1", "2", "3", "4"]
    await asyncio.gather(*slow)


async def test_a_call_that_is_too_large_fails_and_the_connection_lives(host: PeerHost, echo: Echo) -> None:
    await echo.say("hello")
    with pytest.raises(LocalProtocolError):
        await echo.say("x" * 200_000)
    with pytest.raises(LocalProtocolError):
        await echo.say("x", 200_000)
    assert await echo.say("hello") == "hello"
    assert len(host.connections) == 1


async def test_a_session_whose_result_is_too_large_is_ended(host: PeerHost, echo: Echo) -> None:
    with pytest.raises(LocalProtocolError, match="the result of follow is too large"):
        await echo.follow("x" * 60_000, lambda value: None)
    assert host.echo.forgotten == [1]


async def test_pushes_come_until_the_session_ends_and_none_when_the_connection_does(
    host: PeerHost, echo: Echo, caller: CallingPeer
) -> None:
    one: list[str | None] = []
    two: list[str | None] = []
    assert await echo.follow("a", one.append) == PeerFollower(1, "aa")
    assert await echo.follow("b", two.append) == PeerFollower(2, "bb")
    first = caller.sessions[0]
    for push in host.echo.followers:
        push("news")
    await asyncio.sleep(0.5)
    assert (one, two) == (["news"], ["news"])
    first.end_pushes()
    for push in host.echo.followers:
        push("more")
    await asyncio.sleep(0.5)
    assert (one, two) == (["news"], ["news", "more"])
    host.cut()
    await asyncio.sleep(0.5)
    assert (one, two) == (["news"], ["news", "more", None])
    assert not first.is_open
    assert host.echo.forgotten == [1, 2]


async def test_a_notification_arrives_before_later_calls(host: PeerHost, echo: Echo) -> None:
    await echo.follow("a", print)
    await echo.say("first")
    echo.note("second")
    await echo.say("third")
    assert host.echo.noted == ["first", "second", "third"]
    host.cut()
    await asyncio.sleep(0.5)
    echo.note("to nobody")
    await echo.say("fourth")
    assert host.echo.noted == ["first", "second", "third", "fourth"]


async def test_a_session_that_opens_after_its_caller_gave_up_is_ended(host: PeerHost, echo: Echo) -> None:
    await echo.say("connect")
    task = asyncio.get_running_loop().create_task(echo.follow("a", print))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(1.0)
    assert (len(host.echo.followers), host.echo.forgotten) == (1, [1])
    assert [connection.pushes.sessions for connection in host.connections] == [{}]


async def test_a_dead_broker_is_hung_up_on_at_once(peers: Peers, echo: Echo) -> None:
    waiting = asyncio.get_running_loop().create_task(echo.hang())
    await asyncio.sleep(1.0)
    peers.keep([URL])
    await asyncio.sleep(0.1)
    assert not waiting.done()
    peers.keep([])
    with pytest.raises(NotConnectedError):
        await waiting


@pytest.mark.parametrize("secret", [b"guess", b""])
async def test_a_peer_without_the_secret_is_no_broker(host: PeerHost, echo: Echo) -> None:
    with pytest.raises((NotConnectedError, ConnectError)):
        await echo.say("let me in")
    assert host.echo.noted == []


async def test_a_client_cannot_call_what_brokers_call(host: PeerHost) -> None:
    client = await connect("Anabranch-Test")
    arguments = ECHO.verb("say").encode_arguments({"text": "hello"})
    answer = await client.request(
        pb.CommandPeerCall(request_id=0, target="echo", verb="say", arguments=arguments)
    )
    assert answer.error == AuthorizationError.__name__
    assert host.echo.noted == []


async def test_a_client_that_claims_to_be_a_broker_is_disconnected(host: PeerHost) -> None:
    with pytest.raises(AuthenticationError, match="authentication failed"):
        await connect(PEER_VERSION)
    assert not host.connections


async def connect(version: str) -> WireClient:
    client = WireClient()
    now = asyncio.get_running_loop().time()
    await dial("other", 6650, lambda: ClientMachine(version, now=now), client, timeout_s=5.0)
    return client
