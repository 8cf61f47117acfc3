"""CONNECT: right and wrong credentials, commands behind it, brokers, proxies, and what clients learn."""

from __future__ import annotations

import pytest

from anabranch.broker.cluster.cluster_secret import PEER_AUTHENTICATION, PEER_VERSION
from anabranch.errors import AuthenticationError
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights.callers import ANYONE, Caller
from tests.harness.cluster import Brokers
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
