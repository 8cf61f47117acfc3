"""kazoo's client with two additions: a persistent recursive watch, and the time of the last contact.

kazoo 2.11 knows only watches that fire once. ZooKeeper 3.6 and later report every change below a path on one
watch, so this module sends that request and reads its events. All functions here but `add_watch_async`
and `abandon` run on kazoo's connection thread and must not block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.client import KazooClient
from kazoo.protocol.connection import _CONNECTION_DROP, WATCH_XID, ConnectionHandler
from kazoo.protocol.serialization import Watch, int_struct, write_string
from kazoo.retry import KazooRetry

from anabranch.metadata.zookeeper.zookeeper_clock import ContactClock

PERSISTENT_RECURSIVE = 1

RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 1.0, "max_jitter": 0.4}
"""A client tries for ever, at least once a second, because a leader is idle until its session goes on."""


@dataclass(frozen=True)
class AddWatch:
    """ZooKeeper's request for a persistent watch."""

    type: ClassVar = 106
    path: str
    mode: int

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(self.mode))

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> bool:
        return True


class WatchingConnection(ConnectionHandler):  # type: ignore[misc]
    """Hands every watch event to the client, and keeps its clock."""

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        asked_s = time.monotonic()
        read_ms, connect_ms = super()._connect(host, hostip, port)
        # kazoo waits for two thirds of the granted timeout.
        self.client.clock.connected(asked_s, read_ms * 1.5 / 1000)
        return read_ms, connect_ms

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        self.client.clock.sent()
        super()._submit(request, timeout, xid)

    def _read_header(self, timeout: float) -> tuple[Any, bytes, int]:
        header, buffer, offset = super()._read_header(timeout)
        if header.xid != WATCH_XID:
            self.client.clock.answered()
        return header, buffer, offset

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        self.client.noticed(event.path)


class WatchingClient(KazooClient):  # type: ignore[misc]
    """One session; `noticed` is called with the znode of every event, on kazoo's connection thread."""

    def __init__(self, noticed: Callable[[str], None], **options: Any) -> None:
        super().__init__(connection_retry=KazooRetry(**RECONNECT), **options)
        self.noticed = noticed
        self.clock = ContactClock(time.monotonic)
        self._connection = WatchingConnection(self, self._conn_retry.copy(), logger=self.logger)

    def add_watch_async(self, path: str) -> Any:
        """Report every created, changed and deleted znode at and below `path`, until the connection ends."""
        result = self.handler.async_result()
        self._call(AddWatch(path, PERSISTENT_RECURSIVE), result)
        return result

    def abandon(self) -> None:
        """Stop like a killed process: the connection ends, and the session stays until its timeout."""
        self._stopped.set()
        self._queue.append((_CONNECTION_DROP, None))
        self._connection._write_sock.send(b"\0")
        self._safe_close()
