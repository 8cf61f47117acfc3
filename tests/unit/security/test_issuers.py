"""Key sets and issuers: which keys verify a token, and when they are fetched."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from anabranch.errors import InvalidConfigurationError
from anabranch.security.methods.tokens import TokenRules, judge
from anabranch.security.refusals import RefusedCredentialsError
from tests.harness.gates import TestedGate, data_url
from tests.harness.security import SECRET_KEY, token_for

ISSUER = "https://issuer.example"
KEYS_URL = f"{ISSUER}/keys"
KEYS = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048) for name in ("one", "two")}
OPENID = {"authentication_providers": "openid", "openid_issuers": ISSUER, "openid_audiences": "broker,other"}


def jwk(name: str, **fields: Any) -> dict[str, Any]:
    public = json.loads(RSAAlgorithm.to_jwk(KEYS[name].public_key()))
    return {"kid": name, "use": "sig", **public, **fields}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def issue(gate: TestedGate, name: str = "one", kid: str | None = "", **claims: Any) -> str:
    """Return a token of the issuer for `alice`; its key id is the name of the key unless it is given."""
    headers = {} if kid is None else {"kid": kid or name}
    given = {"sub": "alice", "iss": ISSUER, "aud": "broker", "exp": gate.now_s + 600, **claims}
    given = {key: value for key, value in given.items() if value is not None}
    return jwt.encode(given, KEYS[name], algorithm="RS256", headers=headers)


@pytest.fixture
def issuer(gate: TestedGate) -> TestedGate:
    """A gate that trusts an issuer with one key."""
    document = {"issuer": ISSUER, "jwks_uri": KEYS_URL}
    gate.documents[f"{ISSUER}/.well-known/openid-configuration"] = json.dumps(document).encode()
    gate.documents[KEYS_URL] = key_set(jwk("one"))
    return gate.use(**OPENID)


async def test_an_issuer_is_discovered_and_its_keys_are_fetched_once(issuer: TestedGate) -> None:
    callers = await asyncio.gather(*(issuer.token(issue(issuer)) for _ in range(20)))
    assert {caller.role for caller in callers} == {"alice"}
    assert callers[0].expires_s == pytest.approx(issuer.now_s + 600, abs=2)
    assert issuer.fetched == [f"{ISSUER}/.well-known/openid-configuration", KEYS_URL]


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://evil.example"}, "not trusted"),
        ({"iss": ISSUER + "/"}, "not trusted"),
        ({"iss": None}, "not trusted"),
        ({"iss": [ISSUER]}, "not trusted"),
        ({"aud": "elsewhere"}, "audience"),
        ({"aud": None}, "audience"),
        ({"exp": None}, "never expires"),
        ({"exp": 1}, "expired"),
        ({"sub": None}, "no role"),
    ],
)
async def test_claims_of_a_wrong_token_are_refused(
    issuer: TestedGate, claims: dict[str, Any], reason: str
) -> None:
    given = {"sub": "alice", "iss": ISSUER, "aud": "broker", "exp": issuer.now_s + 600, **claims}
    payload = json.dumps({key: value for key, value in given.items() if value is not None}).encode()
    token = jwt.PyJWS().encode(payload, KEYS["one"], "RS256", headers={"kid": "one"})
    assert reason in await issuer.refusal("token", token)


def test_claims_of_another_issuer_are_refused_also_after_their_signature_was_right() -> None:
    with pytest.raises(RefusedCredentialsError) as caught:
        judge({"sub": "alice", "iss": "https://other.example"}, TokenRules(issuer=ISSUER), 0.0)
    assert "another issuer" in caught.value.reason


async def test_a_token_of_another_key_is_refused(issuer: TestedGate) -> None:
    assert "Signature" in await issuer.refusal("token", issue(issuer, "two", "one"))
    symmetric = jwt.encode({"iss": ISSUER, "sub": "a"}, SECRET_KEY, algorithm="HS256", headers={"kid": "one"})
    assert "alg" in await issuer.refusal("token", symmetric)


async def test_a_new_key_is_fetched_at_a_bounded_rate(issuer: TestedGate) -> None:
    await issuer.token(issue(issuer))
    issuer.fetched.clear()
    # Guessed key ids have the keys fetched at most once in each period.
    for number in range(30):
        assert "no key" in await issuer.refusal("token", issue(issuer, "two", f"guess {number}"))
    assert issuer.fetched == []
    await asyncio.sleep(300)
    issuer.documents[KEYS_URL] = key_set(jwk("one"), jwk("two"))
    assert (await issuer.token(issue(issuer, "two"))).role == "alice"
    assert len(issuer.fetched) == 2


async def test_known_keys_never_wait_for_a_fetch(issuer: TestedGate) -> None:
    await issuer.token(issue(issuer))
    loop = asyncio.get_running_loop()
    await asyncio.sleep(300)
    unknown = asyncio.ensure_future(issuer.refusal("token", issue(issuer, "two")))
    await asyncio.sleep(0)
    before = loop.time()
    await issuer.token(issue(issuer))
    assert loop.time() == before
    await unknown


async def test_keys_are_fetched_again_in_time_and_used_until_then(gate: TestedGate) -> None:
    gate.documents["https://keys.example/set"] = key_set(jwk("one"))
    gate.use(token_key_set="https://keys.example/set", openid_refresh_s=100.0)
    assert (await gate.token(issue(gate))).role == "alice"
    gate.documents.clear()
    await asyncio.sleep(110)
    assert (await gate.token(issue(gate))).role == "alice"
    await asyncio.sleep(1)
    assert len(gate.fetched) == 2
    # The keys of an issuer that stays away are trusted for a while, and no longer.
    await asyncio.sleep(30)
    assert "cannot be read" in await gate.refusal("token", issue(gate))
    assert "a moment ago" in await gate.refusal("token", issue(gate))
    gate.documents["https://keys.example/set"] = key_set(jwk("two"))
    await asyncio.sleep(10)
    assert (await gate.token(issue(gate, "two"))).role == "alice"
    assert "no key" in await gate.refusal("token", issue(gate, "one"))


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"issuer":"https://evil.example","jwks_uri":"https://issuer.example/keys"}',
        b'{"issuer":"https://issuer.example","jwks_uri":"http://issuer.example/keys"}',
        b'{"issuer":"https://issuer.example","jwks_uri":"file:///etc/passwd"}',
        b'{"issuer":"https://issuer.example"}',
    ],
)
async def test_a_discovery_document_that_lies_is_refused(issuer: TestedGate, document: bytes) -> None:
    issuer.documents[f"{ISSUER}/.well-known/openid-configuration"] = document
    assert await issuer.refusal("token", issue(issuer))
    assert KEYS_URL not in issuer.fetched


async def test_a_key_set_may_be_a_file_that_changes(gate: TestedGate, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(jwk("one")))
    gate.use(token_key_set=str(file))
    assert (await gate.token(issue(gate, kid=None))).role == "alice"
    file.write_bytes(key_set(jwk("one"), jwk("two")))
    gate.clock.jump(by_ms=1500)
    assert (await gate.token(issue(gate, "two"))).role == "alice"
    # With several keys, a token has to name its key.
    assert "no key" in await gate.refusal("token", issue(gate, kid=None))
    assert gate.fetched == []


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "oct", "kid": "one", "k": "AAAA"},
        jwk("one", use="enc"),
        json.loads(RSAAlgorithm.to_jwk(KEYS["one"])),
        jwk("one", alg="HS256"),
        jwk("one", alg="none"),
        {"kty": "RSA", "kid": "one"},
        {"kty": ["RSA"]},
        {"kty": "RSA", "kid": "one", "n": "AQAB", "e": "AQAB"},
        {},
    ],
)
def test_keys_that_must_not_verify_tokens_are_left_out(
    gate: TestedGate, tmp_path: Path, key: dict[str, Any]
) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(key))
    with pytest.raises(InvalidConfigurationError, match="no public key"):
        gate.use(token_key_set=str(file))


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"authentication_providers": "openid"}, "openid_issuers"),
        ({**OPENID, "openid_audiences": ""}, "openid_audiences"),
        ({**OPENID, "openid_issuers": "http://issuer.example"}, "https"),
        ({**OPENID, "openid_issuers": "issuer.example"}, "not the http"),
        ({"token_key_set": "http://keys.example"}, "https"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    gate: TestedGate, settings: dict[str, str], advice: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=advice):
        gate.use(**settings)


async def test_tokens_of_a_key_and_of_an_issuer_are_accepted_side_by_side(issuer: TestedGate) -> None:
    issuer.use(
        **{**OPENID, "authentication_providers": "token,openid"},
        token_secret_key=data_url(SECRET_KEY),
    )
    assert (await issuer.token(token_for("bob"))).role == "bob"
    assert (await issuer.token(issue(issuer))).role == "alice"
    assert await issuer.refusal("token", "rubbish")


async def test_an_issuer_out_of_reach_costs_an_address_nothing(gate: TestedGate) -> None:
    gate.use(**OPENID)
    await gate.refusal("token", issue(gate))
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(100):
        await gate.refusal("token", issue(gate))
    assert loop.time() == began
