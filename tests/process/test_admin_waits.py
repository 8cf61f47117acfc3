"""Every call of the admin client returns within its timeout, on servers that are gone, silent or slow."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.errors import ConnectError, OperationTimeoutError
from anabranch.model.names import TopicName
from tests.harness.public import methods

TIMEOUT_S = 0.5
PATIENCE_S = 20.0
ORDERS = TopicName.parse("topic://public/default/orders")

CALLS: dict[str, Callable[[AdminClient], Any]] = {
    "call": lambda admin: admin.call("GET", "/"),
    "brokers": lambda admin: admin.brokers(),
    "create_topic": lambda admin: admin.create_topic(ORDERS),
    "delete_topic": lambda admin: admin.delete_topic(ORDERS),
    "migrate": lambda admin: admin.migrate(ORDERS),
    "list_topics": lambda admin: admin.list_topics("public/default"),
    "topic_metadata": lambda admin: admin.topic_metadata(ORDERS),
    "set_properties": lambda admin: admin.set_properties(ORDERS, {}),
    "delete_property": lambda admin: admin.delete_property(ORDERS, "colour"),
    "topic_stats": lambda admin: admin.topic_stats(ORDERS),
    "why": lambda admin: admin.why(ORDERS),
    "split": lambda admin: admin.split(ORDERS, 0),
    "merge": lambda admin: admin.merge(ORDERS, [0, 1]),
    "rebucket": lambda admin: admin.rebucket(ORDERS, 0),
    "create_subscription": lambda admin: admin.create_subscription(ORDERS, "s"),
    "delete_subscription": lambda admin: admin.delete_subscription(ORDERS, "s"),
    "seek": lambda admin: admin.seek(ORDERS, "s", 0),
    "skip_all": lambda admin: admin.skip_all(ORDERS, "s"),
    "lanes": lambda admin: admin.lanes(ORDERS, "s"),
    "lane": lambda admin: admin.lane(ORDERS, "s", "0:1"),
    "peek_lane": lambda admin: admin.peek_lane(ORDERS, "s", "0:1"),
    "release_lane": lambda admin: admin.release_lane(ORDERS, "s", "0:1"),
    "skip_lane": lambda admin: admin.skip_lane(ORDERS, "s", "0:1"),
    "tenants": lambda admin: admin.tenants(),
    "create_tenant": lambda admin: admin.create_tenant("shop"),
    "delete_tenant": lambda admin: admin.delete_tenant("shop"),
    "tenant_admins": lambda admin: admin.tenant_admins("shop"),
    "set_tenant_admins": lambda admin: admin.set_tenant_admins("shop", ["alice"]),
    "namespaces": lambda admin: admin.namespaces("shop"),
    "create_namespace": lambda admin: admin.create_namespace("shop/orders"),
    "delete_namespace": lambda admin: admin.delete_namespace("shop/orders"),
    "permissions": lambda admin: admin.permissions(ORDERS),
    "grant": lambda admin: admin.grant(ORDERS, "alice", ["produce"]),
    "revoke": lambda admin: admin.revoke(ORDERS, "alice"),
    "subscription_roles": lambda admin: admin.subscription_roles("public/default"),
    "reserve_subscription": lambda admin: admin.reserve_subscription("public/default", "s", ["alice"]),
    "quotas": lambda admin: admin.quotas("public/default"),
    "set_quotas": lambda admin: admin.set_quotas("public/default", {}),
    "usage": lambda admin: admin.usage("public"),
    "close": lambda admin: admin.close(),
}


def trickle(peer: socket.socket) -> None:
    """Send a head that never ends, one byte at a time."""
    with suppress(OSError):
        peer.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while True:
            time.sleep(0.05)
            peer.sendall(b"x")


def redirect(peer: socket.socket) -> None:
    """Answer each request late, with the advice to try it again here."""
    with suppress(OSError):
        here = f"http://127.0.0.1:{peer.getsockname()[1]}/"
        while peer.recv(65536):
            time.sleep(TIMEOUT_S * 0.4)
            peer.sendall(f"HTTP/1.1 307 Go\r\nLocation: {here}\r\nContent-Length: 0\r\n\r\n".encode())


def never_answer(peer: socket.socket) -> None:
    with suppress(OSError):
        while peer.recv(65536):
            pass


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Starts a server whose connections are handled by a function; returns its URL."""
    listening: list[socket.socket] = []

    def start(handle: Callable[[socket.socket], None]) -> str:
        server = socket.create_server(("127.0.0.1", 0), backlog=100)
        listening.append(server)

        def answer(peer: socket.socket) -> None:
            with peer:
                handle(peer)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server in listening:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def call_all(url: str) -> None:
    """Make all calls side by side, each with its own client; each ends in time with an error in words."""
    took: dict[str, float] = {}

    def run(name: str) -> None:
        began = time.monotonic()
        with suppress(OperationTimeoutError, ConnectError):
            CALLS[name](AdminClient(url, timeout_s=TIMEOUT_S))
        took[name] = time.monotonic() - began

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in CALLS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert took.keys() == CALLS.keys()
    assert max(took.values()) < PATIENCE_S / 2


def test_every_method_of_the_admin_client_is_called_here() -> None:
    assert methods(AdminClient).keys() == CALLS.keys()


def test_a_server_that_is_gone() -> None:
    call_all("http://127.0.0.1:1")


@pytest.mark.parametrize("handle", [never_answer, trickle, redirect])
def test_a_server_that_does_not_answer_in_time(
    serve: Callable[[Callable[[socket.socket], None]], str], handle: Callable[[socket.socket], None]
) -> None:
    call_all(serve(handle))
    admin = AdminClient(serve(handle), timeout_s=TIMEOUT_S)
    with pytest.raises(OperationTimeoutError, match=r"within 0.5 s"):
        admin.brokers()
