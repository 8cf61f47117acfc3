"""Commands that a broker sends without a request: the watches of one connection, and pushes that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from anabranch.errors import AuthorizationError, TooManyRequestsError
from anabranch.rights.needs import Need

SESSIONS_MAX = 20_000

PushKey = tuple[str, int]
"""The kind of a push, and the number that the client gave to its watch, consumer or call."""


class OpenWatch(Protocol):
    """A watch that a client has opened."""

    @property
    def need(self) -> Need:
        """The right without which it must not stay open."""

    def stop(self) -> None: ...

    def refuse(self, error: AuthorizationError) -> None:
        """Notify the client that the watch has ended, and why."""


class Pushes:
    """Keeps the newest push of each key until the peer takes more; a slow peer skips the older ones."""

    def __init__(self, is_writable: Callable[[], bool]) -> None:
        self._is_writable = is_writable
        self.sessions: dict[PushKey, Callable[[], None]] = {}
        """Open watches, and registrations of other brokers, each with the function that ends it."""
        self.watches: dict[PushKey, OpenWatch] = {}
        """The sessions that are watches of clients."""
        self._unsent: dict[PushKey, Callable[[], None]] = {}
        self._closed = False

    def open_session(self, key: PushKey, watch: OpenWatch) -> None:
        """Keep a watch until its client closes it or goes; an earlier one of the same number ends."""
        self.end_session(key)
        if len(self.sessions) >= SESSIONS_MAX:
            watch.stop()
            raise TooManyRequestsError(f"a connection has at most {SESSIONS_MAX} watches")
        self.sessions[key] = watch.stop
        self.watches[key] = watch

    def end_session(self, key: PushKey) -> None:
        """Close a session. An unknown session is ignored."""
        end = self.sessions.pop(key, None)
        self.watches.pop(key, None)
        if end is not None:
            end()
        self._unsent.pop(key, None)

    def send(self, key: PushKey, push: Callable[[], None]) -> None:
        """Call `push` now, or when the peer takes more again; then only the last one of this key."""
        if self._is_writable():
            push()
        elif not self._closed:
            self._unsent[key] = push

    def flush(self) -> None:
        """Send the waiting pushes, because the peer takes more again."""
        unsent, self._unsent = self._unsent, {}
        for key, push in unsent.items():
            self.send(key, push)

    def close(self) -> list[Callable[[], None]]:
        """Drop all pushes, because the connection is gone; the caller calls the ends of all sessions.

        May be called again for sessions opened since.
        """
        self._closed = True
        ends = list(self.sessions.values())
        self.sessions.clear()
        self.watches.clear()
        self._unsent.clear()
        return ends
