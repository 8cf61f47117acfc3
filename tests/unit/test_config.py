"""Settings: their sources, their valid values, and the errors for invalid ones."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

import pytest

from anabranch.config.authorization import split_roles
from anabranch.config.broker import BrokerConfig
from anabranch.config.doors import check_open_door, is_loopback
from anabranch.config.files import default_text, load_config
from anabranch.errors import InvalidConfigurationError


def test_nothing_given_is_the_default() -> None:
    assert load_config() == BrokerConfig()


def test_the_environment_wins_over_the_file_and_options_win_over_both(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("port = 1\nhttp_port = 2\nworkers = 3\n")
    variables = {
        "ANABRANCH_SERVE_CONFIG": str(file),
        "ANABRANCH_SERVE_HTTP_PORT": "20",
        "ANABRANCH_SERVE_WORKERS": "30",
        "ANABRANCH_SERVE_SCALABLETOPICMAXSEGMENTS": "40",
        "ANABRANCH_URL": "pulsar://elsewhere",
    }
    config = load_config(None, ["workers=31"], variables)
    assert (config.port, config.http_port, config.workers) == (1, 20, 31)
    assert config.auto_scale.max_segments == 40
    own = {"ANABRANCH_SERVE_AUTO_SCALE_MAX_SEGMENTS": "41"}
    assert load_config(environment=own).auto_scale.max_segments == 41


def test_a_mistyped_variable_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"ANABRANCH_SERVE_PROT: .*did you mean port"):
        load_config(environment={"ANABRANCH_SERVE_PROT": "1"})


def test_the_shipped_file_is_fresh_and_says_what_the_code_says(tmp_path: Path) -> None:
    shipped = resources.files("anabranch.config").joinpath("default.toml").read_text()
    assert shipped == default_text(), "write config.default_text() to config/default.toml"
    file = tmp_path / "broker.toml"
    file.write_text(shipped)
    assert load_config(file) == BrokerConfig()


def test_the_shipped_file_names_every_setting() -> None:
    text = default_text()
    for name in BrokerConfig.__dataclass_fields__:
        assert name in text
    assert set(tomllib.loads(text)["auto_scale"]) == set(BrokerConfig().auto_scale.__dataclass_fields__)


def test_a_set_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("port = 1234\nhttp_port = 5678\n[auto_scale]\nmax_segments = 8\n")
    config = load_config(file, ["port=0"])
    assert (config.port, config.http_port, config.auto_scale.max_segments) == (0, 5678, 8)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("brokerServicePort=7000", "port", 7000),
        ("deduplication=false", "deduplication", False),
        ("allowAutoTopicCreation=False", "auto_create_topics", False),
        ("cache_bytes=8MiB", "cache_bytes", 8 * 2**20),
        ("max_message_bytes=1_000_000", "max_message_bytes", 1_000_000),
        ("keep_alive_s=5", "keep_alive_s", 5.0),
        ("advertised_host=broker.example", "advertised_host", "broker.example"),
        ("data=/srv/a=b", "data", "/srv/a=b"),
    ],
)
def test_a_set_is_read_in_the_type_of_its_setting(text: str, name: str, value: object) -> None:
    assert getattr(load_config(None, [text]), name) == value


def test_auto_scale_settings_have_pulsars_names_too() -> None:
    first = load_config(None, ["scalableTopicSplitMsgRateInThreshold=2500"])
    second = load_config(None, ["auto_scale.split_msg_rate_in_threshold=2500"])
    assert first == second
    assert first.auto_scale.split_msg_rate_in_threshold == 2500


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("prot=1", "did you mean port"),
        ("port", "key=value"),
        ("port=70000", "-1 to 65535"),
        ("port=high", "is a number"),
        ("port=1.5", "whole number"),
        ("deduplication=yes", "true or false"),
        ("consumer_grace_s=-1", "at least 0"),
        ("keep_alive_s=nan", "at least 0.1"),
        ("host=", "must not be empty"),
        ("log_level=loud", "one of debug"),
        ("auto_scale.max_segments=0", "maxSegments"),
    ],
)
def test_a_mistake_is_answered_with_what_is_allowed(text: str, answer: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=answer):
        load_config(None, [text])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match="no-such-file"):
        load_config(tmp_path / "no-such-file")
    file = tmp_path / "broken.toml"
    file.write_text("port = = 1")
    with pytest.raises(InvalidConfigurationError, match="not valid TOML"):
        load_config(file)
    file.write_text("colour = 1")
    with pytest.raises(InvalidConfigurationError, match="unknown setting 'colour'"):
        load_config(file)


def test_secrets_are_not_shown_in_the_representation_of_the_settings() -> None:
    secret = "data:;base64,c2VjcmV0"
    config = BrokerConfig(token_secret_key=secret, basic_auth_file=secret)
    assert secret not in repr(config)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_a_loopback_address_needs_no_authentication(host: str) -> None:
    assert is_loopback(host)
    check_open_door(host, authentication=False, allowed=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "broker.example", "localhost.example"])
def test_an_open_address_needs_authentication_or_permission(host: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="--allow-unauthenticated"):
        check_open_door(host, authentication=False, allowed=False)
    check_open_door(host, authentication=True, allowed=False)
    check_open_door(host, authentication=False, allowed=True)


def test_rights_need_proven_roles() -> None:
    with pytest.raises(InvalidConfigurationError, match="authentication = true"):
        load_config(sets=["authorizationEnabled=true"])
    config = load_config(
        sets=["authenticationEnabled=true", "authorizationEnabled=true", "superUserRoles=root, ops,"]
    )
    assert config.authorization
    assert split_roles(config.superuser_roles) == {"root", "ops"}


@pytest.mark.parametrize("key", ["token_secret_key", "tokenSecretKey", "basicAuthConf"])
def test_a_secret_itself_is_no_argument(key: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="--config") as caught:
        load_config(sets=[f"{key}=data:;base64,c2VjcmV0"])
    assert "c2VjcmV0" not in str(caught.value)
    assert load_config(sets=[f"{key}=/keys/file"])
