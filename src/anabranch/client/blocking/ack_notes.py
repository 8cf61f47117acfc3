"""Acknowledgements on their way from callers' threads to the loop's thread.

A caller notes a message without crossing threads; one callback of the loop takes all that were noted. Later
calls of the consumer reach the loop behind that callback, so `flush_acks` and `close` cover every note.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol

from anabranch.client.blocking.portal import Portal
from anabranch.client.message import Message
from anabranch.client.schema import V
from anabranch.errors import AlreadyClosedError


class NotingAcks(Protocol):
    """The acknowledgements of the asyncio twin."""

    def note(self, messages: Sequence[Message[Any]]) -> None: ...


class AckNotes(Generic[V]):
    """The messages that callers of one consumer have acknowledged and its twin does not know of yet."""

    def __init__(self, portal: Portal, acks: NotingAcks, method: str) -> None:
        """`method` names the callers' method in errors."""
        self._portal = portal
        self._acks = acks
        self._method = method
        self._noted: list[Message[V]] = []
        self._taking = False

    def put(self, message: Message[V]) -> None:
        """Note a message whose acknowledgement can neither wait nor fail, from any thread."""
        self._noted.append(message)
        if not self._taking:
            self._wake()

    def _wake(self) -> None:
        self._portal.check(self._method)
        self._taking = True
        if not self._portal.call_soon(self._take):
            self._taking = False
            raise AlreadyClosedError("the client is closed")

    def _take(self) -> None:
        # A caller that sees the flag still set has noted its message before this look at the notes.
        self._taking = False
        # Callers may add notes between the two steps, which are atomic.
        taken = self._noted[:]
        del self._noted[: len(taken)]
        self._acks.note(taken)
