"""Ports of the loopback for servers that a test starts later, or starts again."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import count
from typing import Final

FIRST: Final = 20_000
END: Final = 32_768
"""Linux uses the ports from here on for outgoing connections, which could occupy the port of a server."""


def free_port() -> int:
    """Return a port that no server uses. No two calls in one process return the same port."""
    for port in _PORTS:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("the iterator of port numbers is endless")


def _numbers() -> Iterator[int]:
    """Start at another port in each process, so that concurrent test runs do not choose the same ports."""
    return (FIRST + number % (END - FIRST) for number in count(os.getpid() * 97))


_PORTS: Final = _numbers()
