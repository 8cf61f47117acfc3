"""Ports of the loopback for servers that a test starts later, or starts again."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import count
from typing import Final

FIRST: Final = 20_000
END: Final = 32_768
"""Linux gives the ports from here on to outgoing connections, which would keep a server from its port."""


def free_port() -> int:
    """A port that no server has; no two calls of a process return the same."""
    for port in _PORTS:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("the numbers never end")


def _numbers() -> Iterator[int]:
    """Each process begins elsewhere, so that several runs of tests do not choose the same ports."""
    return (FIRST + number % (END - FIRST) for number in count(os.getpid() * 97))


_PORTS: Final = _numbers()
