"""Bare connections to a broker, from clients that do not speak its protocol to the end."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def connections(port: int, count: int, first_bytes: bytes = b"") -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            if first_bytes:
                one.sendall(first_bytes)
            opened.append(one)
        yield opened


def ended(one: socket.socket) -> bool:
    """Whether the broker closed a connection; answers that it sent before are dropped."""
    one.setblocking(False)
    try:
        while one.recv(2**16):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def all_end(opened: list[socket.socket], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not all(map(ended, opened)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
