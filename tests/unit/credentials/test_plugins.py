"""Credentials by the names that Pulsar's configuration files use."""

from __future__ import annotations

import pytest

from anabranch import AuthenticationBasic, AuthenticationOauth2, AuthenticationTLS, AuthenticationToken
from anabranch.credentials.asking import proof
from anabranch.credentials.plugins import authentication_from
from anabranch.errors import InvalidConfigurationError

JAVA = "org.apache.pulsar.client.impl.auth."
OAUTH2 = '{"issuerUrl": "https://issuer", "privateKey": "data:application/json,%7B%7D"}'


@pytest.mark.parametrize(
    ("plugin", "parameters", "kind"),
    [
        ("token", "token:secret", AuthenticationToken),
        (f"{JAVA}AuthenticationToken", "file:///run/token", AuthenticationToken),
        (f"{JAVA}AuthenticationTls", "tlsCertFile:/c,tlsKeyFile:/k", AuthenticationTLS),
        ("tls", '{"tlsCertFile": "/c", "tlsKeyFile": "/k"}', AuthenticationTLS),
        (f"{JAVA}AuthenticationBasic", '{"userId": "u", "password": "p"}', AuthenticationBasic),
        ("basic", "username:u,password:p", AuthenticationBasic),
        (f"{JAVA}oauth2.AuthenticationOAuth2", OAUTH2, AuthenticationOauth2),
        ("OAuth2", OAUTH2, AuthenticationOauth2),
    ],
)
def test_the_names_of_pulsar_and_short_ones(plugin: str, parameters: str, kind: type) -> None:
    assert type(authentication_from(plugin, parameters)) is kind


class Plugged:
    """A class of an application."""

    method_name = "plugged"

    def __init__(self, parameters: str) -> None:
        self._parameters = parameters

    async def auth_data(self, host: str) -> bytes:
        return self._parameters.encode()


async def test_a_class_of_an_application_gets_the_parameters() -> None:
    found = authentication_from(f"{__name__}:Plugged", "these")
    assert found is not None
    assert await proof(found, "broker", 1.0) == b"these"


def test_without_a_name_there_are_no_credentials() -> None:
    assert authentication_from("", " ") is None


@pytest.mark.parametrize(
    ("plugin", "parameters"),
    [
        ("", "token:secret"),
        ("tokens", "token:secret"),
        ("no.such.module:Class", "secret"),
        ("json:Nothing", "secret"),
        (f"{JAVA}AuthenticationAthenz", "secret"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_without_its_parameters(plugin: str, parameters: str) -> None:
    with pytest.raises(InvalidConfigurationError) as raised:
        authentication_from(plugin, parameters)
    assert "secret" not in str(raised.value)
