"""Credentials of our clients against a real broker: tokens, OAuth2, HTTP, the command line, refresh."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from anabranch import AuthenticationOauth2, AuthenticationToken, Client
from anabranch.admin.client import AdminClient
from anabranch.cli.main import main
from anabranch.credentials.asking import proof
from anabranch.errors import AuthenticationError, ConnectError
from simulation.harness.certificates import Authority
from simulation.harness.process import BrokerProcess
from tests.harness.issuer import Issuer
from tests.harness.security import SECURE, token_for

PATIENCE_S = 60.0
EXPIRES_S = 4
"""Life of a short token; issuers give whole seconds, and a loaded machine needs some of them."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("credentials") / "data", SECURE) as process:
        yield process


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer({"alice": "sesame"}) as issuer:
        yield issuer


def oauth2(issuer: Issuer, **more: str) -> AuthenticationOauth2:
    parameters = {"issuer_url": issuer.url, "client_id": "alice", "client_secret": "sesame", **more}
    return AuthenticationOauth2(json.dumps(parameters))


def test_wrong_credentials_are_refused_at_once_on_both_ports(broker: BrokerProcess) -> None:
    expired = token_for("alice", exp=int(time.time()) - 100)
    for authentication in (None, AuthenticationToken("not-a-token"), AuthenticationToken(expired)):
        began = time.monotonic()
        with Client(broker.url, authentication=authentication) as client:
            with pytest.raises(AuthenticationError):
                client.create_producer("orders")
            with pytest.raises(AuthenticationError):
                client.subscribe_stream("orders", "s")
        with (
            AdminClient(broker.http_url, authentication=authentication) as admin,
            pytest.raises(AuthenticationError),
        ):
            admin.list_topics("public/default")
        # A call that is retried takes thirty seconds.
        assert time.monotonic() - began < 25


def test_a_token_file_is_read_for_each_request_and_connection(broker: BrokerProcess, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("not-a-token")
    authentication = AuthenticationToken(path.as_uri())
    with AdminClient(broker.http_url, authentication=authentication) as admin:
        with pytest.raises(AuthenticationError):
            admin.brokers()
        path.write_text(token_for("alice"))
        assert len(admin.brokers()) == 1
    with Client(broker.url, authentication=authentication) as client:
        client.create_producer("orders").send(b"one")
    # A token that is replaced while a request is under way costs no call.
    tokens = ["expired", token_for("alice")]
    replaced = AuthenticationToken(lambda: tokens.pop(0) if len(tokens) > 1 else tokens[0])
    with AdminClient(broker.http_url, authentication=replaced) as admin:
        assert len(admin.brokers()) == 1


def test_a_live_producer_and_consumer_outlive_their_tokens(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """No message is lost and none comes twice, while tokens expire several times on open connections."""
    issued: list[str] = []

    def supply() -> str:
        issued.append(token_for("alice", exp=int(time.time()) + EXPIRES_S))
        return issued[-1]

    end = time.monotonic() + 60
    sent: list[bytes] = []
    received: list[bytes] = []
    with Client(broker.url, authentication=AuthenticationToken(supply)) as client:
        consumer = client.subscribe_stream("lasting", "s", initial_position="earliest")

        def publish() -> None:
            producer = client.create_producer("lasting")
            # One token for the connection, and two for those that expired on it.
            while len(issued) < 3 and time.monotonic() < end:
                sent.append(b"%d" % len(sent))
                producer.send(sent[-1], key="k")
                time.sleep(0.02)

        thread = threading.Thread(target=publish)
        thread.start()
        while thread.is_alive() or len(received) < len(sent):
            messages = consumer.receive_many(100, timeout=0.5)
            received += [message.data for message in messages]
            if messages:
                consumer.acknowledge_cumulative(messages[-1])
        thread.join()
    assert received == sent
    assert len(issued) >= 3
    assert not [line for line in caplog.messages if "lost the connection" in line]


def test_oauth2_is_accepted_by_the_broker_that_knows_the_issuers_keys(
    make_broker: Callable[..., BrokerProcess], issuer: Issuer, tmp_path: Path
) -> None:
    key = tmp_path / "issuer.pem"
    key.write_bytes(issuer.public_key())
    broker = make_broker(authentication=True, token_public_key=str(key)).start()
    key_file = issuer.write_key_file(tmp_path / "key.json", "alice")
    authentication = AuthenticationOauth2(
        json.dumps({"type": "client_credentials", "issuer_url": issuer.url, "private_key": key_file})
    )
    with Client(broker.url, authentication=authentication) as client:
        client.create_producer("orders").send(b"one")
    with AdminClient(broker.http_url, authentication=authentication) as admin:
        assert admin.list_topics("public/default") == ["topic://public/default/orders"]
    assert len(issuer.forms) == 1


def test_an_issuer_that_refuses_or_is_gone_is_named(broker: BrokerProcess, issuer: Issuer) -> None:
    with (
        Client(broker.url, authentication=oauth2(issuer, client_secret="open up")) as client,
        pytest.raises(AuthenticationError, match="invalid_client") as raised,
    ):
        client.create_producer("orders")
    assert "open up" not in str(raised.value)
    issuer.answer_status = 503
    with (
        Client(broker.url, authentication=oauth2(issuer), operation_timeout=2.0) as client,
        pytest.raises(AuthenticationError, match="503"),
    ):
        client.create_producer("orders")
    nowhere = AuthenticationOauth2(
        json.dumps({"issuer_url": "http://127.0.0.1:1", "client_id": "a", "client_secret": "b"})
    )
    with (
        AdminClient(broker.http_url, authentication=nowhere) as admin,
        pytest.raises(AuthenticationError, match="cannot reach the issuer"),
    ):
        admin.brokers()


def serving_tls(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = authority.server()
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def test_an_issuer_with_tls_must_be_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with Issuer({"alice": "sesame"}, tls=serving_tls(authority)) as issuer:
        with pytest.raises(AuthenticationError, match="is not trusted"):
            asyncio.run(proof(oauth2(issuer), "broker", PATIENCE_S))
        assert issuer.forms == []
        trusted = oauth2(issuer, tls_trust_certs_file_path=authority.file)
        assert asyncio.run(proof(trusted, "broker", PATIENCE_S)).count(b".") == 2


def test_a_redirect_away_from_tls_gets_no_credentials(tmp_path: Path) -> None:
    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(307)
            self.send_header("location", "http://127.0.0.1:1/admin/v2/brokers/workers")
            self.end_headers()

    authority = Authority(tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        server.socket = serving_tls(authority).wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"https://127.0.0.1:{server.server_address[1]}"
        role = AuthenticationToken("secret")
        with (
            AdminClient(url, authentication=role, tls_trust_certs_file_path=authority.file) as admin,
            pytest.raises(ConnectError, match="without TLS"),
        ):
            admin.brokers()
        server.shutdown()


def test_commands_prove_their_role_from_the_environment_and_from_files(
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*words: str) -> tuple[int, str]:
        code = main(words)
        captured = capsys.readouterr()
        assert token_for("alice") not in captured.out + captured.err
        return code, captured.err

    monkeypatch.setenv("ANABRANCH_URL", broker.url)
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", broker.http_url)
    for command in (["topic", "create", "ordered"], ["produce", "ordered", "--value", "one"]):
        code, text = run(*command)
        assert code == 1
        assert "--token-file" in text
    token, conf = tmp_path / "token", tmp_path / "client.conf"
    token.write_text(token_for("alice"))
    conf.write_text(f"authPlugin=token\nauthParams={token.as_uri()}\n")
    assert run("topic", "create", "ordered", "--token-file", str(token))[0] == 0
    assert run("produce", "ordered", "--value", "one", "--client-conf", str(conf))[0] == 0
    monkeypatch.setenv("ANABRANCH_TOKEN", token_for("alice"))
    assert run("consume", "ordered", "--from", "earliest", "--count", "1")[0] == 0
    assert run("brokers")[0] == 0
