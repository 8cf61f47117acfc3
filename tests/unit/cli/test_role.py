"""The role of a command: its places, their order, and no secret in arguments or errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from anabranch import AuthenticationTLS
from anabranch.cli.main import main
from anabranch.cli.role import ADMIN_URL, SERVICE_URL, ClientRole, role_of
from anabranch.credentials.asking import proof
from anabranch.errors import InvalidConfigurationError

CONF = """\
# A client.conf as Pulsar's tools read it.
webServiceUrl=https://conf:8443
brokerServiceUrl = pulsar+ssl://conf:6651
authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
authParams=token:of-the-conf
tlsTrustCertsFilePath=/ca.pem
tlsAllowInsecureConnection=false
tlsEnableHostnameVerification=true
useKeyStoreTls=false
"""


def role(environment: dict[str, str] | None = None, **options: str) -> ClientRole:
    return role_of(
        SimpleNamespace(**{"client_conf": None, "token_file": None, "tls_trust_certs": None, **options}),
        environment or {},
    )


async def shown(found: ClientRole) -> bytes | None:
    return None if found.authentication is None else await proof(found.authentication, "broker", 1.0)


async def test_a_command_without_credentials_uses_the_local_broker() -> None:
    found = role()
    assert (found.service_url, found.admin_url) == (SERVICE_URL, ADMIN_URL)
    assert await shown(found) is None
    assert found.tls == {}


async def test_client_conf_says_addresses_credentials_and_tls(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    path.write_text(CONF)
    for found in (role(client_conf=str(path)), role({"ANABRANCH_CLIENT_CONF": str(path)})):
        assert (found.service_url, found.admin_url) == ("pulsar+ssl://conf:6651", "https://conf:8443")
        assert await shown(found) == b"of-the-conf"
        assert found.tls["tls_trust_certs_file_path"] == "/ca.pem"
        assert found.tls["tls_allow_insecure_connection"] is False
        assert found.tls["tls_validate_hostname"] is True


async def test_an_option_wins_over_the_environment_and_that_over_client_conf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf, token = tmp_path / "client.conf", tmp_path / "token"
    conf.write_text(CONF)
    token.write_text("of-the-file\n")
    environment = {
        "ANABRANCH_CLIENT_CONF": str(conf),
        "ANABRANCH_TOKEN": "of-the-variable",
        "ANABRANCH_URL": "pulsar://variable:1",
    }
    monkeypatch.setenv("ANABRANCH_TOKEN", "of-the-variable")
    assert await shown(role(environment)) == b"of-the-variable"
    assert await shown(role(environment, token_file=str(token))) == b"of-the-file"
    assert role(environment).service_url == "pulsar://variable:1"
    assert role(environment, url="pulsar://option:1").service_url == "pulsar://option:1"
    assert role(environment, admin_url="http://option:2").admin_url == "http://option:2"


async def test_the_environment_names_a_plugin() -> None:
    found = role({"ANABRANCH_AUTH_PLUGIN": "basic", "ANABRANCH_AUTH_PARAMS": '{"userId":"u","password":"p"}'})
    assert await shown(found) == b"u:p"
    found = role({"ANABRANCH_AUTH_PLUGIN": "tls", "ANABRANCH_AUTH_PARAMS": "tlsCertFile:/c,tlsKeyFile:/k"})
    assert isinstance(found.authentication, AuthenticationTLS)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"ANABRANCH_TOKEN": "secret", "ANABRANCH_AUTH_PLUGIN": "token"}, "not both"),
        ({"ANABRANCH_AUTH_PARAMS": "token:secret"}, "authPlugin"),
        ({"ANABRANCH_AUTH_PLUGIN": "basic", "ANABRANCH_AUTH_PARAMS": "secret"}, "JSON"),
        ({"ANABRANCH_CLIENT_CONF": "/does/not/exist"}, "/does/not/exist"),
    ],
)
def test_contradictions_are_named_without_the_secret(environment: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=text) as raised:
        role(environment)
    assert "secret" not in str(raised.value)


def test_certificates_are_trusted_by_option_or_environment() -> None:
    variable = {"ANABRANCH_TLS_TRUST_CERTS": "/variable.pem"}
    assert role(variable).tls == {"tls_trust_certs_file_path": "/variable.pem"}
    assert role(variable, tls_trust_certs="/option.pem").tls == {"tls_trust_certs_file_path": "/option.pem"}


def test_tls_is_for_addresses_that_use_it() -> None:
    found = role(tls_trust_certs="/does/not/exist.pem")
    found.open_admin().close()
    found.open_client().close()
    found = role(tls_trust_certs="/does/not/exist.pem", url="pulsar+ssl://b", admin_url="https://b")
    for open_ in (found.open_admin, found.open_client):
        with pytest.raises(InvalidConfigurationError, match="/does/not/exist"):
            open_()


def test_a_flag_of_client_conf_is_true_or_false(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    path.write_text("tlsAllowInsecureConnection=yes")
    with pytest.raises(InvalidConfigurationError, match="tlsAllowInsecureConnection"):
        role(client_conf=str(path))


@pytest.mark.parametrize("option", ["--token", "--auth-params", "--password"])
@pytest.mark.parametrize("command", [["produce", "t"], ["consume", "t"], ["topic", "show", "t"], ["brokers"]])
def test_no_command_takes_a_secret_as_an_argument(
    command: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command, option, "sesame"])
    assert left.value.code == 2
    text = capsys.readouterr().err
    assert "--token-file" in text
    assert "sesame" not in text
