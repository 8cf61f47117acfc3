"""The door of one port: counts connections from accept on, and decides which one leaves when it is full.

A connection *waits* at the door until its client has shown what it wants: CONNECT, or a whole HTTP request. A
client that keeps a connection waiting makes room for others first. The door knows no socket and no protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from anabranch.errors import TooManyRequestsError
from anabranch.transport.seldom import Seldom

_logger = logging.getLogger(__name__)


class Visitor(Protocol):
    """A connection, as its door sees it."""

    def abort(self, error: Exception | None = None) -> None:
        """Close the connection at once, for this reason."""


class Listener(Protocol):
    """Accepts connections until it is closed."""

    def close(self) -> None: ...


V = TypeVar("V", bound=Visitor)


class Door(Generic[V]):
    """All connections of one port, those in their handshake included."""

    def __init__(self, name: str, open_max: int, make: Callable[[], V]) -> None:
        self.name = name
        self.open_max = open_max
        self._make = make
        self._open: dict[V, None] = {}
        self._waiting: dict[V, None] = {}
        """Open connections whose clients have not sent what they want; the longest waiting one first."""
        self._shaking: dict[V, Callable[[], object]] = {}
        """How to end the TLS handshake of a connection, which has no transport to abort until it is done."""
        self.dropped = 0
        self.refused = 0
        self._log = Seldom(_logger)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def open(self) -> V | None:
        """Return a new connection, which counts from now on; None when the port is full."""
        if len(self._open) >= self.open_max and not self.make_room():
            self.refused += 1
            self._report()
            return None
        visitor = self._make()
        self._open[visitor] = self._waiting[visitor] = None
        return visitor

    def shakes_hands(self, visitor: V, give_up: Callable[[], object]) -> bool:
        """Note that a TLS handshake begins; False if the connection was closed already."""
        if visitor not in self._open:
            return False
        self._shaking[visitor] = give_up
        return True

    def has_shaken_hands(self, visitor: V) -> None:
        self._shaking.pop(visitor, None)

    def make_room(self) -> bool:
        """Close the connection that has waited longest; False if no connection waits."""
        visitor = next(iter(self._waiting), None)
        if visitor is None:
            return False
        self.dropped += 1
        self._report()
        self._drop(
            visitor, TooManyRequestsError(f"{self.name} is full, and this connection was silent for longest")
        )
        return True

    def settle(self, visitor: V) -> None:
        """Note that the client has sent what it wants."""
        self._waiting.pop(visitor, None)

    def wait_again(self, visitor: V) -> None:
        """Note that the client has to send its next request."""
        if visitor in self._open:
            self._waiting.setdefault(visitor)

    def leave(self, visitor: V) -> None:
        """Forget a closed connection; unknown connections are ignored."""
        self._open.pop(visitor, None)
        self._shaking.pop(visitor, None)
        self._waiting.pop(visitor, None)

    def clear(self) -> None:
        """Close all connections that wait."""
        for visitor in list(self._waiting):
            self._drop(visitor, None)

    def _drop(self, visitor: V, error: Exception | None) -> None:
        give_up = self._shaking.pop(visitor, None)
        self.leave(visitor)
        visitor.abort(error)
        if give_up is not None:
            give_up()

    def _report(self) -> None:
        self._log.warning(
            "%s is full with %d connections: %d silent ones were dropped and %d new ones refused so far; "
            "raise its limit, or the limit of file descriptors (ulimit -n)",
            self.name,
            len(self._open),
            self.dropped,
            self.refused,
        )
