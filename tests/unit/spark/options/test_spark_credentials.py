"""The role of driver and executors: options, and secrets that Spark must not show."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from anabranch import AuthenticationBasic, AuthenticationOauth2, AuthenticationTLS, AuthenticationToken
from anabranch.credentials.asking import proof
from anabranch.errors import InvalidConfigurationError
from anabranch.spark.options.given import CREDENTIALS
from anabranch.spark.options.queries import read_sink_options, read_source_options

JAVA = "org.apache.pulsar.client.impl.auth."
BASIC = '{"userId": "alice", "password": "sesame"}'
BY_SECRET = '{"issuerUrl": "https://issuer", "client_id": "a", "client_secret": "sesame"}'
BY_FILE = '{"issuerUrl": "https://issuer", "privateKey": "file:///key.json"}'
CERTIFICATE = "tlsCertFile:/c.pem,tlsKeyFile:/k.pem"


def given(**options: str) -> dict[str, str]:
    # Spark passes names in lower case.
    named = {name.replace("_", ".").lower(): text for name, text in options.items()}
    return {"service.url": "pulsar://broker", "topic": "orders", **named}


@pytest.mark.parametrize("read", [read_source_options, read_sink_options])
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"client_auth_token": "sesame"}, AuthenticationToken),
        (
            {"authPluginClassName": f"{JAVA}AuthenticationToken", "authParams": "file:///t"},
            AuthenticationToken,
        ),
        ({"authPluginClassName": "token", "authParams": "env:TOKEN"}, AuthenticationToken),
        ({"authPluginClassName": "token", "authParams": '{"file": "/t"}'}, AuthenticationToken),
        (
            {"pulsar_client_authPluginClassName": "tls", "pulsar_client_authParams": CERTIFICATE},
            AuthenticationTLS,
        ),
        ({"authPluginClassName": "basic", "client_auth_secretParams": BASIC}, AuthenticationBasic),
        ({"client_authPlugin": "oauth2", "client_auth_secretParams": BY_SECRET}, AuthenticationOauth2),
        ({"authPluginClassName": "oauth2", "authParams": BY_FILE}, AuthenticationOauth2),
    ],
)
def test_both_ways_take_credentials_under_pulsars_names_and_ours(
    read: Any, options: dict[str, str], kind: type
) -> None:
    settings = read(given(**options)).client
    assert "sesame" not in repr(settings)
    # Executors get a copy, and make the credentials themselves.
    role = dict(pickle.loads(pickle.dumps(settings)))[CREDENTIALS]
    assert type(role.make()) is kind


async def test_the_secret_reaches_the_executor() -> None:
    role = dict(read_source_options(given(client_auth_token="sesame")).client)[CREDENTIALS]
    assert await proof(role.make(), "broker", 1.0) == b"sesame"


@pytest.mark.parametrize(
    "options",
    [
        {"authPluginClassName": "token", "authParams": "token:sesame"},
        {"authPluginClassName": "token", "authParams": "sesame"},
        {"authPluginClassName": "token", "authParams": '{"token": "sesame"}'},
        {"authPluginClassName": "basic", "authParams": BASIC},
        {"authPluginClassName": "oauth2", "authParams": BY_SECRET},
        {"authPluginClassName": "oauth2", "authParams": BY_FILE.replace("file:///key.json", "data:,sesame")},
        {"authParams": "token:sesame"},
        {"client_auth_token": "sesame", "authPluginClassName": "token"},
        {"authPluginClassName": "token", "authParams": "file:///t", "client_auth_secretParams": "sesame"},
    ],
)
def test_a_secret_that_spark_would_show_is_refused_and_not_shown(options: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigurationError) as raised:
        read_source_options(given(**options))
    assert "sesame" not in str(raised.value)


def test_tls_files_go_on_to_the_client() -> None:
    options = given(client_tlsTrustCertsFilePath="/ca.pem", client_tlsAllowInsecureConnection="false")
    assert dict(read_source_options(options).client) == {
        "tls_trust_certs_file_path": "/ca.pem",
        "tls_allow_insecure_connection": False,
    }
