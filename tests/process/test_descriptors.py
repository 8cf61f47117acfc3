"""Few file descriptors: connections that send nothing cost no other client."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import urllib.request
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from anabranch import Client
from anabranch.transport.accepting import RETRY_S, Acceptor
from anabranch.transport.door import Door
from anabranch.transport.pump import Pump
from simulation.harness.process import BrokerProcess
from tests.process.sockets import all_end, connections

MakeBroker = Callable[..., BrokerProcess]

HANDSHAKE_S = 2.0


@pytest.fixture(autouse=True)
def _many_sockets() -> Iterator[None]:
    """Let the test itself open as many sockets as the machine allows."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def publish_and_consume(broker: BrokerProcess, topic: str) -> None:
    with Client(broker.url, operation_timeout=20) as client:
        producer = client.create_producer(topic)
        producer.send(b"one")
        consumer = client.subscribe_stream(topic, "s", initial_position="earliest")
        assert consumer.receive(timeout=20).value == b"one"


def get(broker: BrokerProcess, path: str) -> str:
    with urllib.request.urlopen(f"{broker.http_url}{path}", timeout=20) as response:
        return str(response.read().decode())


@pytest.mark.parametrize("workers", [1, 2])
def test_silent_connections_beyond_the_descriptors_do_not_end_the_broker(
    make_broker: MakeBroker, workers: int
) -> None:
    broker = make_broker(descriptors=1024, workers=workers, handshake_timeout_s=HANDSHAKE_S).start()
    processes = broker.children() if workers > 1 else [broker.pid]
    with connections(broker.port, 1200 * workers) as opened:
        for number in range(5):
            # Each topic opens files, of which a broker without a reserve would have none left.
            publish_and_consume(broker, f"during-{number}")
        assert get(broker, "/admin/v2/brokers/health") == "ok"
        assert all_end(opened, within_s=30)
    publish_and_consume(broker, "after")
    assert (broker.children() if workers > 1 else [broker.pid]) == processes
    assert "Traceback" not in broker.log_text
    assert broker.stop() == 0


class ExhaustedListener:
    """A listener with a waiting client, for which no descriptor is left."""

    def __init__(self, client: socket.socket) -> None:
        self.accepts = 0
        self._client = client

    def fileno(self) -> int:
        return self._client.fileno()

    def setblocking(self, flag: bool) -> None: ...

    def accept(self) -> tuple[socket.socket, object]:
        self.accepts += 1
        raise OSError(errno.EMFILE, "none is left")

    def close(self) -> None: ...


async def test_an_acceptor_without_a_free_descriptor_does_not_spin() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"here")
        listener = ExhaustedListener(ours)
        door: Door[Pump] = Door("port", 10, lambda: pytest.fail("no connection is made"))
        acceptor = Acceptor(cast(socket.socket, listener), door)
        await asyncio.sleep(3 * RETRY_S)
        acceptor.close()
        assert 1 <= listener.accepts <= 10


def test_a_broker_without_a_free_descriptor_waits_for_one(make_broker: MakeBroker) -> None:
    broker = make_broker(handshake_timeout_s=HANDSHAKE_S).start()
    publish_and_consume(broker, "before")
    # The HTTP port opens last: a broker that answers there has loaded all of its modules.
    assert get(broker, "/admin/v2/brokers/health") == "ok"
    limit, most = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    # A broker accepts in order: when it serves the client, it has accepted the silent connections.
    with connections(broker.port, 5) as silent, Client(broker.url, operation_timeout=20) as client:
        producer = client.create_producer("during", send_timeout=30)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (broker.open_files(), most))
        with connections(broker.port, 50) as waiting:
            for number in range(3):
                producer.send(b"%d" % number)
            assert all_end(silent, within_s=30)
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, most))
            assert all_end(waiting, within_s=30)
    publish_and_consume(broker, "after")
    assert "cannot accept a connection" in broker.log_text
    assert "Traceback" not in broker.log_text
    assert broker.stop() == 0
