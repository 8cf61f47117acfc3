"""Laws of tokens: only a signature of the configured key proves a role, and no bytes cause another error."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from anabranch.rights.callers import Caller, is_role
from anabranch.security.methods.token_keys import TokenKey, public_key, secret_key
from anabranch.security.methods.tokens import TokenRules, judge, peek, text_of, verify
from anabranch.security.refusals import RefusedCredentialsError

SECRET = b"s" * 32
PUBLIC_PEM = (
    rsa.generate_private_key(public_exponent=65537, key_size=2048)
    .public_key()
    .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
)
KEYS = {"secret": secret_key(SECRET), "public": public_key(PUBLIC_PEM)}
NOW_S = 1_800_000_000.0

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=20)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=5), scalars, max_size=2)
algorithms = st.sampled_from(["none", "None", "HS256", "HS512", "RS256", "ES256", "PS256", "", "dir"])
headers = st.fixed_dictionaries(
    {"alg": algorithms | values},
    optional={"kid": values, "typ": values, "crit": values, "b64": values, "jwk": values, "x5c": values},
)
times = st.floats(min_value=0, max_value=2 * NOW_S) | values
claims = st.fixed_dictionaries(
    {}, optional={"sub": values, "exp": times, "nbf": times, "aud": values, "iss": values, "role": values}
)
signing_keys = st.sampled_from([SECRET, PUBLIC_PEM, b"", b"another secret that is long enough"])


def encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def made(header: Any, content: Any, key: bytes) -> bytes:
    """Return a token that is signed with HS256, also if its header says otherwise."""
    text = encoded(json.dumps(header).encode()) + b"." + encoded(json.dumps(content).encode())
    return text + b"." + encoded(hmac.digest(key, text, "sha256"))


def prove(credentials: bytes, key: TokenKey, rules: TokenRules = TokenRules()) -> Caller | None:  # noqa: B008
    """Return the caller of a token, or None if it is refused; any other error fails the test."""
    try:
        token = text_of(credentials)
        peek(token)
        return judge(verify(token, key), rules, NOW_S)
    except RefusedCredentialsError:
        return None


@given(st.binary(max_size=200) | st.text(alphabet="abcXYZ019-_=.", max_size=200).map(str.encode))
def test_no_bytes_prove_a_role_or_fail_otherwise(credentials: bytes) -> None:
    assert all(prove(credentials, key) is None for key in KEYS.values())


@given(headers, claims, signing_keys)
def test_only_the_configured_key_and_its_algorithm_prove_a_role(
    header: dict[str, Any], content: dict[str, Any], key: bytes
) -> None:
    token = made(header, content, key)
    assert prove(token, KEYS["public"]) is None
    caller = prove(token, KEYS["secret"])
    if caller is not None:
        assert (key, header["alg"]) == (SECRET, "HS256")
        assert is_role(caller.role)
        assert caller.expires_s > NOW_S
        assert not isinstance(content.get("nbf"), int | float) or content["nbf"] <= NOW_S


@given(st.integers(min_value=0, max_value=200), st.integers(min_value=0, max_value=255))
def test_a_changed_byte_makes_a_token_invalid(at: int, byte: int) -> None:
    token = made({"alg": "HS256"}, {"sub": "alice", "exp": NOW_S + 60}, SECRET)
    assert prove(token, KEYS["secret"]) == Caller("alice", method="token", expires_s=NOW_S + 60)
    at %= len(token)
    changed = token[:at] + bytes([byte]) + token[at + 1 :]
    # The last digit of a signature has unused bits, and whitespace around a token is cut off.
    if at != len(token) - 1 and changed != token:
        assert prove(changed, KEYS["secret"]) is None


@given(st.sampled_from(["broker", "other"]) | values)
def test_a_token_for_another_audience_is_refused(audience: Any) -> None:
    caller = prove(
        made({"alg": "HS256"}, {"sub": "alice", "aud": audience}, SECRET),
        KEYS["secret"],
        TokenRules(audiences=("broker",)),
    )
    names_broker = audience == "broker" or (isinstance(audience, list) and "broker" in audience)
    assert (caller is not None) == names_broker
