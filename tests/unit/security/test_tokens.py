"""Tokens: keys, algorithms, times, audiences and roles."""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from anabranch.errors import InvalidConfigurationError
from tests.harness.gates import TestedGate, data_url
from tests.harness.security import SECRET_KEY, SECURE, token_for

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def public_bytes(key: Any, encoding: Encoding = Encoding.PEM) -> bytes:
    data: bytes = key.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
    return data


def secret(**settings: Any) -> dict[str, Any]:
    return {"token_secret_key": data_url(SECRET_KEY), **settings}


def public(key: Any = RSA_KEY, **settings: Any) -> dict[str, Any]:
    return {"token_public_key": data_url(public_bytes(key)), **settings}


def forged(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """Return a token with the given signature, which no key of the broker made."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_a_secret_verifies_all_its_algorithms(gate: TestedGate, algorithm: str) -> None:
    gate.use(**secret())
    assert (await gate.token(token_for("alice", algorithm=algorithm))).role == "alice"


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
async def test_a_public_key_verifies_all_its_algorithms(
    gate: TestedGate, algorithm: str, encoding: Encoding
) -> None:
    gate.use(token_public_key=data_url(public_bytes(RSA_KEY, encoding)))
    assert (await gate.token(token_for("alice", algorithm=algorithm, key=RSA_KEY))).role == "alice"


async def test_a_key_of_an_elliptic_curve_verifies_its_algorithm(gate: TestedGate) -> None:
    gate.use(**public(EC_KEY))
    assert (await gate.token(token_for("alice", algorithm="ES256", key=EC_KEY))).role == "alice"


async def test_a_configured_algorithm_is_the_only_one(gate: TestedGate) -> None:
    gate.use(**public(token_public_algorithm="RS512"))
    assert (await gate.token(token_for("alice", algorithm="RS512", key=RSA_KEY))).role == "alice"
    assert "alg" in await gate.refusal("token", token_for("alice", algorithm="RS256", key=RSA_KEY))


@pytest.mark.parametrize(
    "alg", ["none", "None", "NONE", "", None, "HS256", "ES256", "RS256 ", 5, ["RS256"], {}]
)
async def test_a_token_cannot_choose_its_algorithm(gate: TestedGate, alg: Any) -> None:
    gate.use(**public())
    for signature in (b"", b"x"):
        assert await gate.refusal("token", forged({"alg": alg, "typ": "JWT"}, {"sub": "admin"}, signature))


async def test_a_public_key_is_never_a_secret(gate: TestedGate) -> None:
    gate.use(**public())
    for encoding in (Encoding.PEM, Encoding.DER):
        token = signed({"alg": "HS256"}, public_bytes(RSA_KEY, encoding))
        assert "alg" in await gate.refusal("token", token)


def signed(header: dict[str, Any], key: bytes) -> str:
    """Return a token of the role admin with any header, signed with a secret."""
    token = forged(header, {"sub": "admin"}).rstrip(".")
    signature = base64.urlsafe_b64encode(hmac.digest(key, token.encode(), "sha256"))
    return f"{token}.{signature.rstrip(b'=').decode()}"


@pytest.mark.parametrize(
    "header",
    [
        {"jwk": {"kty": "oct", "k": base64.urlsafe_b64encode(b"k" * 64).decode()}},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/keys"},
        {"kid": "../../dev/null"},
    ],
)
async def test_headers_that_name_a_key_have_no_effect(gate: TestedGate, header: dict[str, Any]) -> None:
    gate.use(**secret())
    assert "Signature" in await gate.refusal("token", signed({"alg": "HS256", **header}, b"k" * 64))
    assert (await gate.token(signed({"alg": "HS256", **header}, SECRET_KEY))).role == "admin"


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"crit": ["b64"], "b64": True}, {"kid": 5}])
async def test_headers_that_change_the_meaning_of_a_token_are_refused(
    gate: TestedGate, header: dict[str, Any]
) -> None:
    gate.use(**secret())
    assert await gate.refusal("token", signed({"alg": "HS256", **header}, SECRET_KEY))


async def test_times_are_enforced_on_the_clock_of_the_broker(gate: TestedGate) -> None:
    gate.use(**secret())
    now = gate.now_s
    caller = await gate.token(token_for("alice", exp=now + 10, nbf=now))
    assert caller.expires_s == now + 10
    assert "expired" in await gate.refusal("token", token_for("alice", exp=now))
    assert "only in" in await gate.refusal("token", token_for("alice", nbf=now + 5))
    gate.clock.jump(by_ms=20_000)
    assert "expired 10 s ago" in await gate.refusal("token", token_for("alice", exp=now + 10))


async def test_clocks_may_differ_by_the_configured_time(gate: TestedGate) -> None:
    gate.use(**secret(token_clock_skew_s=5.0))
    now = gate.now_s
    caller = await gate.token(token_for("alice", exp=now - 4, nbf=now + 4))
    assert caller.expires_s == now + 1
    assert await gate.refusal("token", token_for("alice", exp=now - 5))
    assert await gate.refusal("token", token_for("alice", nbf=now + 6))


@pytest.mark.parametrize("value", ["soon", True, -1, 2.0**60, [], {}])
async def test_a_time_that_is_no_time_is_refused(gate: TestedGate, value: Any) -> None:
    gate.use(**secret())
    text = jwt.PyJWS().encode(json.dumps({"sub": "alice", "exp": value}).encode(), SECRET_KEY, "HS256")
    assert "not a time" in await gate.refusal("token", text)


async def test_a_token_names_the_audience_of_the_broker(gate: TestedGate) -> None:
    gate.use(**secret(token_audience="broker"))
    assert (await gate.token(token_for("alice", aud="broker"))).role == "alice"
    assert (await gate.token(token_for("alice", aud=["other", "broker"]))).role == "alice"
    for wrong in ("other", ["other"], [], 5, None, {"broker": 1}):
        assert "audience" in await gate.refusal("token", unchecked(aud=wrong))
    gate.use(**secret(token_audience="broker", token_audience_claim="to"))
    assert (await gate.token(unchecked(to="broker", aud="other"))).role == "alice"


def unchecked(**claims: Any) -> str:
    """Return a token whose claims the library that signs it would refuse."""
    return jwt.PyJWS().encode(json.dumps({"sub": "alice", **claims}).encode(), SECRET_KEY, "HS256")


async def test_a_claim_of_choice_is_the_role(gate: TestedGate) -> None:
    gate.use(**secret(token_role_claim="roles"))
    assert (await gate.token(token_for("x", roles="alice"))).role == "alice"
    assert (await gate.token(token_for("x", roles=["bob", "carol"]))).role == "bob"
    assert "no role" in await gate.refusal("token", token_for("x"))


@pytest.mark.parametrize(
    "role", ["", " alice", "a\nb", "a\x00", "x" * 257, None, 5, [], [5], {"a": 1}, "a\u202eb"]
)
async def test_a_role_is_a_short_printable_text(gate: TestedGate, role: Any) -> None:
    gate.use(**secret())
    assert "role" in await gate.refusal("token", unchecked(sub=role))


@pytest.mark.parametrize("claims", [b"[]", b'"alice"', b"null", b"\xff", b"{", b"[" * 100_000])
async def test_claims_that_are_no_object_are_refused(gate: TestedGate, claims: bytes) -> None:
    gate.use(**secret())
    assert await gate.refusal("token", jwt.PyJWS().encode(claims, SECRET_KEY, "HS256"))


async def test_a_large_token_is_refused_before_it_is_read(gate: TestedGate) -> None:
    gate.use(**secret())
    assert "bytes" in await gate.refusal("token", token_for("alice", pad="x" * 2**14))


@pytest.mark.parametrize("token", [b"", b"x" * 20_000, b"\xff\xfe", "ä.ö.ü".encode(), b"...", b"a.b", b" "])
async def test_bytes_that_are_no_token_are_refused(gate: TestedGate, token: bytes) -> None:
    gate.use(**secret())
    assert await gate.refusal("token", token)


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({}, "needs a key"),
        ({"token_secret_key": data_url(b"short")}, "at least 32"),
        ({"token_secret_key": data_url(public_bytes(RSA_KEY))}, "token_public_key"),
        ({"token_secret_key": "/nowhere/key"}, "cannot read /nowhere/key"),
        ({"token_secret_key": "file://host/key"}, "file:///path"),
        ({"token_secret_key": "data:,plain"}, "base64"),
        ({"token_secret_key": "data:;base64,?"}, "base64"),
        ({"token_public_key": data_url(b"rubbish")}, "PEM or DER"),
        ({"token_public_key": data_url(b"-----BEGIN PRIVATE KEY-----")}, "private key"),
        (public(token_public_algorithm="ES256"), "token_public_algorithm"),
        (public(token_public_algorithm="none"), "token_public_algorithm"),
        (public(token_public_algorithm="HS256"), "token_public_algorithm"),
        (public(ec.generate_private_key(ec.SECP192R1())), "not supported"),
        (secret(token_audience_claim="aud"), "token_audience"),
        (secret(anonymous_role="a\nb"), "anonymous_role"),
        (secret(authentication_providers="token,athenz"), "athenz"),
        (secret(authentication_providers=""), "authentication_providers"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(
    gate: TestedGate, settings: dict[str, Any], advice: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=advice):
        gate.use(**settings)


async def test_pulsars_class_names_are_accepted(gate: TestedGate) -> None:
    gate.use(
        **secret(
            authentication_providers="org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
        )
    )
    assert (await gate.token(token_for("alice"))).role == "alice"


async def test_a_key_file_is_read_again_when_it_changes(gate: TestedGate, tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    file.write_bytes(SECRET_KEY)
    gate.use(token_secret_key=f"file://{file}")
    new_key = b"n" * 48
    assert await gate.refusal("token", token_for("alice", key=new_key))
    file.write_bytes(new_key)
    gate.clock.jump(by_ms=1500)
    assert (await gate.token(token_for("alice", key=new_key))).role == "alice"
    assert await gate.refusal("token", token_for("alice"))
    # A mistaken or lost file does not end the service; the last key stays.
    file.write_bytes(b"short")
    gate.clock.jump(by_ms=1500)
    assert (await gate.token(token_for("alice", key=new_key))).role == "alice"
    file.unlink()
    gate.clock.jump(by_ms=1500)
    assert (await gate.token(token_for("alice", key=new_key))).role == "alice"


async def test_a_refusal_never_shows_the_token(gate: TestedGate) -> None:
    gate.use(**secret())
    for token in (token_for("alice", exp=1), token_for("alice", key=b"k" * 64), "secret-rubbish"):
        reason = await gate.refusal("token", token)
        assert token not in reason
        assert token.rpartition(".")[2] not in reason


async def test_tokens_without_an_expiry_are_refused_where_the_setting_says_so(gate: TestedGate) -> None:
    gate.use(**SECURE)
    assert (await gate.token(token_for("alice"))).role == "alice"
    gate.use(**SECURE, token_must_expire=True)
    assert "never expires" in await gate.refusal("token", token_for("alice"))
    assert (await gate.token(token_for("alice", exp=int(gate.now_s) + 60))).role == "alice"
