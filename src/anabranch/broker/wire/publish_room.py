"""Limits the bytes of entries that wait for the disk, for each connection and for all of them together.

A connection above its room is not read. Producers of our clients stop before that: they send only as many
bytes as the broker gives them credit for, so that the other requests of their connection are always read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Protocol

from anabranch.config.broker import BrokerConfig
from anabranch.protocol.pb import pulsar_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from anabranch.broker.serving.rates.rate_gates import Pauses

SMALL_BYTES: Final = 64 * 2**10
"""A connection with fewer waiting bytes is read in any case, so that each producer makes progress."""

COUNT_S: Final = 0.05
"""The waiting bytes of all connections are counted at most this often."""

STORING: Final = 2
"""A connection gets no credit back while this many times its credit waits for the disk."""

TOLD: Final = 4
"""A client is told that its entries were taken each time 1/TOLD of its credit was used."""


class Publishing(Protocol):
    """A connection whose entries wait for the disk."""

    publish_bytes: int


class PublishingConnection(Publishing, Protocol):
    """A connection that can be stopped, and whose client may follow its credit."""

    throttled: bool

    @property
    def pauses(self) -> Pauses: ...

    def send(self, command: Message) -> None: ...


class PublishRoom:
    """Says when a connection must not be read, and when it may be read again."""

    def __init__(self, config: BrokerConfig, connections: Collection[Publishing]) -> None:
        self._each_max = config.publish_pending_bytes_max
        self._total_max = config.publish_pending_total_bytes_max
        self._connections = connections
        self._total = 0
        self._count_at = 0.0
        self.credit_bytes = min(config.publish_credit_bytes, self._each_max // 2)
        """Bytes that a client may send before the broker has taken them; 0 switches credits off."""
        self.told_bytes = max(self.credit_bytes // TOLD, 1)
        self._credited_max = min(STORING * self.credit_bytes, self._each_max // 2)

    def exceeded(self, waiting_bytes: int) -> bool:
        """Whether a connection with this many waiting bytes has to pause."""
        if waiting_bytes > self._each_max:
            return True
        return waiting_bytes > SMALL_BYTES and self._all_waiting() > self._total_max

    def has_room(self, waiting_bytes: int) -> bool:
        """Whether a paused connection may go on. It always may if none of its bytes wait."""
        if waiting_bytes > self._each_max // 2:
            return False
        return waiting_bytes <= SMALL_BYTES or self._all_waiting() <= self._total_max

    def gives_credit(self, waiting_bytes: int) -> bool:
        """Whether a connection gets its credit back. It always does if few of its bytes wait.

        It has to be refused long before connections pause, because producers of others cannot wait for it.
        """
        if waiting_bytes <= SMALL_BYTES:
            return True
        return waiting_bytes <= self._credited_max and self._all_waiting() <= self._total_max // 2

    def _all_waiting(self) -> int:
        now = asyncio.get_running_loop().time()
        if now >= self._count_at:
            self._count_at = now + COUNT_S
            self._total = sum(connection.publish_bytes for connection in self._connections)
        return self._total


class ConnectionRoom:
    """The room of one connection: its credit, and whether it is read."""

    def __init__(self, room: PublishRoom, connection: PublishingConnection) -> None:
        self.is_credited = False
        """Whether the client follows its credit, so that it has to be told which bytes were taken."""
        self._room = room
        self._connection = connection
        self._is_paused = False
        self._holds_credit = False
        self._taken_bytes = self._told_bytes = 0

    def grant(self) -> None:
        """Tell the client its credit before its first producer may send."""
        if not self.is_credited:
            self.is_credited = True
            self._connection.send(pb.CommandProducerCredit(bytes=self._room.credit_bytes))

    def took(self, size: int) -> None:
        """Note that entries of this size were read; their credit is given back if there is room."""
        self._taken_bytes += size
        if self._taken_bytes - self._told_bytes >= self._room.told_bytes:
            self._holds_credit = True
            self.resume()

    def check(self) -> None:
        """Stop reading if too many bytes wait."""
        if not self._is_paused and self._room.exceeded(self._connection.publish_bytes):
            self._is_paused = self._connection.throttled = True
            self._connection.pauses.add("publishes")

    def resume(self) -> None:
        """Read again, and give credit back, if there is room; called after entries were stored, too."""
        waiting, connection = self._connection.publish_bytes, self._connection
        if self._is_paused and self._room.has_room(waiting):
            self._is_paused = False
            connection.pauses.remove("publishes")
        if self._holds_credit and self._room.gives_credit(waiting):
            self._holds_credit = False
            self._told_bytes = self._taken_bytes
            connection.send(pb.CommandProducerCredit(taken_bytes=self._told_bytes))
        connection.throttled = self._is_paused or self._holds_credit
