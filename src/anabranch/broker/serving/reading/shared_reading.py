"""Reading for Shared: any ready consumer gets the next run of entries.

Entries that come back, and those whose delivery time has come, are delivered before new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import chain

from anabranch.broker.dispatch.receivers import RoundRobin
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.reading.delayed_reading import DelayedReading
from anabranch.broker.serving.reading.pending_reading import SLICE_ENTRIES, PendingReading
from anabranch.broker.serving.reading.reading import ReadPath
from anabranch.ledger.storage import Entry

RUN_ENTRIES = 20
"""Entries that one consumer gets before the turn goes to the next."""

REPLAY_ENTRIES = 256
"""Entries that come back which are read at once."""


class SharedReading(PendingReading):
    """Shared: any ready consumer gets the next run of entries, in turn."""

    def __init__(self, path: ReadPath) -> None:
        super().__init__(path)
        self._turns = RoundRobin()
        self._replay: list[int] = []
        self._later = DelayedReading(path)

    @property
    def at_end(self) -> bool:
        return super().at_end and not self._replay and not self._later.waiting

    @property
    def delayed(self) -> int:
        return super().delayed + self._later.count

    @property
    def replayed(self) -> int:
        return super().replayed + len(self._replay)

    @property
    def wake_at_ms(self) -> int | None:
        # Entries whose time has come wait for those that go out before them.
        return None if self._replay else self._later.wake_at_ms

    def rewind(self) -> None:
        super().rewind()
        self._replay.clear()
        self._later.rewind()

    def consumers_changed(self) -> None:
        self._turns.change(self.consumers)
        if not self.consumers:
            self._later.keep_note(self.next, chain(self._out, self._replay), at_once=True)
            self.rewind()

    def _take_back(self, entries: Sequence[tuple[int, int, int]]) -> None:
        for ordinal, _, _ in entries:
            heappush(self._replay, ordinal)

    def _due(self, ordinal: int, slot: int) -> None:
        heappush(self._replay, ordinal)

    def turn(self) -> bool:
        if not self._replay:
            # One slice goes out before the next, else the highest entries could wait for ever.
            self._come_due(self._later.pop_due(SLICE_ENTRIES))
        if self._returning and self._take_some_back():
            return True
        more = False
        if len(self._replay) < SLICE_ENTRIES:
            due = self._later.scan(self.next, self._out)
            self._come_due(due or ())
            more = due is not None
        if self._replay:
            more |= self._replay_turn()
        # Entries that come back go first, so new entries wait while those cannot be delivered.
        if not self._replay:
            more |= self._fresh_turn()
        self._flush()
        self._later.keep_note(self.next, chain(self._out, self._replay))
        return more

    def _come_due(self, ordinals: Iterable[int]) -> None:
        for ordinal in ordinals:
            heappush(self._replay, ordinal)

    def _replay_turn(self) -> bool:
        """Deliver the first entries that came back; whether another turn could deliver more."""
        if self._blocked or not (wanted := self._next_replayed()):
            return False
        sent = 0
        for entry in self.path.source.read_each(wanted) or ():
            consumer = None if self._blocked else self._turns.next()
            if entry.ordinal != wanted[sent] or not isinstance(consumer, ServedConsumer):
                break
            self._hand(consumer, entry)
            sent += 1
        for ordinal in wanted[sent:]:
            heappush(self._replay, ordinal)
        return sent > 0 and bool(self._replay)

    def _next_replayed(self) -> list[int]:
        """Take the first entries that came back and are pending; entries that stay away are pushed again."""
        acks, wanted = self.path.cursor.acks, list[int]()
        while self._replay and len(wanted) < REPLAY_ENTRIES:
            ordinal = heappop(self._replay)
            if ordinal not in acks and ordinal not in self._out and ordinal not in wanted[-1:]:
                wanted.append(ordinal)
        return wanted

    def _fresh_turn(self) -> bool:
        path = self.path
        if self._blocked:
            return False
        consumer = self._turns.next()
        if consumer is None:
            return False
        acks = path.cursor.acks
        while (start := self._later.passed(acks.next_pending(self.next))) != self.next:
            self.next = start
        entries = path.source.read(self.next, path.batch_entries)
        if not entries:
            return False
        run = 0
        later = self._later
        for entry in entries:
            ordinal = entry.ordinal
            if later.passes and later.passed(ordinal) != ordinal:
                return True
            if ordinal in acks or ordinal in self._out or later.set_aside(entry):
                self.next = ordinal + 1
                continue
            if run == RUN_ENTRIES or consumer is None or not consumer.ready:
                consumer = self._turns.next()
                run = 0
            if self._blocked or not isinstance(consumer, ServedConsumer):
                return False
            self._hand(consumer, entry)
            run += 1
            self.next = ordinal + 1
        return self.next < path.source.end

    def _hand(self, consumer: ServedConsumer, entry: Entry) -> None:
        ack_set, messages = self._pending_of(entry)
        consumer.charge(messages)
        self._give(consumer, entry, 0, messages, ack_set)
