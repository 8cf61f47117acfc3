"""Messages without an acknowledgement that a queue consumer gives back to the broker."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

from anabranch.client.consume.alarm import Alarm
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.consuming.acknowledgements import LedgerEntry


class Redelivery:
    """The messages that one queue consumer gives back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._given_back: list[tuple[float, int, SegmentConsumer, LedgerEntry, int]] = []
        """A heap by the time when the broker is asked to deliver the messages again."""
        self._next_number = count().__next__
        self._alarm = Alarm(loop, self._redeliver)
        self._closed = False

    def close(self) -> None:
        """Give nothing back any more; after the consumer leaves the broker delivers all messages again."""
        self._closed = True
        self._alarm.cancel()

    def give_back(self, source: SegmentConsumer, place: LedgerEntry, bits: int, delay_s: float) -> None:
        """Ask the broker after `delay_s` for messages of an entry that are not acknowledged until then."""
        due_at = self._loop.time() + delay_s
        heapq.heappush(self._given_back, (due_at, self._next_number(), source, place, bits))
        self._schedule()

    def _schedule(self) -> None:
        if self._given_back and not self._closed:
            self._alarm.set(self._given_back[0][0])

    def _redeliver(self) -> None:
        now = self._loop.time()
        asked: dict[SegmentConsumer, dict[LedgerEntry, None]] = {}
        while self._given_back and self._given_back[0][0] <= now:
            _, _, source, place, bits = heapq.heappop(self._given_back)
            if source.held.get(place, 0) & bits:
                source.unhold(place, bits)
                asked.setdefault(source, {})[place] = None
        for source, places in asked.items():
            # The broker must not deliver acknowledged messages of the same entries again.
            source.flush_acks()
            source.redeliver(places)
        self._schedule()
