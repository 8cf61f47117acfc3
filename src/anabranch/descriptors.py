"""File descriptors of one process: its limit, how ports and stores share it, and files opened at the limit.

Strangers decide how many sockets are open, and the broker how many files, so the stores' share is set aside
first.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

_logger = logging.getLogger(__name__)

EXHAUSTED = (errno.EMFILE, errno.ENFILE)
"""Errors that mean that the process or the machine has no descriptor left, while the disk is fine."""

PATIENCE_S = 60.0
"""How long opening a file waits for a free descriptor."""

RETRY_S = 0.05

HANDSHAKES = 64
"""Connections beyond `connections_max` that may be in their handshake: each of them learns the limit."""

_ANY_PROCESS = 64
"""Streams, event loop, metadata store, locks, listeners, and connections accepted within one turn."""
_EACH_WORKER = 4
"""Connections between two workers."""
_EACH_STORE = 8
"""Lock, journal, reads and replaced files of one store, in addition to the ledger files it keeps open."""
_FILES_OF_STORE = (8, 256)
_HTTP_LEAST = 16
_CONNECTIONS_LEAST = 16
_SHARE = 8
"""If descriptors are scarce, the ledger files and the HTTP port each get one part in this many."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The descriptors that a worker with this configuration could use."""

    connections: int
    http_connections: int
    stores: int
    """All stores of the directory: the worker may have to serve each of them."""
    workers: int


@dataclass(frozen=True, slots=True)
class Shares:
    """How many descriptors each part of a worker may use."""

    connections: int
    http_connections: int
    files_per_store: int


def share(limit: int, demand: Demand) -> Shares:
    """Divide `limit` descriptors; the shares exceed a limit that is too small for the least of each part."""
    least, most = _FILES_OF_STORE
    fixed = _ANY_PROCESS + HANDSHAKES + demand.workers * _EACH_WORKER + demand.stores * _EACH_STORE
    left = limit - fixed
    per_store = min(most, max(least, left // _SHARE // demand.stores))
    http = min(demand.http_connections, max(_HTTP_LEAST, left // _SHARE))
    rest = left - per_store * demand.stores - http
    return Shares(min(demand.connections, max(_CONNECTIONS_LEAST, rest)), http, per_store)


def share_limit(demand: Demand) -> Shares:
    """Raise the limit of this process and divide it; a log line says if a port gets less than it needs."""
    limit = raise_limit()
    shares = share(limit, demand)
    if (shares.connections, shares.http_connections) != (demand.connections, demand.http_connections):
        _logger.warning(
            "%d file descriptors (ulimit -n) allow %d connections and %d HTTP connections, fewer than the "
            "configured %d and %d",
            limit,
            shares.connections,
            shares.http_connections,
            demand.connections,
            demand.http_connections,
        )
    return shares


def raise_limit() -> int:
    """Raise the limit of this process as far as it may; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            _logger.warning("the limit of %d file descriptors cannot be raised: %s", soft, error)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def open_patiently(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """Open a file as `os.open` does, and wait if no descriptor is free."""
    return patiently(lambda: os.open(path, flags, mode))


def patiently(attempt: Callable[[], int], make_room: Callable[[], None] = lambda: None) -> int:
    """Open a file in a thread that may wait: without a free descriptor, make room and try again.

    Raises OSError when there is still none after PATIENCE_S, or for any other reason at once.
    """
    deadline = 0.0
    while True:
        try:
            return attempt()
        except OSError as error:
            now = time.monotonic()
            if error.errno not in EXHAUSTED or (deadline and now >= deadline):
                raise
            if not deadline:
                deadline = now + PATIENCE_S
                _logger.warning(
                    "%s; opening a file of a store waits for a free descriptor", os.strerror(error.errno)
                )
                make_room()
                continue
        time.sleep(RETRY_S)
