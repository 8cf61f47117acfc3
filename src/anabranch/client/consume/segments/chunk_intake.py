"""The chunks of large messages that one segment's consumer collects until the messages are complete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from anabranch.client.decide.consuming.acknowledgements import LedgerEntry
from anabranch.client.decide.consuming.chunks import LOOK_S, ChunkAssembly, WholeMessage


class ChunkIntake:
    """Puts chunks together, and gives those up whose message will never be complete."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ask_for_end: Callable[[], asyncio.Future[Any] | None],
        drop: Callable[[list[LedgerEntry]], None],
    ) -> None:
        """`ask_for_end` asks the broker whether it has sent all entries; None if it cannot say that.

        `drop` gets the places of chunks that were given up.
        """
        self.newest: LedgerEntry = (-1, -1)
        """The place of the last delivery."""
        self.places: dict[LedgerEntry, tuple[LedgerEntry, ...]] = {}
        """By the last chunk of each message that the consumer holds: the places of all its chunks."""
        self._loop = loop
        self._ask_for_end = ask_for_end
        self._drop = drop
        self._assembly = ChunkAssembly()
        self._expiry: asyncio.TimerHandle | None = None

    def add(self, place: LedgerEntry, data: bytes) -> WholeMessage | None:
        """Take a chunk; return the message if it is complete."""
        whole = self._assembly.add(place, data, self._loop.time())
        if whole is not None:
            self.places[place] = whole.places
        elif self._assembly and self._expiry is None:
            self._expiry = self._loop.call_later(LOOK_S, self._expire)
        self._drop_orphans()
        return whole

    def begun_before(self, place: LedgerEntry) -> bool:
        """Whether a message that is not complete began before this place."""
        return self._assembly.begun_before(place)

    def clear(self) -> None:
        """Forget the chunks of messages that are not complete."""
        self._assembly.clear()

    def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()

    def _expire(self) -> None:
        self._expiry = None
        self._assembly.expire(self._loop.time())
        if self._assembly:
            self._expiry = self._loop.call_later(LOOK_S, self._expire)
            # No chunk follows after the end of a sealed segment.
            asked = self._ask_for_end()
            if asked is not None:
                asked.add_done_callback(partial(self._end_found, self.newest))
        self._drop_orphans()

    def _end_found(self, newest: LedgerEntry, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        # An entry that the broker sent before its answer arrives before the answer.
        if answer.result().all_sent and newest == self.newest:
            self._assembly.give_up_all()
            self._drop_orphans()

    def _drop_orphans(self) -> None:
        orphans, self._assembly.orphans = self._assembly.orphans, []
        if orphans:
            self._drop(orphans)
