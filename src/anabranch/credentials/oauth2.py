"""OAuth2 client credentials: an issuer gives the application tokens, which brokers verify as any token.

The parameters are those of Pulsar's clients. A token is kept until most of its life is over.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from anabranch.aio import AttemptCancelled, SharedAttempts
from anabranch.credentials.authentication import bearer
from anabranch.credentials.fetching import Fetched, IssuerRequest, fetch, monotonic_s
from anabranch.credentials.parameters import one_of_names, parse_parameters, refuse_unknown
from anabranch.credentials.secret_sources import document_reader
from anabranch.errors import AuthenticationError, CredentialsUnavailableError, InvalidConfigurationError

Fetch = Callable[[IssuerRequest], Awaitable[Fetched]]

REFRESH_AT: Final = 0.9
"""Part of a token's life after which the next use asks for a new one."""

RENEWED_AFTER_S: Final = 5.0
"""Age at which a refused token is replaced; a broker that refuses all tokens must not burden the issuer."""

LIFETIME_S: Final = 3600.0
"""Life of a token whose issuer does not say."""

REASON_CHARACTERS_MAX: Final = 200
"""Length at which the reason of an issuer is cut in error texts."""

_NAMES: Final = {
    "type": ("type",),
    "issuer_url": ("issuer_url", "issuerUrl"),
    "private_key": ("private_key", "privateKey"),
    "audience": ("audience",),
    "scope": ("scope",),
    "client_id": ("client_id", "clientId"),
    "client_secret": ("client_secret", "clientSecret"),
    "tls_trust_certs_file_path": ("tls_trust_certs_file_path", "trustCertsFilePath"),
}
"""By parameter: its names in Pulsar's clients."""


@dataclass(frozen=True, slots=True)
class OAuth2Parameters:
    """The checked parameters; the id and secret of the client may lie in the document `read_key` reads."""

    issuer_url: str
    read_key: Callable[[], str] = field(repr=False)
    audience: str | None
    scope: str | None
    trust_file: str | None

    @classmethod
    def parse(cls, text: str) -> OAuth2Parameters:
        given = parse_parameters(text)
        refuse_unknown(given, (name for names in _NAMES.values() for name in names), "AuthenticationOauth2")
        found = {name: one_of_names(given, names) for name, names in _NAMES.items()}
        if (found["type"] or "client_credentials") != "client_credentials":
            raise InvalidConfigurationError(
                "type must be client_credentials; other OAuth2 flows do not exist here"
            )
        read_key = _key_reader(found)
        return cls(
            _issuer_url(found["issuer_url"] or ""),
            read_key,
            found["audience"],
            found["scope"],
            found["tls_trust_certs_file_path"],
        )


def _key_reader(found: Mapping[str, str | None]) -> Callable[[], str]:
    place, client_id, secret = found["private_key"], found["client_id"], found["client_secret"]
    if place is not None:
        return document_reader(place)
    if not client_id or not secret:
        raise InvalidConfigurationError(
            "AuthenticationOauth2 needs private_key, such as file:///path, or client_id and client_secret"
        )
    return partial(str, json.dumps({"client_id": client_id, "client_secret": secret}))


def _issuer_url(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise InvalidConfigurationError("issuer_url must be the https:// URL of the issuer of tokens")
    return url.rstrip("/")


@dataclass(frozen=True, slots=True)
class _Issued:
    token: str = field(repr=False)
    asked_at: float
    refresh_at: float


class AuthenticationOauth2:
    """The client credentials flow of OAuth2, with the parameters of Pulsar's clients in JSON:

    `issuer_url`; `private_key`, a `file://` or `data:` URL of a JSON document with client_id and
    client_secret, or both as parameters; `audience` and `scope` if the issuer needs them;
    `tls_trust_certs_file_path` for an issuer whose certificate the system does not know. The key is read
    again for each new token.

    Example:
        key = {"issuer_url": "https://accounts.example", "client_id": "me", "client_secret": "secret"}
        credentials = AuthenticationOauth2(json.dumps(key))
    """

    method_name = "token"

    def __init__(self, auth_params_string: str, *, fetch: Fetch = fetch) -> None:
        self._parameters = OAuth2Parameters.parse(auth_params_string)
        self._fetch = fetch
        self._issued: _Issued | None = None
        self._asking: SharedAttempts[asyncio.AbstractEventLoop, _Issued] = SharedAttempts()

    def __repr__(self) -> str:
        return f"AuthenticationOauth2(issuer_url={self._parameters.issuer_url!r})"

    @classmethod
    def from_parameters(cls, text: str) -> AuthenticationOauth2:
        """Return the flow in Pulsar's `authParams`: JSON with the type, the issuer and the key file."""
        return cls(text)

    async def auth_data(self, host: str) -> bytes:
        """Return the credentials for a broker, as its connections carry them."""
        return (await self._token()).encode()

    async def http_headers(self, host: str) -> Mapping[str, str]:
        """Return the headers that prove the role in a request over HTTP."""
        return bearer(await self._token())

    async def _token(self) -> str:
        issued = self._issued
        if issued is None or monotonic_s() >= issued.refresh_at:
            try:
                issued = await self._asking.join(asyncio.get_running_loop(), self._new_token)
            except AttemptCancelled:
                raise CredentialsUnavailableError("the event loop that asked for a token ended") from None
        return issued.token

    def renew(self) -> None:
        """Ask for another token at the next use."""
        if self._issued is not None and monotonic_s() >= self._issued.asked_at + RENEWED_AFTER_S:
            self._issued = None

    async def _new_token(self) -> _Issued:
        given = self._parameters
        client_id, secret = _client(given.read_key())
        discovery = await self._ask(
            IssuerRequest(f"{given.issuer_url}/.well-known/openid-configuration", None, given.trust_file)
        )
        endpoint = discovery.get("token_endpoint")
        if not isinstance(endpoint, str) or urlsplit(endpoint).scheme not in ("http", "https"):
            raise AuthenticationError(f"the issuer {given.issuer_url} names no token endpoint")
        if endpoint.startswith("http:") and given.issuer_url.startswith("https:"):
            raise AuthenticationError(f"the issuer {given.issuer_url} names a token endpoint without TLS")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        form |= {} if given.audience is None else {"audience": given.audience}
        form |= {} if given.scope is None else {"scope": given.scope}
        asked_at = monotonic_s()
        answer = await self._ask(IssuerRequest(endpoint, tuple(form.items()), given.trust_file))
        token, lifetime = answer.get("access_token"), answer.get("expires_in", LIFETIME_S)
        if not isinstance(token, str) or not token.isascii() or not token.strip():
            raise AuthenticationError(f"the issuer {given.issuer_url} answered without a token")
        self._issued = _Issued(token.strip(), asked_at, asked_at + REFRESH_AT * _lifetime_s(lifetime))
        return self._issued

    async def _ask(self, request: IssuerRequest) -> dict[str, Any]:
        answer = await self._fetch(request)
        where = f"the issuer at {request.url}"
        try:
            content = json.loads(answer.body)
        except ValueError:
            content = None
        if answer.status >= 500 or answer.status == 429:
            raise CredentialsUnavailableError(f"{where} answered HTTP status {answer.status}")
        if not isinstance(content, dict):
            raise AuthenticationError(f"{where} answered HTTP status {answer.status} without JSON")
        if answer.status != 200:
            found = [str(content[name]) for name in ("error", "error_description") if name in content]
            reason = " ".join(" ".join(found).split())[:REASON_CHARACTERS_MAX]
            raise AuthenticationError(f"{where} refused: {reason or f'HTTP status {answer.status}'}")
        return content


def _lifetime_s(answered: object) -> float:
    try:
        found = float(str(answered))
    except ValueError:
        return LIFETIME_S
    return found if 0 < found < math.inf else LIFETIME_S


def _client(document: str) -> tuple[str, str]:
    """Return the id and the secret of the client in a key document."""
    try:
        content = json.loads(document)
        client_id, secret = content["client_id"], content["client_secret"]
    except (ValueError, KeyError, TypeError):
        # The document is a secret and is not shown.
        raise AuthenticationError(
            "private_key is not a JSON document with client_id and client_secret"
        ) from None
    if not isinstance(client_id, str) or not isinstance(secret, str):
        raise AuthenticationError("client_id and client_secret of private_key must be text")
    return client_id, secret
