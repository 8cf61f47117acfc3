"""Tokens: signed claims (JWT), of which one is the role.

Signature, times and audience are checked here, on the clock of the broker. A claim of a token never decides
how the token is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from anabranch.rights.callers import Caller, is_role
from anabranch.security.methods.token_keys import TokenKey
from anabranch.security.refusals import RefusedCredentialsError

TOKEN_BYTES_MAX: Final = 16 * 2**10
CLAIM_NUMBER_MAX: Final = 2.0**53
METHOD: Final = "token"


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The claims that a token must have besides a valid signature."""

    role_claim: str = "sub"
    audience_claim: str = "aud"
    audiences: tuple[str, ...] = ()
    """A token must name one of these; any audience will do if there are none."""
    issuer: str = ""
    skew_s: float = 0.0
    must_expire: bool = False


def verify(token: str, key: TokenKey) -> Mapping[str, Any]:
    """Return the claims of a token whose signature is right; raises RefusedCredentialsError."""
    import jwt

    try:
        found = _signatures().decode_complete(token, key.key, algorithms=list(key.algorithms))
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise RefusedCredentialsError(f"the token is not valid: {error}") from None
    if "crit" in found["header"]:
        raise RefusedCredentialsError("the token has critical headers, which are not supported")
    try:
        return msgspec.json.decode(found["payload"], type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RefusedCredentialsError("the claims of the token are not a JSON object") from None


def peek(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the header and claims of a token that is NOT verified, to find the key that must verify it."""
    import jwt

    try:
        found = _signatures().decode_complete(token, options={"verify_signature": False})
        return found["header"], msgspec.json.decode(found["payload"], type=dict[str, Any])
    except (jwt.PyJWTError, ValueError, TypeError, msgspec.MsgspecError, RecursionError):
        raise RefusedCredentialsError("the token cannot be read") from None


@cache
def _signatures() -> Any:
    import jwt

    return jwt.PyJWS(options={"enforce_minimum_key_length": True})


def judge(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> Caller:
    """Return the caller that verified claims name; raises RefusedCredentialsError."""
    expires_s = _time(claims, "exp", math.inf)
    if expires_s == math.inf and rules.must_expire:
        raise RefusedCredentialsError("the token never expires, which is not allowed")
    if now_s >= expires_s + rules.skew_s:
        raise RefusedCredentialsError(f"the token expired {now_s - expires_s:.0f} s ago")
    begins_s = _time(claims, "nbf", 0.0)
    if now_s < begins_s - rules.skew_s:
        raise RefusedCredentialsError(f"the token is valid only in {begins_s - now_s:.0f} s")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise RefusedCredentialsError("the token is of another issuer")
    _check_audience(claims, rules)
    return Caller(_role(claims, rules.role_claim), method=METHOD, expires_s=expires_s + rules.skew_s)


def text_of(credentials: bytes) -> str:
    """Return the text of a token; raises RefusedCredentialsError for bytes that cannot be a token."""
    if not credentials:
        raise RefusedCredentialsError("the token is missing")
    if len(credentials) > TOKEN_BYTES_MAX:
        raise RefusedCredentialsError(f"the token has {len(credentials)} bytes")
    try:
        return credentials.decode("ascii").strip()
    except UnicodeDecodeError:
        raise RefusedCredentialsError("the token is not ASCII text") from None


class StaticTokens:
    """Verifies tokens with one configured key."""

    def __init__(self, key: Callable[[], TokenKey], rules: TokenRules, now_s: Callable[[], float]) -> None:
        self._key = key
        self._rules = rules
        self._now_s = now_s

    async def prove(self, token: str) -> Caller:
        return judge(verify(token, self._key()), self._rules, self._now_s())


def _time(claims: Mapping[str, Any], name: str, default: float) -> float:
    value = claims.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= CLAIM_NUMBER_MAX:
        raise RefusedCredentialsError(f"the claim {name} of the token is not a time")
    return float(value)


def _check_audience(claims: Mapping[str, Any], rules: TokenRules) -> None:
    if not rules.audiences:
        return
    named = claims.get(rules.audience_claim)
    found = named if isinstance(named, list) else [named]
    if not any(isinstance(one, str) and one in rules.audiences for one in found):
        raise RefusedCredentialsError("the token is for another audience")


def _role(claims: Mapping[str, Any], name: str) -> str:
    role = claims.get(name)
    if isinstance(role, list) and role:
        # As in Pulsar, the first element of a list is the role.
        role = role[0]
    if not isinstance(role, str):
        raise RefusedCredentialsError(f"the token has no role in its claim {name!r}")
    if not is_role(role):
        raise RefusedCredentialsError(f"the claim {name!r} of the token is not a valid role")
    return role
