"""CONNECT: right and wrong credentials, commands behind it, brokers, proxies, and what clients learn."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.message import Message

from anabranch.broker.cluster.cluster_secret import PEER_AUTHENTICATION, PEER_VERSION
from anabranch.errors import AuthenticationError
from anabranch.protocol.commands import Command, CommandCutter, encode
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights.callers import ANYONE, Caller
from anabranch.security.authentication import AuthenticationMethods, Shown
from tests.harness.cluster import HOST, PORT, Brokers
from tests.harness.security import SECURE, token_for
from tests.harness.wire import TOPIC

FAILED = "authentication failed"


def caller_of(brokers: Brokers) -> Caller:
    """Return the caller of the only connection."""
    (connection,) = brokers[0].connections
    return connection.caller


async def refused(brokers: Brokers, **credentials: object) -> str:
    """Connect with wrong credentials; return the reason in the audit log."""
    with pytest.raises(AuthenticationError) as caught:
        await brokers.connect(**credentials)  # type: ignore[arg-type]
    assert str(caught.value) == FAILED
    assert not brokers[0].connections
    return brokers.audit.reasons[-1]


@pytest.mark.brokers(**SECURE)
async def test_a_token_proves_the_role_of_a_connection(brokers: Brokers) -> None:
    client = await brokers.connect(token=token_for("alice"))
    assert caller_of(brokers).role == "alice"
    assert caller_of(brokers).method == "token"
    assert isinstance(await client.producer(TOPIC), pb.CommandProducerSuccess)
    assert brokers.audit.events == []


@pytest.mark.brokers(**SECURE)
async def test_wrong_credentials_are_refused_and_only_the_audit_log_says_why(brokers: Brokers) -> None:
    assert "Signature" in await refused(brokers, token=token_for("alice", key=b"x" * 64))
    assert "expired" in await refused(brokers, token=token_for("alice", exp=1))
    assert "no credentials" in await refused(brokers)
    assert "not configured" in await refused(brokers, auth_method="athenz", auth_data=b"x")
    assert [event.action for event in brokers.audit.events] == ["CONNECT"] * 4
    assert all(event.address for event in brokers.audit.events)


async def test_without_authentication_any_credentials_are_accepted(brokers: Brokers) -> None:
    await brokers.connect(auth_method="token", auth_data=b"rubbish")
    assert caller_of(brokers) == ANYONE


@pytest.mark.brokers(**SECURE, anonymous_role="guest")
async def test_a_client_without_credentials_has_the_anonymous_role(brokers: Brokers) -> None:
    await brokers.connect()
    assert caller_of(brokers).role == "guest"


@pytest.mark.brokers(**SECURE, anonymous_role="guest")
async def test_wrong_credentials_are_refused_also_where_clients_without_any_are_not(brokers: Brokers) -> None:
    await refused(brokers, token="rubbish")


@pytest.mark.brokers(**SECURE)
@pytest.mark.parametrize(
    "credentials",
    [
        {"version": PEER_VERSION},
        {"version": PEER_VERSION, "token": token_for("alice")},
        {"auth_method": PEER_AUTHENTICATION, "auth_data": b"guess"},
        {"auth_method": PEER_AUTHENTICATION},
    ],
)
async def test_a_client_cannot_claim_to_be_a_broker(brokers: Brokers, credentials: dict[str, object]) -> None:
    assert "claims to be a broker" in await refused(brokers, **credentials)


@pytest.mark.brokers(**SECURE, count=2)
async def test_brokers_know_each_other_by_their_secret(brokers: Brokers) -> None:
    clients = [await brokers.connect(number, token=token_for("alice")) for number in (0, 1)]
    for number, client in enumerate(clients):
        answer = await client.producer(f"topic://public/default/{number}")
        assert not isinstance(answer, pb.CommandError) or answer.error != pb.AuthenticationError
    assert brokers.audit.events == []


@pytest.fixture
def slowness(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each proof takes, in seconds."""
    slow = [1.0]
    prove = AuthenticationMethods.authenticate

    async def prove_slowly(methods: AuthenticationMethods, shown: Shown) -> Caller:
        await asyncio.sleep(slow[0])
        return await prove(methods, shown)

    monkeypatch.setattr(AuthenticationMethods, "authenticate", prove_slowly)
    return slow


class EagerClient(asyncio.Protocol):
    """A client that sends its commands without waiting for CONNECTED."""

    def __init__(self, *commands: Message) -> None:
        self._bytes = b"".join(map(encode, commands))
        self._cutter = CommandCutter()
        self.answers: list[Command] = []
        self.transport: asyncio.Transport | None = None
        self.lost = False

    @classmethod
    async def dial(cls, *commands: Message) -> EagerClient:
        loop = asyncio.get_running_loop()
        client = cls(*commands)
        await loop.create_connection(lambda: client, HOST, PORT)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._bytes)

    def data_received(self, data: bytes) -> None:
        self.answers += self._cutter.read(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    @property
    def kinds(self) -> list[str]:
        return [type(answer).__name__.removeprefix("Command") for answer in self.answers]


def connect_with(token: str, **fields: object) -> pb.CommandConnect:
    return pb.CommandConnect(
        client_version="test",
        protocol_version=21,
        auth_method_name="token",
        auth_data=token.encode(),
        **fields,  # type: ignore[arg-type]
    )


LOOKUP = pb.CommandLookupTopic(topic=TOPIC, request_id=7)


@pytest.mark.brokers(**SECURE)
async def test_commands_behind_connect_wait_for_the_proof(brokers: Brokers, slowness: list[float]) -> None:
    client = await EagerClient.dial(connect_with(token_for("alice")), LOOKUP)
    await asyncio.sleep(0.5)
    assert client.kinds == []
    await asyncio.sleep(1.0)
    assert client.kinds == ["Connected", "LookupTopicResponse"]


@pytest.mark.brokers(**SECURE)
async def test_no_command_behind_a_wrong_connect_is_served(brokers: Brokers, slowness: list[float]) -> None:
    client = await EagerClient.dial(connect_with("rubbish"), LOOKUP)
    await asyncio.sleep(2)
    assert client.kinds == ["Error"]
    assert client.lost
    assert not brokers[0].connections


@pytest.mark.brokers(**SECURE)
async def test_a_broker_does_not_read_on_during_the_proof(brokers: Brokers, slowness: list[float]) -> None:
    slowness[0] = 5.0
    client = await EagerClient.dial(connect_with(token_for("alice")))
    assert client.transport is not None
    flood = encode(LOOKUP) * 1000
    for _ in range(2000):
        client.transport.write(flood)
        await asyncio.sleep(0.001)
    # The bytes stay on the way; the broker holds none of them.
    assert client.transport.get_write_buffer_size() > 2**20
    client.transport.abort()


@pytest.mark.brokers(**SECURE, handshake_timeout_s=3.0)
async def test_the_time_for_the_handshake_covers_the_proof(brokers: Brokers, slowness: list[float]) -> None:
    slowness[0] = 60.0
    client = await EagerClient.dial(connect_with(token_for("alice")), LOOKUP)
    await asyncio.sleep(4)
    assert client.lost
    await asyncio.sleep(60)
    assert not brokers[0].connections


@pytest.mark.brokers(**SECURE)
async def test_a_client_may_leave_during_the_proof(brokers: Brokers, slowness: list[float]) -> None:
    client = await EagerClient.dial(connect_with(token_for("alice")), LOOKUP)
    await asyncio.sleep(0.5)
    assert client.transport is not None
    client.transport.abort()
    await asyncio.sleep(2)
    assert not brokers[0].connections
    assert len(brokers[0].limits.door) == 0


@pytest.mark.brokers(**SECURE)
async def test_a_failing_proof_refuses_the_client_and_tells_it_nothing(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(methods: AuthenticationMethods, shown: Shown) -> Caller:
        raise ZeroDivisionError("secret details")

    monkeypatch.setattr(AuthenticationMethods, "authenticate", fail)
    client = await EagerClient.dial(connect_with(token_for("alice")), LOOKUP)
    await asyncio.sleep(1)
    (error,) = client.answers
    assert isinstance(error, pb.CommandError)
    assert (error.message, client.lost) == (FAILED, True)


@pytest.mark.brokers(**SECURE, proxy_roles="proxy")
async def test_a_proxy_names_the_role_of_its_client_in_connect(brokers: Brokers) -> None:
    client = await EagerClient.dial(connect_with(token_for("proxy"), original_principal="alice"))
    await asyncio.sleep(1)
    assert client.kinds == ["Connected"]
    assert (caller_of(brokers).role, caller_of(brokers).original) == ("proxy", "alice")


async def test_a_connect_above_its_limits_is_disconnected(brokers: Brokers) -> None:
    client = await EagerClient.dial(connect_with("x", original_principal="x" * 10_000))
    await asyncio.sleep(1)
    assert client.lost
    assert client.kinds == []
