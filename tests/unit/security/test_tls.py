"""The TLS contexts of a broker: files that can be used, handshakes that succeed, and files that change."""

from __future__ import annotations

import asyncio
import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from anabranch.clock import SystemClock
from anabranch.config.tls import TlsConfig
from anabranch.errors import InvalidConfigurationError
from anabranch.security.tls import BrokerTls, openssl_name, peer_context, server_context, warnings_about
from anabranch.transport.tls import ClientTls
from simulation.harness.certificates import Authority, Pair
from tests.harness.handshakes import Handshaken, shake_hands

NOW = datetime.now(UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def config(pair: Pair, **more: object) -> TlsConfig:
    values: dict[str, object] = {
        "tls_port": 0,
        "tls_certificate_file": pair.certificate,
        "tls_key_file": pair.key,
        **more,
    }
    return TlsConfig(**values)  # type: ignore[arg-type]


def overwrite(target: Pair, source: Pair) -> None:
    """Replace files as tools for certificates do: by renaming new ones."""
    os.replace(source.certificate, target.certificate)
    os.replace(source.key, target.key)


@pytest.mark.parametrize("missing", ["certificate", "key"])
def test_a_missing_file_is_named(authority: Authority, missing: str) -> None:
    pair = authority.server()
    path = getattr(pair, missing)
    Path(path).unlink()
    with pytest.raises(InvalidConfigurationError, match=f"cannot read the {missing} {path}"):
        server_context(config(pair))


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    mixed = Pair(authority.server("a").certificate, authority.server("b").key)
    with pytest.raises(InvalidConfigurationError, match="does not belong to the certificate"):
        server_context(config(mixed))


def test_a_file_that_is_no_certificate_is_refused(authority: Authority) -> None:
    pair = authority.server()
    Path(pair.certificate).write_text("no PEM")
    with pytest.raises(InvalidConfigurationError, match="as PEM"):
        server_context(config(pair))


def test_a_key_with_a_password_is_refused_instead_of_asking_for_it(authority: Authority) -> None:
    pair = authority.server()
    key = load_pem_private_key(Path(pair.key).read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
    Path(pair.key).write_bytes(locked)
    with pytest.raises(InvalidConfigurationError, match="has a password"):
        server_context(config(pair))


def test_a_trust_file_without_certificates_is_refused(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(InvalidConfigurationError, match="holds no certificates"):
        server_context(config(authority.server(), tls_trust_file=str(tmp_path / "empty.pem")))


def test_weak_points_of_the_files_are_warned_about(authority: Authority) -> None:
    assert warnings_about(config(authority.server()), NOW) == []
    (expired,) = warnings_about(config(authority.server("old", days=-3)), NOW)
    assert "expired" in expired
    (soon,) = warnings_about(config(authority.server("soon", days=3)), NOW)
    assert "expires on" in soon
    (nameless,) = warnings_about(config(authority.server("nameless", hosts=[])), NOW)
    assert "names no host" in nameless
    pair = authority.server("open")
    Path(pair.key).chmod(0o640)
    (readable,) = warnings_about(config(pair), NOW)
    assert "can be read by others" in readable
    (insecure,) = warnings_about(config(authority.server(), tls_allow_insecure=True), NOW)
    assert "tls_allow_insecure" in insecure


def test_the_newest_version_and_authenticated_encryption_are_used(authority: Authority) -> None:
    client = ClientTls(authority.file).context()
    pair = authority.server()
    assert shake_hands(server_context(config(pair)), client).version == "TLSv1.3"
    older = shake_hands(server_context(config(pair, tls_protocols="TLSv1.2")), client)
    assert (older.version, "GCM" in older.cipher or "POLY1305" in older.cipher) == ("TLSv1.2", True)


def test_a_client_without_authenticated_encryption_is_refused(authority: Authority) -> None:
    client = ClientTls(authority.file).context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers("ECDHE-ECDSA-AES256-SHA384")
    with pytest.raises(ssl.SSLError, match=r"(?i)no.shared.cipher|alert"):
        shake_hands(server_context(config(authority.server())), client)


@pytest.mark.parametrize(
    "given", ["ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"]
)
def test_ciphers_have_the_names_of_openssl_or_of_java(authority: Authority, given: str) -> None:
    server = server_context(config(authority.server(), tls_ciphers=f"TLS_AES_128_GCM_SHA256, {given}"))
    client = ClientTls(authority.file).context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(server, client).cipher == "ECDHE-ECDSA-AES256-GCM-SHA384"


def test_an_unknown_cipher_is_refused(authority: Authority) -> None:
    assert openssl_name("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256") == "ECDHE-RSA-CHACHA20-POLY1305"
    with pytest.raises(InvalidConfigurationError, match="no known cipher"):
        server_context(config(authority.server(), tls_ciphers="ROT13"))


def refused(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    with pytest.raises(ssl.SSLError) as error:
        shake_hands(server, client)
    return str(error.value.reason)


def test_client_certificates_are_asked_for_when_an_authority_is_trusted(
    authority: Authority, tmp_path: Path
) -> None:
    optional = server_context(config(authority.server(), tls_trust_file=authority.file))
    pair = authority.client("app")
    known = ClientTls(authority.file, pair.certificate, pair.key).context()
    found = shake_hands(optional, known).certificate
    assert found is not None
    assert found.common_name == "app"
    assert found.expires_s > NOW.timestamp()
    assert shake_hands(optional, ClientTls(authority.file).context()).certificate is None
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").client("app")
    unknown = ClientTls(authority.file, stranger.certificate, stranger.key).context()
    assert "CERTIFICATE_VERIFY_FAILED" in refused(optional, unknown)
    expired = authority.client("late", days=-1)
    late = ClientTls(authority.file, expired.certificate, expired.key).context()
    assert "CERTIFICATE_VERIFY_FAILED" in refused(optional, late)


def test_a_certificate_of_the_client_may_be_required(authority: Authority) -> None:
    settings = config(authority.server(), tls_trust_file=authority.file, tls_require_client_certificate=True)
    anonymous = ClientTls(authority.file).context()
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in refused(server_context(settings), anonymous)


def test_an_insecure_broker_takes_no_certificate_of_a_client_for_proven(authority: Authority) -> None:
    settings = config(authority.server(), tls_trust_file=authority.file, tls_allow_insecure=True)
    pair = authority.client("app")
    known = ClientTls(authority.file, pair.certificate, pair.key).context()
    assert shake_hands(server_context(settings), known).certificate is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tls_port": 0}, "needs a certificate"),
        ({"https_port": 0, "tls_certificate_file": "a"}, "needs a certificate"),
        ({"tls_require_client_certificate": True}, "needs tls_trust_file"),
        (
            {"tls_require_client_certificate": True, "tls_trust_file": "a", "tls_allow_insecure": True},
            "tls_allow_insecure must be false",
        ),
        ({"broker_client_tls": True}, "needs tls_port"),
        ({"broker_client_key_file": "a"}, "together"),
        ({"tls_protocols": "TLSv1.1,TLSv1.2"}, "not secure"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=text):
        TlsConfig(**settings).check_tls()  # type: ignore[arg-type]


def certificate_now(tls: BrokerTls, trust: str) -> Handshaken:
    return shake_hands(tls.server(), ClientTls(trust).context())


def test_changed_files_are_used_and_broken_ones_are_not(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair = authority.server()
    tls = BrokerTls.load(config(pair), SystemClock())
    first = certificate_now(tls, authority.file).server_serial
    assert not tls.server.refresh()
    overwrite(pair, authority.server("next"))
    assert tls.server.refresh()
    second = certificate_now(tls, authority.file).server_serial
    assert second != first
    Path(pair.key).write_text("half of a key")
    assert not tls.server.refresh()
    assert "the previous ones stay in use" in caplog.text
    Path(pair.certificate).unlink()
    assert not tls.server.refresh()
    assert certificate_now(tls, authority.file).server_serial == second
    overwrite(pair, authority.server("third"))
    assert tls.server.refresh()
    assert certificate_now(tls, authority.file).server_serial not in (first, second)


def test_a_start_with_broken_files_is_refused(authority: Authority) -> None:
    pair = authority.server()
    Path(pair.key).write_text("half of a key")
    with pytest.raises(InvalidConfigurationError):
        BrokerTls.load(config(pair), SystemClock())


async def test_files_are_looked_at_in_each_interval(authority: Authority) -> None:
    pair = authority.server()
    tls = BrokerTls.load(config(pair), SystemClock())
    before, peers_before = tls.server(), tls.peers()
    following = asyncio.ensure_future(tls.follow(300.0))
    await asyncio.sleep(1)
    overwrite(pair, authority.server("next"))
    await asyncio.sleep(298)
    assert tls.server() is before
    await asyncio.sleep(2)
    assert tls.server() is not before
    assert tls.peers() is not peers_before
    following.cancel()


def test_brokers_trust_their_own_certificate_without_an_authority(
    authority: Authority, tmp_path: Path
) -> None:
    settings = config(authority.server())
    assert shake_hands(server_context(settings), peer_context(settings)).version == "TLSv1.3"
    (tmp_path / "other").mkdir()
    impostor = server_context(config(Authority(tmp_path / "other").server()))
    assert "CERTIFICATE_VERIFY_FAILED" in refused(impostor, peer_context(settings))
    elsewhere = config(authority.server("elsewhere", hosts=["broker.example"]))
    assert "CERTIFICATE_VERIFY_FAILED" in refused(server_context(elsewhere), peer_context(elsewhere))


def test_brokers_show_no_certificate_to_each_other_unless_it_is_required(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "clients").mkdir()
    clients = Authority(tmp_path / "clients", "authority of clients")
    asked = config(authority.server(), tls_trust_file=clients.file)
    assert shake_hands(server_context(asked), peer_context(asked)).certificate is None
    mine = clients.client("worker")
    required = config(
        authority.server("strict"),
        tls_trust_file=clients.file,
        tls_require_client_certificate=True,
        broker_client_certificate_file=mine.certificate,
        broker_client_key_file=mine.key,
    )
    shown = shake_hands(server_context(required), peer_context(required)).certificate
    assert shown is not None
    assert shown.common_name == "worker"
    own = config(authority.server("own"), tls_trust_file=authority.file, tls_require_client_certificate=True)
    assert shake_hands(server_context(own), peer_context(own)).certificate is not None


def test_brokers_trust_the_authority_in_their_trust_file(authority: Authority) -> None:
    settings = config(authority.server(), tls_trust_file=authority.file)
    renewed = server_context(config(authority.server("next")))
    assert shake_hands(renewed, peer_context(settings)).version == "TLSv1.3"
