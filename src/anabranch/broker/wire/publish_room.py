"""Room for entries that wait for the disk: the bytes that one connection, and all together, may have."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

from anabranch.config.broker import BrokerConfig

SMALL_BYTES: Final = 64 * 2**10
"""A connection with fewer waiting bytes is read in any case, so that each producer makes progress."""

COUNT_S: Final = 0.05
"""The waiting bytes of all connections are counted at most this often."""


class Publishing(Protocol):
    """A connection whose entries wait for the disk."""

    publish_bytes: int


class PublishRoom:
    """Says when a connection must not be read, and when it may be read again."""

    def __init__(self, config: BrokerConfig, connections: Collection[Publishing]) -> None:
        self._each_max = config.publish_pending_bytes_max
        self._total_max = config.publish_pending_total_bytes_max
        self._connections = connections
        self._is_full = False
        self._count_at = 0.0

    def exceeded(self, waiting_bytes: int) -> bool:
        """Whether a connection with this many waiting bytes has to pause."""
        return waiting_bytes > self._each_max or (waiting_bytes > SMALL_BYTES and self._all_exceed())

    def has_room(self, waiting_bytes: int) -> bool:
        """Whether a connection that paused may go on; always when none of its bytes wait any more."""
        if waiting_bytes > self._each_max // 2:
            return False
        return waiting_bytes <= SMALL_BYTES or not self._all_exceed()

    def _all_exceed(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self._count_at:
            self._count_at = now + COUNT_S
            total = sum(connection.publish_bytes for connection in self._connections)
            self._is_full = total > self._total_max
        return self._is_full
