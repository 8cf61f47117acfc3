"""HTTP clients that send part of a request: other calls are answered, and the connection ends in time."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress

import pytest

from simulation.harness.process import BrokerProcess
from tests.process.sockets import all_end, connections

MakeBroker = Callable[..., BrokerProcess]

WHOLE = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF_HEAD = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\nX-Half:"
HALF_BODY = (
    b"POST /admin/v2/scalable/public/default/t/split/0 HTTP/1.1\r\nHost: localhost\r\n"
    b'Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"half":'
)
CHUNKED = (
    b"PUT /admin/v2/scalable/public/default/t HTTP/1.1\r\nHost: localhost\r\n"
    b'Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"hal'
)


def get(broker: BrokerProcess, path: str) -> str:
    with urllib.request.urlopen(f"{broker.http_url}{path}", timeout=20) as response:
        return str(response.read().decode())


def wait_for(holds: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check_calls(broker: BrokerProcess) -> None:
    for path in ("/admin/v2/clusters", "/metrics", "/admin/v2/brokers/health"):
        assert get(broker, path)


@pytest.mark.parametrize(
    ("limit", "begun"),
    [
        pytest.param(1000, HALF_HEAD, id="half a head"),
        pytest.param(200, HALF_BODY, id="half a body"),
        pytest.param(200, CHUNKED, id="half a chunk"),
        pytest.param(200, WHOLE + HALF_HEAD, id="half of the second head"),
        pytest.param(200, b"", id="nothing"),
    ],
)
def test_half_sent_requests_do_not_keep_admin_calls_out(
    make_broker: MakeBroker, limit: int, begun: bytes
) -> None:
    broker = make_broker(http_request_timeout_s=2.0, http_connections_max=limit).start()
    check_calls(broker)
    with connections(broker.http_port, limit + 100, begun) as opened:
        check_calls(broker)
        assert all_end(opened, within_s=30)
    check_calls(broker)
    assert "Traceback" not in broker.log_text
    assert broker.stop() == 0


def test_a_request_sent_byte_by_byte_ends_in_time(make_broker: MakeBroker) -> None:
    broker = make_broker(http_request_timeout_s=2.0).start()
    check_calls(broker)
    began = time.monotonic()
    answer = b""
    with socket.create_connection(("127.0.0.1", broker.http_port), timeout=0.2) as slow:
        for byte in HALF_HEAD * 20:
            try:
                slow.send(bytes((byte,)))
                answer = slow.recv(1000)
                break
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert answer.endswith(b'send it again"}')
    assert 1.5 < time.monotonic() - began < 30


def test_a_head_has_a_largest_size(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    with socket.create_connection(("127.0.0.1", broker.http_port), timeout=20) as one:
        one.sendall(b"GET /metrics?" + b"x" * 40_000)
        assert one.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_a_client_that_does_not_take_its_answers_is_dropped(make_broker: MakeBroker) -> None:
    broker = make_broker(http_request_timeout_s=2.0).start()
    check_calls(broker)
    time.sleep(0.5)
    before = broker.open_files()
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.socket() as never_reads:
        never_reads.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        never_reads.connect(("127.0.0.1", broker.http_port))
        never_reads.settimeout(5)
        with suppress(TimeoutError, ConnectionError):
            never_reads.sendall(request * 20_000)
        wait_for(lambda: broker.open_files() > before)
        wait_for(lambda: broker.open_files() <= before)
    check_calls(broker)
