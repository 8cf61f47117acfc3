"""Brokers with TLS ports: real handshakes, right and wrong ones, in one process and in two workers."""

from __future__ import annotations

import http.client
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from anabranch import Client, Producer
from anabranch.admin.client import AdminClient
from anabranch.model.names import TopicName
from anabranch.protocol.commands import encode
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.testing.certificates import Authority, tls_settings
from anabranch.transport.tls import ClientTls
from anabranch.transport.tls_errors import TlsError
from tests.process.conftest import MakeBroker

CONNECT = encode(pb.CommandConnect(client_version="test", protocol_version=21))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def connect(port: int, context: ssl.SSLContext) -> bytes:
    """Send CONNECT over TLS; return the first bytes of the answer, or nothing if the broker refused."""
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        tls.sendall(CONNECT)
        return tls.recv(2**16)
    return b""


def health(port: int, context: ssl.SSLContext) -> bytes:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
    connection.request("GET", "/admin/v2/brokers/health")
    try:
        return connection.getresponse().read()
    finally:
        connection.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_both_ports_serve_tls_and_ask_for_a_certificate_of_the_client(
    make_broker: MakeBroker, authority: Authority, tmp_path: Path, workers: int
) -> None:
    settings = tls_settings(authority.server(), authority.file)
    broker = make_broker(workers=workers, tls_require_client_certificate="true", **settings).start()
    pair = authority.client("app")
    known = ClientTls(authority.file, pair.certificate, pair.key).context()
    assert connect(broker.tls_port, known)
    assert health(broker.https_port, known) == b"ok"
    unknown = ClientTls(authority.file).context()
    assert not connect(broker.tls_port, unknown)
    strange = Authority(tmp_path).client("app", file="strange")
    stranger = ClientTls(authority.file, strange.certificate, strange.key).context()
    assert not connect(broker.tls_port, stranger)
    assert broker.stop() == 0
    assert "Traceback" not in broker.log_text


@pytest.mark.parametrize("workers", [1, 2])
def test_messages_go_through_tls_alone(make_broker: MakeBroker, authority: Authority, workers: int) -> None:
    """Without plain ports, lookups and layouts lead clients and workers to TLS ports."""
    settings = tls_settings(authority.server())
    broker = make_broker(workers=workers, port=-1, http_port=-1, **settings).start()
    assert (broker.port, broker.http_port) == (-1, -1)
    with Client(broker.tls_url, tls_trust_certs_file_path=authority.file) as client:
        for number in range(4):
            topic = f"over-tls-{number}"
            producer: Producer[bytes] = client.create_producer(topic)
            consumer = client.subscribe_stream(topic, "all", initial_position="earliest")
            producer.send(b"value", key="key")
            message = consumer.receive(timeout=30)
            assert message.value == b"value"
            consumer.acknowledge_cumulative(message)
    with AdminClient(broker.https_url, tls_trust_certs_file_path=authority.file) as admin:
        assert len(admin.brokers()) == workers
        admin.create_topic(TopicName.parse("topic://public/default/made"))
    with AdminClient(broker.https_url) as admin, pytest.raises(TlsError, match="tls_trust_certs_file_path"):
        admin.brokers()
    assert ("connected to the broker at pulsar+ssl://" in broker.log_text) == (workers > 1)
    assert broker.stop() == 0
    assert "Traceback" not in broker.log_text
