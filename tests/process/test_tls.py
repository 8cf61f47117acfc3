"""Brokers with TLS ports: real handshakes, right and wrong ones, in one process and in two workers."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from anabranch import Client, Producer
from anabranch.admin.client import AdminClient
from anabranch.errors import ConnectError
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Command, encode
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.dialing import dial
from anabranch.transport.pump import Pump
from anabranch.transport.tls import ClientTls
from anabranch.transport.tls_errors import TlsError
from simulation.harness.certificates import Authority, Pair, tls_settings
from tests.process.conftest import MakeBroker
from tests.process.sockets import all_end, connections

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


def test_workers_call_each_other_over_tls_and_prove_themselves(
    make_broker: MakeBroker, authority: Authority
) -> None:
    settings = tls_settings(authority.server("worker"), authority.file)
    required = {"broker_client_tls": "true", "tls_require_client_certificate": "true"}
    broker = make_broker(workers=2, **required, **settings).start()
    with AdminClient(broker.http_url) as admin:
        for number in range(4):
            admin.create_topic(TopicName.parse(f"topic://public/default/orders-{number}"))
            admin.topic_stats(TopicName.parse(f"topic://public/default/orders-{number}"))
    assert broker.stop() == 0
    assert "connected to the broker at pulsar+ssl://" in broker.log_text
    assert "connected to the broker at pulsar://" not in broker.log_text


def renewed(target: Pair, source: Pair) -> None:
    """Put new files into the place of others, as tools for certificates do."""
    os.replace(source.key, target.key)
    os.replace(source.certificate, target.certificate)


def serial(port: int, context: ssl.SSLContext) -> int:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def eventually(found: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not found():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("workers", [1, 2])
def test_a_renewed_certificate_is_used_without_a_restart(
    make_broker: MakeBroker, authority: Authority, workers: int
) -> None:
    pair = authority.server(f"renewed-{workers}")
    broker = make_broker(workers=workers, tls_refresh_s=0.05, **tls_settings(pair)).start()
    context = ClientTls(authority.file).context()
    before = serial(broker.tls_port, context)
    with (
        socket.create_connection(("127.0.0.1", broker.tls_port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as open_one,
    ):
        open_one.sendall(CONNECT)
        assert open_one.recv(2**16)
        Path(pair.key).write_text("half of a key")
        assert eventually(lambda: broker.log_text.count("the previous ones stay in use") >= workers)
        assert serial(broker.tls_port, context) == before
        renewed(pair, authority.server("next"))
        # Any worker may accept a connection of the shared port; each of them looks at the files itself.
        ports = 5 * (broker.tls_port, broker.https_port)
        assert eventually(lambda: all(serial(port, context) != before for port in ports))
        open_one.sendall(encode(pb.CommandPing()))
        assert open_one.recv(2**16) == encode(pb.CommandPong())
    assert broker.stop() == 0


def test_an_open_producer_outlives_a_wrong_certificate_of_the_broker(
    make_broker: MakeBroker, authority: Authority, tmp_path: Path
) -> None:
    pair = authority.server("outlived")
    broker = make_broker(**tls_settings(pair)).start()
    good = [(Path(file), Path(file).read_bytes()) for file in (pair.certificate, pair.key)]
    with Client(broker.tls_url, tls_trust_certs_file_path=authority.file) as client:
        producer: Producer[bytes] = client.create_producer("outlived", send_timeout=0)
        producer.send(b"before")
        broker.kill()
        renewed(pair, Authority(tmp_path).server())
        broker.start()
        waiting = producer.enqueue(b"during")
        assert eventually(lambda: "in its TLS handshake" in broker.log_text)
        assert not waiting.done()
        broker.kill()
        for path, content in good:
            path.write_bytes(content)
        broker.start()
        waiting.result(60)


def test_a_start_with_wrong_files_says_what_is_wrong(make_broker: MakeBroker, authority: Authority) -> None:
    mixed = Pair(authority.server("one").certificate, authority.server("other").key)
    for workers in (1, 2):
        with pytest.raises(RuntimeError, match="does not belong to the certificate"):
            make_broker(f"data-{workers}", workers=workers, **tls_settings(mixed)).start()


def test_slow_silent_and_garbage_clients_cost_other_clients_nothing(
    make_broker: MakeBroker, authority: Authority
) -> None:
    settings = tls_settings(authority.server())
    limits = {"handshake_timeout_s": 3.0, "http_request_timeout_s": 3.0, "http_connections_max": 20}
    broker = make_broker(connections_max=20, **limits, **settings).start()
    assert health(broker.https_port, ClientTls(authority.file).context()) == b"ok"
    files = broker.open_files()
    with Client(broker.tls_url, tls_trust_certs_file_path=authority.file) as client, ExitStack() as stack:
        producer: Producer[bytes] = client.create_producer("beside")
        producer.send(b"first")
        hello = bytes.fromhex("1603010200010001fc0303")
        opened: list[socket.socket] = []
        for first_bytes in (b"", hello, b"GET / HTTP/1.1\r\n\r\n", CONNECT):
            for port in (broker.tls_port, broker.https_port):
                opened += stack.enter_context(connections(port, 40, first_bytes))
        for number in range(10):
            producer.send(b"%d" % number)
        assert health(broker.https_port, ClientTls(authority.file).context()) == b"ok"
        assert all_end(opened, within_s=60)
        producer.send(b"last")
        # A dropped handshake holds no descriptor; the client and its connections hold a few.
        assert eventually(lambda: broker.open_files() <= files + 5)
    with connections(broker.tls_port, 5), connections(broker.https_port, 5):
        assert broker.stop() == 0
    assert "Traceback" not in broker.log_text
    assert "in its TLS handshake" in broker.log_text


class Unheard:
    """The owner of a connection whose handshake fails."""

    def connected(self, pump: Pump) -> None: ...
    def commands(self, pump: Pump, commands: list[Command]) -> None: ...
    def closed(self, pump: Pump, error: Exception | None) -> None: ...


async def dial_failure(port: int, tls: ssl.SSLContext | None) -> ConnectError:
    now = asyncio.get_running_loop().time()
    with pytest.raises(ConnectError) as error:
        await dial("127.0.0.1", port, lambda: ClientMachine(now=now), Unheard(), timeout_s=30, tls=tls)
    return error.value


def test_a_client_says_at_once_why_tls_fails(make_broker: MakeBroker, authority: Authority) -> None:
    broker = make_broker(**tls_settings(authority.server("here", hosts=["127.0.0.1"]))).start()
    trust = {"tls_trust_certs_file_path": authority.file}

    def failure(url: str, **given: Any) -> str:
        with Client(url, operation_timeout=600, **given) as client, pytest.raises(TlsError) as error:
            client.create_producer("any")
        return str(error.value)

    assert "tls_trust_certs_file_path" in failure(broker.tls_url)
    assert "tls_validate_hostname" in failure(broker.tls_url.replace("127.0.0.1", "localhost"), **trust)
    assert "does not speak TLS" in failure(f"pulsar+ssl://127.0.0.1:{broker.http_port}", **trust)


async def test_a_port_of_the_other_kind_is_found_out(make_broker: MakeBroker, authority: Authority) -> None:
    broker = make_broker(**tls_settings(authority.server())).start()
    by_tls = await dial_failure(broker.port, ClientTls(authority.file).context())
    assert "is it a TLS port?" in str(by_tls)
    plain = await dial_failure(broker.tls_port, None)
    assert "pulsar+ssl://" in str(plain)
    assert by_tls.retryable
    assert plain.retryable
    assert eventually(lambda: "the peer speaks TLS" in broker.log_text)


def test_commands_reach_a_broker_over_tls(make_broker: MakeBroker, authority: Authority) -> None:
    settings = tls_settings(authority.server(), authority.file)
    broker = make_broker(port=-1, http_port=-1, tls_require_client_certificate="true", **settings).start()

    def command(pair: Pair, *arguments: str) -> subprocess.CompletedProcess[str]:
        shown = f"tlsCertFile:{pair.certificate},tlsKeyFile:{pair.key}"
        role = {"ANABRANCH_AUTH_PLUGIN": "tls", "ANABRANCH_AUTH_PARAMS": shown}
        environment = {**os.environ, **role, "ANABRANCH_TLS_TRUST_CERTS": authority.file}
        line = [sys.executable, "-m", "anabranch.cli.main", *arguments]
        return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)

    pair = authority.client("operator")
    made = command(pair, "topic", "create", "orders", "--admin-url", broker.https_url)
    assert (made.returncode, made.stderr) == (0, "")
    sent = command(pair, "produce", "orders", "--value", "one", "--url", broker.tls_url)
    assert sent.returncode == 0, sent.stderr
    expired = authority.client("late", days=-1)
    refused = command(expired, "topic", "list", "--admin-url", broker.https_url)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
