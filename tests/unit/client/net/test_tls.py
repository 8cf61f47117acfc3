"""The TLS of a client: its arguments, and the errors of handshakes that fail."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from anabranch import AsyncClient, AuthenticationTLS
from anabranch.errors import ConnectError, InvalidConfigurationError, RemoteProtocolError
from anabranch.protocol.connection import ClientMachine, ServerMachine
from anabranch.transport.tls import TLS_SCHEME, ClientTls
from anabranch.transport.tls_arguments import tls_of
from anabranch.transport.tls_errors import TlsError, closed_early, explain
from simulation.harness.certificates import Authority, Pair
from tests.harness.handshakes import shake_hands

URL = "pulsar+ssl://broker"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def serving(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def context_of(url: str, **given: Any) -> ssl.SSLContext:
    found = tls_of(url, TLS_SCHEME, given)  # type: ignore[arg-type]
    assert found is not None
    return found()


def test_a_plain_url_has_no_tls() -> None:
    assert tls_of("pulsar://broker", TLS_SCHEME, {}) is None
    assert tls_of("pulsar://broker", TLS_SCHEME, {"tls_validate_hostname": True}) is None


@pytest.mark.parametrize(
    "given",
    [
        {"tls_trust_certs_file_path": "ca.pem"},
        {"tls_allow_insecure_connection": True},
        {"tls": ssl.create_default_context()},
        {"authentication": AuthenticationTLS("cert.pem", "key.pem")},
    ],
)
def test_tls_arguments_need_a_tls_url(given: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"pulsar\+ssl://"):
        AsyncClient("pulsar://broker", **given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tls_trust_certs_file_path": "/none.pem"}, "cannot read the file of trusted certificates"),
        ({"tls_certificate_file_path": "/none.pem"}, "together"),
        ({"tls": ssl.create_default_context(), "tls_trust_certs_file_path": "a"}, "not both"),
    ],
)
def test_wrong_arguments_are_refused_when_the_client_is_made(given: Any, text: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=text):
        AsyncClient(URL, **given)


def test_a_given_context_is_used_as_it_is() -> None:
    mine = ssl.create_default_context()
    assert context_of(URL, tls=mine) is mine


def test_without_a_trust_file_the_authorities_of_the_system_are_asked(authority: Authority) -> None:
    context = context_of(URL)
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(serving(authority.server()), context)


def test_checks_may_be_switched_off(authority: Authority) -> None:
    server = serving(authority.server(hosts=["elsewhere"]))
    named = context_of(URL, tls_trust_certs_file_path=authority.file, tls_validate_hostname=False)
    assert shake_hands(server, named).version == "TLSv1.3"
    assert shake_hands(server, context_of(URL, tls_allow_insecure_connection=True)).version == "TLSv1.3"


def test_a_broker_without_authenticated_encryption_is_refused(authority: Authority) -> None:
    server = serving(authority.server())
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    server.set_ciphers("ECDHE-ECDSA-AES256-SHA384")
    with pytest.raises(ssl.SSLError):
        shake_hands(server, context_of(URL, tls_trust_certs_file_path=authority.file))


@pytest.mark.parametrize("by_credentials", [True, False])
def test_the_client_shows_its_certificate_and_follows_its_files(
    authority: Authority, by_credentials: bool
) -> None:
    server = serving(authority.server())
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(authority.file)
    pair = authority.client("app")
    given: dict[str, Any] = {"tls_trust_certs_file_path": authority.file}
    credentials = AuthenticationTLS(pair.certificate, pair.key) if by_credentials else None
    if not by_credentials:
        given["tls_certificate_file_path"] = pair.certificate
        given["tls_private_key_file_path"] = pair.key
    contexts = tls_of(URL, TLS_SCHEME, given, credentials)  # type: ignore[arg-type]
    assert contexts is not None
    before = shake_hands(server, contexts()).certificate
    renewed = authority.client("renewed")
    os.replace(renewed.certificate, pair.certificate)
    os.replace(renewed.key, pair.key)
    after = shake_hands(server, contexts()).certificate
    assert before is not None
    assert after is not None
    assert (before.common_name, after.common_name) == ("app", "renewed")


def explained(server: ssl.SSLContext, client: ssl.SSLContext) -> ConnectError:
    with pytest.raises(ssl.SSLError) as failed:
        shake_hands(server, client)
    return explain(failed.value, "broker:6651")


def test_errors_say_what_to_do(authority: Authority) -> None:
    trusting = ClientTls(authority.file).context()
    untrusted = explained(serving(authority.server()), ClientTls().context())
    assert "tls_trust_certs_file_path" in str(untrusted)
    mismatch = explained(serving(authority.server("else", hosts=["elsewhere"])), trusting)
    assert "tls_validate_hostname" in str(mismatch)
    assert "IP address mismatch" in str(mismatch)
    expired = explained(serving(authority.server("old", days=-1)), trusting)
    assert "renew" in str(expired)
    for error in (untrusted, mismatch, expired):
        assert isinstance(error, TlsError)
        assert not error.retryable


def test_a_plain_port_reached_by_tls_is_found_out() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="broker")
    incoming.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ssl.SSLError) as failed:
        tls.do_handshake()
    assert "does not speak TLS" in str(explain(failed.value, "broker:6650"))
    hung_up = explain(ConnectionResetError(), "broker:6650")
    assert "is it a TLS port?" in str(hung_up)
    assert hung_up.retryable, "a broker that restarts closes connections too"


def test_a_tls_port_reached_without_tls_is_found_out() -> None:
    alert = bytes.fromhex("15030300020246")
    with pytest.raises(RemoteProtocolError, match=r"pulsar\+ssl://"):
        ClientMachine(now=0.0).receive(alert + b"\0", 0.0)
    assert "pulsar+ssl://" in str(closed_early("broker:6651", tls=False))
    assert "client certificate" in str(closed_early("broker:6651", tls=True))


def test_a_plain_port_of_a_broker_finds_a_tls_client_out() -> None:
    hello = bytes.fromhex("1603010200010001fc0303")
    with pytest.raises(RemoteProtocolError, match="the peer speaks TLS"):
        ServerMachine(now=0.0).receive(hello, 0.0)
