"""Messages that a blocking consumer has taken from the loop's thread and not handed out.

Callers that take many at once get slices of the list that the loop's thread made. Callers that take one at a
time get them from a deque, which any number of them may use without a lock.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Generic

from anabranch.client.message import Message
from anabranch.client.schema import V


class TakenMessages(Generic[V]):
    """Messages in the order of their numbers; the consumer holds its lock, except for `singles.popleft`."""

    def __init__(self) -> None:
        self.singles: deque[Message[V]] = deque()
        """The first messages, for callers that take one at a time."""
        self._rest: list[Message[V]] = []

    def __len__(self) -> int:
        return len(self.singles) + len(self._rest)

    def put(self, messages: list[Message[V]]) -> None:
        """Take the messages that follow when there are no others; the caller gives up the list."""
        self._rest = messages

    def pop(self, limit: int) -> list[Message[V]]:
        """The next messages, up to `limit`."""
        found: list[Message[V]] = []
        with suppress(IndexError):
            while self.singles and len(found) < limit:
                found.append(self.singles.popleft())
        rest, room = self._rest, limit - len(found)
        if len(rest) <= room:
            self._rest = []
            return found + rest if found else rest
        found += rest[:room]
        if limit == 1:
            self.singles.extend(rest[room:])
            self._rest = []
        else:
            del rest[:room]
        return found

    def waiting(self) -> list[Message[V]]:
        """All messages, which stay here."""
        return [*self.singles, *self._rest]

    def clear(self) -> None:
        self.singles.clear()
        self._rest = []
