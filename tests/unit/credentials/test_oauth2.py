"""OAuth2 against a scripted issuer: the tokens it is asked for, their life, and its failures."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch import AuthenticationOauth2
from anabranch.credentials import oauth2
from anabranch.credentials.asking import http_headers, proof, renew
from anabranch.credentials.fetching import Fetched, IssuerRequest
from anabranch.errors import AuthenticationError, CredentialsUnavailableError, InvalidConfigurationError

TIMEOUT_S = 5.0
ISSUER = "https://issuer.example/"
KEY = {"client_id": "alice", "client_secret": "sesame"}
BY_ID = {"issuer_url": ISSUER, **KEY, "audience": "orders"}


class ScriptedIssuer:
    """Answers requests without a network; each token is another one."""

    def __init__(self) -> None:
        self.requests: list[IssuerRequest] = []
        self.expires_in: Any = 100
        self.issued = 0
        self.replace: dict[str, Fetched] = {}

    async def fetch(self, request: IssuerRequest) -> Fetched:
        self.requests.append(request)
        await asyncio.sleep(0)
        if request.url in self.replace:
            return self.replace[request.url]
        if request.form is None:
            return answer({"token_endpoint": "https://issuer.example/token"})
        self.issued += 1
        return answer({"access_token": f"token-{self.issued}", "expires_in": self.expires_in})


def answer(content: object, status: int = 200) -> Fetched:
    return Fetched(status, json.dumps(content).encode())


@pytest.fixture
def issuer() -> ScriptedIssuer:
    return ScriptedIssuer()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1000.0]
    monkeypatch.setattr(oauth2, "monotonic_s", lambda: moment[0])
    return moment


def made(issuer: ScriptedIssuer, **parameters: str) -> AuthenticationOauth2:
    return AuthenticationOauth2(json.dumps(parameters or BY_ID), fetch=issuer.fetch)


async def test_the_token_endpoint_is_discovered_and_asked_with_the_clients_secret(
    issuer: ScriptedIssuer,
) -> None:
    authentication = made(issuer)
    assert authentication.method_name == "token"
    assert await proof(authentication, "broker", TIMEOUT_S) == b"token-1"
    discovery, asked = issuer.requests
    assert discovery.url == "https://issuer.example/.well-known/openid-configuration"
    assert asked.url == "https://issuer.example/token"
    assert dict(asked.form or ()) == {"grant_type": "client_credentials", **KEY, "audience": "orders"}
    assert (await http_headers(authentication, "broker", TIMEOUT_S))["Authorization"] == "Bearer token-1"


async def test_a_token_is_kept_for_nine_tenths_of_its_life(issuer: ScriptedIssuer, now: list[float]) -> None:
    authentication = made(issuer)
    assert await proof(authentication, "broker", TIMEOUT_S) == b"token-1"
    now[0] += 89.0
    assert await proof(authentication, "broker", TIMEOUT_S) == b"token-1"
    now[0] += 2.0
    assert await proof(authentication, "broker", TIMEOUT_S) == b"token-2"


async def test_a_refused_token_is_replaced_but_not_at_full_speed(
    issuer: ScriptedIssuer, now: list[float]
) -> None:
    authentication = made(issuer)
    assert await proof(authentication, "broker", TIMEOUT_S) == b"token-1"
    renew(authentication)
    assert await proof(authentication, "broker", TIMEOUT_S) == b"token-1"
    now[0] += oauth2.RENEWED_AFTER_S
    renew(authentication)
    assert await proof(authentication, "broker", TIMEOUT_S) == b"token-2"


async def test_connections_that_open_together_ask_the_issuer_once(issuer: ScriptedIssuer) -> None:
    authentication = made(issuer)
    found = await asyncio.gather(*(proof(authentication, "broker", TIMEOUT_S) for _ in range(5)))
    assert set(found) == {b"token-1"}
    assert issuer.issued == 1


def as_data(document: str) -> str:
    return "data:application/json;base64," + base64.b64encode(document.encode()).decode()


@pytest.mark.parametrize("place", [lambda path: path.as_uri(), str, lambda path: as_data(path.read_text())])
async def test_the_key_lies_in_a_file_or_in_a_data_url(
    issuer: ScriptedIssuer, tmp_path: Path, place: Callable[[Path], str]
) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps({"type": "client_credentials", **KEY}))
    authentication = made(
        issuer, type="client_credentials", issuerUrl=ISSUER, privateKey=place(path), scope="a b"
    )
    assert await proof(authentication, "broker", TIMEOUT_S) == b"token-1"
    assert dict(issuer.requests[-1].form or ())["scope"] == "a b"


async def test_a_new_key_is_used_for_the_next_token(
    issuer: ScriptedIssuer, tmp_path: Path, now: list[float]
) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(KEY))
    authentication = made(issuer, issuer_url=ISSUER, private_key=path.as_uri())
    await proof(authentication, "broker", TIMEOUT_S)
    path.write_text(json.dumps({**KEY, "client_secret": "new"}))
    now[0] += 100.0
    await proof(authentication, "broker", TIMEOUT_S)
    assert dict(issuer.requests[-1].form or ())["client_secret"] == "new"


@pytest.mark.parametrize(
    ("url", "reply", "error", "text"),
    [
        ("token", answer({"error": "invalid_client"}, 401), AuthenticationError, "invalid_client"),
        ("token", answer({"error": "a\n" * 1000}, 400), AuthenticationError, "refused: (a ){99}a"),
        ("token", answer({}, 503), CredentialsUnavailableError, "503"),
        ("token", answer({}, 429), CredentialsUnavailableError, "429"),
        ("token", Fetched(200, b"<html>"), AuthenticationError, "without JSON"),
        ("token", answer({"expires_in": 5}), AuthenticationError, "without a token"),
        (".well-known/openid-configuration", answer({}), AuthenticationError, "no token endpoint"),
        (
            ".well-known/openid-configuration",
            answer({"token_endpoint": "http://issuer.example/token"}),
            AuthenticationError,
            "without TLS",
        ),
    ],
)
async def test_a_failure_of_the_issuer_is_typed(
    issuer: ScriptedIssuer, url: str, reply: Fetched, error: type[Exception], text: str
) -> None:
    issuer.replace[ISSUER + url] = reply
    with pytest.raises(error, match=text) as raised:
        await proof(made(issuer), "broker", TIMEOUT_S)
    assert type(raised.value) is error
    assert "sesame" not in str(raised.value)


async def test_a_key_file_that_is_no_key_is_not_shown(issuer: ScriptedIssuer, tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text('{"client_secret": "sesame"}')
    with pytest.raises(AuthenticationError, match="client_id") as raised:
        await proof(made(issuer, issuer_url=ISSUER, private_key=str(path)), "broker", TIMEOUT_S)
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize("expires_in", ["soon", None, [], "100", float("nan"), -1])
async def test_an_issuer_may_say_the_life_of_a_token_badly(
    issuer: ScriptedIssuer, expires_in: object
) -> None:
    issuer.expires_in = expires_in
    authentication = made(issuer)
    assert await proof(authentication, "broker", TIMEOUT_S) == b"token-1"
    assert await proof(authentication, "broker", TIMEOUT_S) == b"token-1"


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"issuer_url": ISSUER},
        {"issuer_url": "issuer.example", **KEY},
        {"issuer_url": ISSUER, "client_id": "alice"},
        {"issuer_url": ISSUER, **KEY, "type": "device_code"},
        {"issuer_url": ISSUER, **KEY, "audiance": "orders"},
        {"issuer_url": ISSUER, "private_key": "data:application/json"},
        {"issuer_url": ISSUER, "private_key": "data:application/json;base64,!"},
    ],
)
def test_wrong_parameters_are_refused_at_once(parameters: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigurationError):
        AuthenticationOauth2(json.dumps(parameters))


def test_no_secret_of_the_client_is_shown(issuer: ScriptedIssuer) -> None:
    authentication = made(issuer)
    assert "sesame" not in repr(authentication)
    assert "sesame" not in repr(IssuerRequest(ISSUER, tuple(KEY.items())))
