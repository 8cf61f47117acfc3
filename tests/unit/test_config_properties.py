"""Files in the format of Pulsar's broker.conf."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from anabranch.config.broker import BrokerConfig, plain_fields
from anabranch.config.fields import OFF
from anabranch.config.files import load_config
from anabranch.config.properties import PROTECTING, parse_properties
from anabranch.errors import InvalidConfigurationError

TEXT = r"""
# a comment
! another one
plain=value
  spaced  =  a value with = and : inside
colon:value
word value
empty=
none
long=one,\
     two,\
     three
path=C\:\\keys\tz
umlaut=\u00e4
key\ with\=signs=x
twice=1
twice=2
even=ends with two \\
last=no newline, and a backslash \
"""


def test_properties_are_read_as_java_reads_them() -> None:
    assert parse_properties(TEXT) == {
        "plain": "value",
        "spaced": "a value with = and : inside",
        "colon": "value",
        "word": "value",
        "empty": "",
        "none": "",
        "long": "one,two,three",
        "path": "C:\\keys\tz",
        "umlaut": "ä",
        "key with=signs": "x",
        "twice": "2",
        "even": "ends with two \\",
        "last": "no newline, and a backslash",
    }


def test_lines_end_as_in_java() -> None:
    assert parse_properties("a=1\r\nb=2\rc=3\x0b4\u20285\n") == {"a": "1", "b": "2", "c": "3\x0b4\u20285"}


def test_every_setting_has_the_same_value_in_both_formats(tmp_path: Path) -> None:
    """The default file again, under Pulsar's names where there are some."""
    lines = []
    for field in plain_fields():
        value = "" if field.default is None else str(field.default)
        lines.append(f"{field.metadata['pulsar'] or field.name}={value}")
    file = tmp_path / "broker.conf"
    file.write_text("\n".join(lines))
    assert load_config(file) == BrokerConfig()


def test_a_file_of_pulsar_configures_security(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "bindAddress=0.0.0.0\n"
        "brokerServicePort=\n"
        "webServicePort=\n"
        "brokerServicePortTls=6651\n"
        "webServicePortTls=8443\n"
        "tlsCertificateFilePath=/keys/broker.cert.pem\n"
        "tlsKeyFilePath=/keys/broker.key-pk8.pem\n"
        "authenticationEnabled=true\n"
        "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
        "tokenSecretKey=file:///keys/secret.key\n"
        "authorizationEnabled=true\n"
        "superUserRoles=admin, \\\n    operator\n"
        "proxyRoles=\n"
    )
    config = load_config(file)
    assert (config.port, config.http_port, config.tls_port, config.https_port) == (OFF, OFF, 6651, 8443)
    assert config.authentication
    assert config.authorization
    assert config.superuser_roles == "admin, operator"
    assert config.token_secret_key == "file:///keys/secret.key"
    assert config.proxy_roles == ""
    lines = file.read_text().replace("\\\n    ", "").splitlines()
    toml = tmp_path / "broker.toml"
    toml.write_text(
        "\n".join(
            line if line.endswith("=true") else '{} = "{}"'.format(*line.split("=", 1))
            for line in lines
            if "PortTls" not in line
        )
        + "\nbrokerServicePortTls = 6651\nwebServicePortTls = 8443\n"
    )
    assert load_config(toml) == config


def test_settings_of_pulsar_without_effect_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "numHttpServerThreads=8\nmetadataStoreUrl=zk:zk1:2181\nloadBalancerEnabled=\nbrokerServicePort=7\n"
    )
    with caplog.at_level(logging.WARNING):
        assert load_config(file).port == 7
    [record] = caplog.records
    assert "these settings have no effect here: numHttpServerThreads, metadataStoreUrl" in record.getMessage()
    assert "loadBalancerEnabled" not in record.getMessage()


def test_such_settings_are_errors_in_toml(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("numHttpServerThreads = 8\n")
    with pytest.raises(InvalidConfigurationError, match="unknown setting 'numHttpServerThreads'"):
        load_config(file)


def test_a_name_that_pulsar_does_not_have_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("authenticationEnable=true\n")
    with pytest.raises(InvalidConfigurationError, match="did you mean authenticationEnabled"):
        load_config(file)


def test_no_setting_of_this_broker_is_called_unsupported() -> None:
    assert not PROTECTING.keys() & {field.metadata["pulsar"] for field in plain_fields()}


@pytest.mark.parametrize("name", PROTECTING)
def test_protection_that_is_not_here_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"{name}=something\n")
    with pytest.raises(InvalidConfigurationError, match=name):
        load_config(file)
    for value in ("", *PROTECTING[name].harmless):
        file.write_text(f"{name}={value.upper()}\n")
        assert load_config(file) == BrokerConfig()


@pytest.mark.parametrize(
    ("name", "text", "port"),
    [
        ("broker.conf", "brokerServicePort=7\nnumIOThreads=2\n", 7),
        ("broker.conf", 'port = 7\nhost = "127.0.0.1"\n[auto_scale]\nmax_segments = 3\n', 7),
        ("broker.toml", "port = 7\n", 7),
        ("settings", "port = 7\n", 7),
        ("settings", "bindAddress=127.0.0.1\nbrokerServicePort=7\n", 7),
        ("broker.properties", "brokerServicePort: 7\n", 7),
    ],
)
def test_the_format_of_a_file_is_found(tmp_path: Path, name: str, text: str, port: int) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert load_config(file).port == port


def test_no_limit_of_connections_in_pulsar_is_the_default_here(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerMaxConnections=0\n")
    assert load_config(file) == BrokerConfig()
