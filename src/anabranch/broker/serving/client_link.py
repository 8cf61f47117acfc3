"""The connection of a client, as its producers, consumers and subscriptions see it.

A port, so that the read and append paths know nothing of sockets, frames or other commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from google.protobuf.message import Message


class ClientLink(Protocol):
    """One client connection. Writing to a closed one does nothing."""

    publish_bytes: int
    """Bytes of this connection that wait to become durable."""

    throttled: bool
    """Whether too many bytes wait, so that the connection is not read for now."""

    @property
    def address(self) -> str: ...

    @property
    def client_version(self) -> str: ...

    @property
    def writable(self) -> bool:
        """Whether the peer takes more bytes; the link schedules its consumers when it does again."""
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
        """Drop the SENDs of a producer that is closed from this side."""
        ...

    def forget_consumer(self, consumer_id: int) -> None: ...

    async def alive(self) -> bool:
        """Whether the peer answers a request for a sign of life."""
        ...
