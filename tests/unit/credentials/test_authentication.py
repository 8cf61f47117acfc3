"""Credentials as the application gives them: forms, freshness, and secrets that nothing shows."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch import (
    Authentication,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
)
from anabranch.credentials.asking import REFRESH, checked_authentication, http_headers, proof
from anabranch.errors import AuthenticationError, InvalidConfigurationError

TIMEOUT_S = 5.0
SECRET = "eyJ.sec.ret"


async def supplied() -> str:
    return SECRET


@pytest.mark.parametrize(
    "token",
    [SECRET, f"token:{SECRET}", lambda: SECRET, lambda: SECRET.encode(), lambda: f"{SECRET}\n", supplied],
)
async def test_a_token_is_text_or_the_answer_of_a_function(token: str | Callable[[], str]) -> None:
    authentication = AuthenticationToken(token)
    assert await proof(authentication, "broker", TIMEOUT_S) == SECRET.encode()
    assert (await http_headers(authentication, "broker", TIMEOUT_S))["Authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("form", ["file://{}", "file:{}"])
async def test_a_token_file_is_read_again_for_each_use(tmp_path: Path, form: str) -> None:
    path = tmp_path / "token file"
    path.write_text("first\n")
    authentication = AuthenticationToken(form.format(path))
    assert await proof(authentication, "broker", TIMEOUT_S) == b"first"
    path.write_text("second")
    assert await proof(authentication, "broker", TIMEOUT_S) == b"second"


async def test_a_token_variable_is_read_again_for_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "first")
    authentication = AuthenticationToken("env:MY_TOKEN")
    assert await proof(authentication, "broker", TIMEOUT_S) == b"first"
    monkeypatch.setenv("MY_TOKEN", "second")
    assert await proof(authentication, "broker", TIMEOUT_S) == b"second"


def raises_the_secret() -> str:
    raise ValueError(SECRET)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("file:///does/not/exist", "/does/not/exist"),
        ("env:DOES_NOT_EXIST", "DOES_NOT_EXIST"),
        (lambda: "", "no token"),
        (lambda: 7, "no token"),
        (lambda: f"{SECRET}\r\nX-Role: admin", "characters"),
        (raises_the_secret, "AuthenticationToken gave no credentials: it raised ValueError"),
    ],
)
async def test_a_token_that_cannot_be_had_is_an_authentication_error(
    token: str | Callable[[], str], text: str
) -> None:
    with pytest.raises(AuthenticationError, match=text) as raised:
        await proof(AuthenticationToken(token), "broker", TIMEOUT_S)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "parameters",
    [SECRET, f"token:{SECRET}", f'{{"token": "{SECRET}"}}', "file://{file}", '{{"file": "{file}"}}'],
)
async def test_pulsars_parameters_of_a_token(parameters: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(SECRET)
    given = parameters.replace("{file}", str(path)).replace("{{", "{").replace("}}", "}")
    assert await proof(AuthenticationToken.from_parameters(given), "broker", TIMEOUT_S) == SECRET.encode()


@pytest.mark.parametrize(
    "authentication",
    [
        AuthenticationBasic("alice", "pass:word"),
        AuthenticationBasic(auth_params_string='{"username": "alice", "password": "pass:word"}'),
        AuthenticationBasic.from_parameters('{"userId": "alice", "password": "pass:word"}'),
    ],
)
async def test_a_password_goes_to_the_broker_behind_its_user(authentication: AuthenticationBasic) -> None:
    assert authentication.method_name == "basic"
    assert await proof(authentication, "broker", TIMEOUT_S) == b"alice:pass:word"
    headers = await http_headers(authentication, "broker", TIMEOUT_S)
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"alice:pass:word"


async def test_a_certificate_needs_no_credentials_beside_it() -> None:
    authentication = AuthenticationTLS.from_parameters("tlsCertFile:/c.pem,tlsKeyFile:/k.pem")
    assert (authentication.certificate_path, authentication.private_key_path) == ("/c.pem", "/k.pem")
    assert authentication.method_name == "tls"
    assert await proof(authentication, "broker", TIMEOUT_S) == b""


@pytest.mark.parametrize(
    "make",
    [
        lambda: AuthenticationToken(""),
        lambda: AuthenticationToken(7),  # type: ignore[arg-type]
        lambda: AuthenticationToken("file://other-machine/token"),
        lambda: AuthenticationToken.from_parameters('{"tokn": "x"}'),
        lambda: AuthenticationBasic("alice"),
        lambda: AuthenticationBasic("a:b", "password"),
        lambda: AuthenticationBasic("alice", "password", auth_params_string="{}"),
        lambda: AuthenticationBasic(auth_params_string='{"password": '),
        lambda: AuthenticationBasic(auth_params_string="[]"),
        lambda: AuthenticationTLS("", ""),
        lambda: AuthenticationTLS.from_parameters("tlsCertFile=/c.pem"),
        lambda: checked_authentication("a token"),  # type: ignore[arg-type]
    ],
)
def test_arguments_are_checked_when_they_are_given(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidConfigurationError):
        make()


@pytest.mark.parametrize(
    "authentication",
    [
        AuthenticationToken(SECRET),
        AuthenticationToken(lambda: SECRET),
        AuthenticationBasic("alice", SECRET),
        AuthenticationBasic(auth_params_string=f'{{"username": "alice", "password": "{SECRET}"}}'),
    ],
)
def test_no_secret_is_shown(authentication: object) -> None:
    assert SECRET not in repr(authentication)
    assert SECRET not in str(authentication)


@pytest.mark.parametrize(
    "authentication",
    [
        AuthenticationToken(SECRET),
        AuthenticationToken("file:///run/token"),
        AuthenticationTLS("/c.pem", "/k.pem"),
        AuthenticationBasic("alice", SECRET),
        AuthenticationOauth2('{"issuer_url": "https://i", "client_id": "a", "client_secret": "b"}'),
        AuthenticationOauth2('{"issuer_url": "https://i", "private_key": "file:///key.json"}'),
    ],
)
def test_credentials_can_be_sent_to_another_process(authentication: object) -> None:
    assert repr(pickle.loads(pickle.dumps(authentication))) == repr(authentication)


def test_the_place_of_a_token_is_shown() -> None:
    assert repr(AuthenticationToken("file:///run/token")) == "AuthenticationToken(file:///run/token)"


class OwnScheme:
    """A class of an application, without a base class."""

    method_name = "own"

    async def auth_data(self, host: str) -> bytes:
        return host.encode()

    async def respond(self, challenge: bytes) -> bytes:
        return b"answer to " + challenge


async def test_an_application_may_write_its_own_class() -> None:
    own = OwnScheme()
    assert isinstance(own, Authentication)
    assert checked_authentication(own) is own
    assert await proof(own, "broker", TIMEOUT_S) == b"broker"
    assert await proof(own, "broker", TIMEOUT_S, b"riddle") == b"answer to riddle"
    assert await proof(own, "broker", TIMEOUT_S, REFRESH) == b"broker"
    with pytest.raises(InvalidConfigurationError, match="http_headers"):
        await http_headers(own, "broker", TIMEOUT_S)
