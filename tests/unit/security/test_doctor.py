"""The weak points that `anabranch doctor` names: settings and files."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from anabranch.config.broker import BrokerConfig
from anabranch.config.fields import OFF
from anabranch.security.peer_secret_file import SECRET_FILE, PeerSecretFile
from anabranch.security.weak_files import weak_files
from anabranch.security.weak_settings import weak_settings
from simulation.harness.certificates import Authority

CERTIFICATES: dict[str, Any] = {"tls_certificate_file": "c.pem", "tls_key_file": "k.pem"}
GOOD: dict[str, Any] = {
    "host": "0.0.0.0",
    "port": OFF,
    "http_port": OFF,
    "tls_port": 6651,
    "https_port": 8443,
    **CERTIFICATES,
    "authentication": True,
    "authentication_providers": "tls",
    "authorization": True,
    "superuser_roles": "admin",
}


def names_of(**changed: Any) -> list[str]:
    return [weakness.name for weakness in weak_settings(BrokerConfig(**{**GOOD, **changed}))]


def test_a_careful_configuration_has_no_weak_points() -> None:
    assert names_of() == []
    assert weak_settings(BrokerConfig()) == []


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"authentication": False, "authorization": False}, "no-authentication"),
        ({"authorization": False}, "no-authorization"),
        ({"superuser_roles": "admin, *"}, "wildcard-superuser"),
        ({"anonymous_role": "admin"}, "anonymous-superuser"),
        ({"anonymous_role": "guest"}, "anonymous-role"),
        ({"proxy_roles": "admin"}, "proxy-superuser"),
        ({"authentication_providers": "basic", "port": 6650}, "basic-without-tls"),
        ({"tls_port": OFF, "https_port": OFF, "port": 6650, "http_port": 8080}, "no-tls"),
        ({"http_port": 8080}, "plain-ports"),
        ({"workers": 2, "port": 6650}, "plain-between-brokers"),
        ({"tls_allow_insecure": True}, "tls-insecure"),
        ({"broker_client_hostname_verification": False}, "no-hostname-verification"),
        ({"authentication_providers": "openid", "openid_require_https": False}, "issuer-without-https"),
        ({"token_key_set": "http://issuer/keys"}, "key-set-without-https"),
        ({"token_secret_key": "data:;base64,AAAA"}, "secret-in-settings"),
        ({"authenticate_metrics": False}, "open-metrics"),
        ({"audit_log": "off"}, "no-audit"),
        ({"http_allowed_hosts": "a.example, *"}, "any-host"),
        ({"authentication_providers": "token"}, "tokens-without-expiry"),
    ],
)
def test_a_weak_setting_is_named(changed: dict[str, Any], name: str) -> None:
    assert name in names_of(**changed)


def test_tokens_that_must_expire_are_no_weak_point() -> None:
    assert names_of(authentication_providers="token", token_must_expire=True) == []


def test_each_weak_point_says_why_and_what_to_do() -> None:
    worst = BrokerConfig(host="0.0.0.0", http_allowed_hosts="*", audit_log="off", superuser_roles="*")
    found = weak_settings(worst)
    assert len(found) == 5
    for weakness in found:
        assert all(weakness)
        assert len({*weakness}) == 5


def test_no_secret_is_shown() -> None:
    [weakness] = [w for w in weak_settings(BrokerConfig(token_secret_key="data:;base64,c2VjcmV0")) if w]
    assert "c2VjcmV0" not in str(weakness)


def files(**settings: Any) -> dict[str, str]:
    """The weak files by name, with their severity."""
    data = settings.pop("data", "/nonexistent")
    found = weak_files(BrokerConfig(data=str(data), authentication=True, **settings), datetime.now(UTC))
    return {weakness.name: weakness.severity for weakness in found}


def private(path: Path, content: bytes, mode: int = 0o600) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_keys_of_tokens_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "key"
    assert files(token_secret_key=private(file, os.urandom(32))) == {}
    assert files(token_secret_key=f"file://{file}") == {}
    assert files(token_secret_key=private(file, b"short")) == {"unusable-file": "danger"}
    assert files(token_secret_key=private(file, os.urandom(32), 0o644)) == {"readable-secret": "danger"}
    assert files(token_secret_key=private(file, os.urandom(32), 0o640)) == {"readable-secret": "warning"}
    assert files(token_secret_key=str(tmp_path / "none")) == {"unusable-file": "danger"}
    assert files(token_public_key=private(file, b"rubbish", 0o644)) == {"unusable-file": "danger"}


def test_files_of_passwords_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "htpasswd"
    good = b"ann:$2y$05$abcdefghijklmnopqrstuv\n"
    assert files(basic_auth_file=private(file, good)) == {}
    assert files(basic_auth_file=private(file, good, 0o604)) == {"readable-secret": "danger"}
    weak = good + b"bob:$apr1$salt$hash\n"
    assert files(basic_auth_file=private(file, weak)) == {"weak-password-hash": "warning"}


@pytest.mark.parametrize(
    ("days", "expected"),
    [(365, {}), (10, {"certificate-expires": "warning"}), (-1, {"certificate-expired": "danger"})],
)
def test_certificates_are_checked(tmp_path: Path, days: float, expected: dict[str, str]) -> None:
    pair = Authority(tmp_path).server(days=days)
    settings = {"tls_port": 0, "tls_certificate_file": pair.certificate, "tls_key_file": pair.key}
    assert files(**settings) == expected
    Path(pair.key).chmod(0o644)
    assert files(**settings) == {**expected, "readable-secret": "danger"}


def test_a_certificate_of_the_future_is_named(tmp_path: Path) -> None:
    pair = Authority(tmp_path).server()
    config = BrokerConfig(
        data="/nonexistent", tls_port=0, tls_certificate_file=pair.certificate, tls_key_file=pair.key
    )
    [weakness] = weak_files(config, datetime.now(UTC) - timedelta(days=30))
    assert weakness.name == "certificate-not-valid-yet"


def test_the_data_directory_is_checked(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    PeerSecretFile(data).prepare()
    assert files(data=data) == {}
    data.chmod(0o755)
    assert files(data=data) == {"open-data-directory": "danger"}
    data.chmod(0o700)
    (data / SECRET_FILE).chmod(0o644)
    assert files(data=data) == {"unusable-file": "danger"}
    (data / SECRET_FILE).chmod(0o600)
    ahead = datetime.now(UTC).timestamp() + 10_000
    os.utime(data / SECRET_FILE, (ahead, ahead))
    assert files(data=data) == {"clock": "warning"}
