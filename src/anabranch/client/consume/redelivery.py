"""Giving messages back to the broker: after a delay, or when they are not acknowledged in time."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from itertools import count

from anabranch.client.consume.segment_consumer import SegmentConsumer
from anabranch.client.decide.acknowledgements import LedgerEntry
from anabranch.client.message import Received


class Redelivery:
    """The messages that one queue consumer gives back.

    With `processing_s` a message that is not acknowledged within that time is given back.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, processing_s: float | None) -> None:
        self._loop = loop
        self._given_back: list[tuple[float, int, SegmentConsumer, LedgerEntry, int]] = []
        """A heap by the time when the broker is asked to deliver the messages again."""
        self._next_number = count().__next__
        self._redeliver_timer: asyncio.TimerHandle | None = None
        self.processing_s = processing_s
        self._processing: deque[tuple[float, Received, int]] = deque()
        """Entries with the application, by the time when they are given back."""
        self._processing_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def close(self) -> None:
        """Give nothing back any more; after the consumer leaves the broker delivers all messages again."""
        self._closed = True
        for timer in (self._redeliver_timer, self._processing_timer):
            if timer is not None:
                timer.cancel()

    def give_back(self, source: SegmentConsumer, place: LedgerEntry, bits: int, delay_s: float) -> None:
        """Ask the broker after `delay_s` to deliver these messages of an entry again."""
        due_at = self._loop.time() + delay_s
        heapq.heappush(self._given_back, (due_at, self._next_number(), source, place, bits))
        self._schedule()

    def start_processing(self, entry: Received, limit_s: float) -> None:
        """Begin the processing time of an entry that is handed out."""
        self._processing.append((self._loop.time() + limit_s, entry, entry.wanted))
        if self._processing_timer is None:
            self._processing_timer = self._loop.call_later(limit_s, self._expire)

    def _schedule(self) -> None:
        if not self._given_back or self._closed:
            return
        due_at = self._given_back[0][0]
        if self._redeliver_timer is not None:
            if self._redeliver_timer.when() <= due_at:
                return
            self._redeliver_timer.cancel()
        self._redeliver_timer = self._loop.call_at(due_at, self._redeliver)

    def _redeliver(self) -> None:
        self._redeliver_timer = None
        now = self._loop.time()
        asked: dict[SegmentConsumer, dict[LedgerEntry, None]] = {}
        while self._given_back and self._given_back[0][0] <= now:
            _, _, source, place, bits = heapq.heappop(self._given_back)
            if source.held.get(place, 0) & bits:
                source.unhold(place, bits)
                asked.setdefault(source, {})[place] = None
        for source, places in asked.items():
            # The broker must not deliver acknowledged messages of the same entries again.
            source.ack_sender.flush()
            source.ack_sender.redeliver(places)
        self._schedule()

    def _expire(self) -> None:
        """Give back messages that were not acknowledged within the processing time."""
        self._processing_timer = None
        now = self._loop.time()
        while self._processing and self._processing[0][0] <= now:
            _, entry, bits = self._processing.popleft()
            source: SegmentConsumer = entry.source  # type: ignore[assignment]
            left = source.held.get(entry.position, 0) & bits
            if left:
                self.give_back(source, entry.position, left, 0.0)
        if self._processing and not self._closed:
            self._processing_timer = self._loop.call_at(self._processing[0][0], self._expire)
