"""The gate: certificates, proxies, slow answers to addresses that fail, and notes of accepted clients."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from anabranch.errors import CredentialsUnavailableError
from anabranch.rights.callers import Caller
from anabranch.security.attempts import ADDRESSES_MAX, Attempts, network_of
from anabranch.security.authentication import AuthenticationMethods, Shown
from anabranch.security.gate import DELAYED_MAX, Original
from anabranch.transport.certificates import PeerCertificate
from tests.harness.gates import TestedGate
from tests.harness.security import SECURE, token_for

FAR_S = 10.0**10


def certificate(name: str = "alice", expires_s: float = FAR_S) -> PeerCertificate:
    return PeerCertificate(name, f"commonName={name}", expires_s)


async def test_the_common_name_of_a_certificate_is_the_role(gate: TestedGate) -> None:
    gate.use(authentication_providers="tls")
    caller = await gate.prove("tls", certificate=certificate())
    assert (caller.role, caller.method, caller.expires_s) == ("alice", "tls", FAR_S)
    assert "no certificate" in await gate.refusal("tls")
    assert "no role" in await gate.refusal("tls", certificate=certificate(""))
    assert "no role" in await gate.refusal("tls", certificate=certificate("a\nb"))
    assert "expired" in await gate.refusal("tls", certificate=certificate(expires_s=gate.now_s))


async def test_a_certificate_proves_nothing_for_another_method(gate: TestedGate) -> None:
    gate.use(**SECURE)
    assert "not configured" in await gate.refusal("tls", certificate=certificate())
    assert "no credentials" in await gate.refusal("none", certificate=certificate())


async def test_a_proxy_speaks_for_its_client(gate: TestedGate) -> None:
    gate.use(**SECURE, proxy_roles="proxy")
    caller = await gate.prove("token", token_for("proxy"), original=Original("alice"))
    assert (caller.role, caller.original, caller.principal) == ("proxy", "alice", "alice")
    assert "not a valid role" in await gate.refusal("token", token_for("proxy"), original=Original("al\nice"))


async def test_credentials_behind_a_proxy_are_checked_where_the_setting_says_so(gate: TestedGate) -> None:
    gate.use(**SECURE, authenticate_original=True, proxy_roles="proxy")

    def behind(role: str, token: str) -> dict[str, Any]:
        return {"original": Original(role, "token", token.encode())}

    proxy = token_for("proxy")
    expires_s = gate.now_s + 50
    caller = await gate.prove("token", proxy, **behind("alice", token_for("alice", exp=expires_s)))
    assert (caller.role, caller.original, caller.expires_s) == ("proxy", "alice", expires_s)
    assert (await gate.prove("token", proxy, **behind("", token_for("alice")))).original == "alice"
    assert (await gate.prove("token", token_for("carol"))).original == ""
    assert "did not pass on" in await gate.refusal("token", proxy, original=Original("alice"))
    assert "different role" in await gate.refusal("token", proxy, **behind("alice", token_for("bob")))
    assert "expired" in await gate.refusal("token", proxy, **behind("alice", token_for("alice", exp=1)))


async def test_an_address_that_fails_often_waits_and_right_credentials_never_do(gate: TestedGate) -> None:
    gate.use(**SECURE)
    loop = asyncio.get_running_loop()
    for _ in range(19):
        await gate.refusal("token", "rubbish")
    assert loop.time() < 0.5
    await gate.refusal("token", "rubbish")
    assert loop.time() >= 1.0
    before = loop.time()
    await gate.prove("token", token_for("alice"))
    await gate.refusal("token", "rubbish", address="10.0.0.2:1")
    assert loop.time() == before
    # Very many refusals do not all wait.
    many = [asyncio.ensure_future(gate.refusal("token", "rubbish")) for _ in range(1000)]
    await asyncio.sleep(0.1)
    assert sum(one.done() for one in many) == 1000 - DELAYED_MAX
    await asyncio.gather(*many)


async def test_an_error_of_a_method_never_reaches_a_client(
    gate: TestedGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(methods: AuthenticationMethods, shown: Shown) -> Caller:
        raise CredentialsUnavailableError("https://issuer.internal does not answer")

    gate.use(**SECURE)
    monkeypatch.setattr(AuthenticationMethods, "authenticate", fail)
    assert "issuer.internal" in await gate.refusal("token", token_for("alice"))


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1:5", "10.0.0.1"),
        ("[2001:db8:1:2:3::4]:5", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:3::4:5", "2001:db8:1:2::/64"),
        ("[::ffff:10.0.0.1]:5", "10.0.0.1"),
        ("[fe80::1%eth0]:5", "fe80::/64"),
        ("unknown:0", "unknown"),
        ("", ""),
    ],
)
def test_failures_count_for_the_network_of_an_address(address: str, network: str) -> None:
    assert network_of(address) == network


async def test_only_so_many_addresses_are_remembered() -> None:
    attempts = Attempts(lambda: 0.0)
    for _ in range(20):
        attempts.fail("10.0.0.1:1")
    assert attempts.is_exhausted("10.0.0.1:2")
    for number in range(ADDRESSES_MAX):
        attempts.fail(f"host-{number}:1")
    assert not attempts.is_exhausted("10.0.0.1:1")


async def test_accepted_clients_are_noted_if_wanted(gate: TestedGate) -> None:
    gate.use(**SECURE, audit_successes=True)
    await gate.prove("token", token_for("alice"))
    (event,) = gate.audit.events
    assert (event.outcome, event.caller.role, event.caller.expires_s) == ("allowed", "alice", math.inf)
