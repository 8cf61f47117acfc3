"""What producers, consumers and subscriptions need of the connection they belong to.

A seam, so that the read and append paths know nothing of sockets, frames or other commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from google.protobuf.message import Message


class ClientLink(Protocol):
    """One client connection, seen from the objects on it. Writing to a closed one does nothing."""

    publish_bytes: int
    """Size of the entries of this connection that wait to become durable."""

    throttled: bool
    """Too much waits: the connection is not read for now."""

    @property
    def address(self) -> str: ...

    @property
    def client_version(self) -> str: ...

    @property
    def writable(self) -> bool:
        """Whether the peer takes what it is sent; when that changes back, its consumers are told."""
        ...

    @property
    def wants_entry_metadata(self) -> bool:
        """Whether deliveries carry broker time and message index."""
        ...

    @property
    def hears_end_of_topic(self) -> bool:
        """Whether REACHED_END_OF_TOPIC may be sent; some clients drop the connection on it."""
        ...

    def write(self, buffer: bytes) -> None: ...

    def write_many(self, buffers: Sequence[bytes]) -> None: ...

    def send(self, command: Message) -> None:
        """Queue one command that carries no entry."""
        ...

    def resume_if_room(self) -> None:
        """Read from the connection again if few enough of its bytes wait to become durable."""
        ...

    def forget_producer(self, producer_id: int) -> None:
        """The producer is closed from this side; what its client still sends is swallowed."""
        ...

    def forget_consumer(self, consumer_id: int) -> None: ...

    async def alive(self) -> bool:
        """Ask the peer for a sign of life and say whether one came."""
        ...
