"""Tokens that are verified with key sets: a configured set, or those of trusted issuers (OpenID Connect)."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from anabranch.errors import CredentialsUnavailableError, InvalidConfigurationError
from anabranch.rights.callers import Caller
from anabranch.security.methods.token_keys import TokenKey
from anabranch.security.methods.tokens import TokenRules, judge, peek, verify
from anabranch.security.outside import Fetch
from anabranch.security.refusals import RefusedCredentialsError

DISCOVERY: Final = "/.well-known/openid-configuration"


class KeySetTokens:
    """Verifies tokens with the key that their key id names in one set."""

    def __init__(
        self, find: Callable[[str], Awaitable[TokenKey]], rules: TokenRules, now_s: Callable[[], float]
    ) -> None:
        """`find` raises RefusedCredentialsError for an unknown key id."""
        self._find = find
        self._rules = rules
        self._now_s = now_s

    async def prove(self, token: str) -> Caller:
        header, _ = peek(token)
        return judge(verify(token, await self._find(_key_id(header))), self._rules, self._now_s())


class IssuedTokens:
    """Verifies tokens of trusted issuers, each with the keys of its own issuer."""

    def __init__(self, issuers: Mapping[str, KeySetTokens]) -> None:
        self._issuers = issuers

    async def prove(self, token: str) -> Caller:
        _, claims = peek(token)
        issuer = claims.get("iss")
        found = self._issuers.get(issuer) if isinstance(issuer, str) else None
        if found is None:
            raise RefusedCredentialsError(f"the issuer {str(issuer)[:200]!r} is not trusted")
        return await found.prove(token)


def rules_of(rules: TokenRules, issuer: str) -> TokenRules:
    """Return the rules for tokens of one issuer."""
    return dataclasses.replace(rules, issuer=issuer, must_expire=True)


def discover(issuer: str, fetch: Fetch, *, require_https: bool) -> Callable[[], Awaitable[bytes]]:
    """Return a function that finds the key set of an issuer by its discovery document, and fetches it."""
    check_url(issuer, require_https=require_https)

    async def fetch_keys() -> bytes:
        document = await fetch(issuer.rstrip("/") + DISCOVERY)
        try:
            found = msgspec.json.decode(document, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise CredentialsUnavailableError(f"{issuer} has no discovery document") from None
        if found.get("issuer") != issuer:
            raise CredentialsUnavailableError(f"{issuer} has the discovery document of another issuer")
        address = found.get("jwks_uri")
        try:
            check_url(str(address), require_https=require_https)
        except InvalidConfigurationError as error:
            raise CredentialsUnavailableError(str(error)) from None
        return await fetch(str(address))

    return fetch_keys


def check_url(url: str, *, require_https: bool) -> None:
    """Raise InvalidConfigurationError unless keys may be fetched from this URL."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("https", "http") and bool(parts.hostname)
    except ValueError:
        valid = False
    if not valid:
        raise InvalidConfigurationError(f"{url[:200]!r} is not the http or https URL of an issuer")
    if require_https and parts.scheme != "https":
        raise InvalidConfigurationError(
            f"{url} is not an https URL, so its keys could be forged; "
            "openid_require_https=false allows it for tests"
        )


def _key_id(header: Mapping[str, Any]) -> str:
    found = header.get("kid", "")
    return found if isinstance(found, str) else ""
