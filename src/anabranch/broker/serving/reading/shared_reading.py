"""Reading for Shared: any ready consumer gets the next run of entries.

Entries that come back, and those whose delivery time has come, are delivered before new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heappop, heappush
from itertools import chain

from anabranch.broker.dispatch.delayed_log import DelayedLog, is_note
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.outstanding import SLICE_ENTRIES, OutstandingEntries
from anabranch.broker.serving.delivery.read_path import ReadPath
from anabranch.broker.serving.delivery.retries import AT_ONCE, Retry
from anabranch.broker.serving.reading.reading import Reading
from anabranch.broker.serving.reading.sharing import RoundRobinSharing
from anabranch.ledger.storage import Entry
from anabranch.protocol.entry.outer import deliver_at_ms

NOTE_MS = 1000
"""Least time between two notes; a large note waits longer."""

NOTE_BYTES = 16 * 2**10
"""Bytes of a note that may be written each second."""

RUN_ENTRIES = 20
"""Entries that one consumer gets before the turn goes to the next."""

REPLAY_ENTRIES = 256
"""Entries that come back which are read at once."""


class DelayedEntries:
    """Knows the delayed entries of one subscription, and keeps the note of its cursor."""

    def __init__(self, path: ReadPath) -> None:
        self._path = path
        self._log = DelayedLog()
        self._log.load(path.cursor.note)
        self._changed = False
        self._noted_ms = 0

    @property
    def waiting(self) -> bool:
        """Whether an entry waits for its time."""
        return self._log.waiting

    @property
    def count(self) -> int:
        """The entries that wait; those that a note names count once they are read again."""
        return self._log.count

    @property
    def wake_at_ms(self) -> int | None:
        return self._log.next_ms

    def rewind(self) -> None:
        """Start again from the note of the cursor."""
        self._log.load(self._path.cursor.note)

    @property
    def passes(self) -> bool:
        """Whether `passed` passes over any part of the log."""
        return self._log.passes

    def passed(self, ordinal: int) -> int:
        """Return the first ordinal from this one on that may be read now."""
        return self._log.passed(ordinal)

    def set_aside(self, entry: Entry) -> bool:
        """Keep an entry for later if it has a later delivery time."""
        at_ms = deliver_at_ms(entry.data)
        if not at_ms or at_ms <= (now_ms := self._path.clock.wall_ms()):
            return False
        self._log.add(at_ms, entry.ordinal, now_ms)
        self._changed = True
        return True

    def pop_due(self, limit: int) -> Iterable[int]:
        """Take entries whose time has come."""
        if not len(self._log):
            return ()
        due = [one.ordinal for one in self._log.pop_due(self._path.clock.wall_ms(), limit)]
        self._changed |= bool(due)
        return due

    def scan(self, end: int, out: Collection[int]) -> list[int] | None:
        """Read some of a block whose first entry is due soon; returns the entries to deliver at once.

        None while there is nothing to read, or the disk has to. `end` is the first entry never read, and
        `out` are the entries that were delivered.
        """
        now_ms = self._path.clock.wall_ms()
        block = self._log.to_read(now_ms)
        if block is None:
            return None
        acks = self._path.cursor.acks
        end = min(end, block[1])
        position = acks.next_pending(block[0])
        due: list[int] = []
        if position < end:
            entries = self._path.source.read(position, self._path.batch_entries)
            if entries is None:
                return None
            position = entries[-1].ordinal + 1 if entries else end
            for entry in entries:
                ordinal = entry.ordinal
                fresh = ordinal < end and ordinal not in acks and ordinal not in out
                if fresh and self._log.found(deliver_at_ms(entry.data), ordinal, now_ms):
                    due.append(ordinal)
        self._log.read_until(position, end)
        self._changed = True
        return due

    def keep_note(self, end: int, busy: Iterable[int], *, at_once: bool = False) -> None:
        """Note which parts of the log a restart may pass over; `busy` are entries due or delivered."""
        now_ms, cursor = self._path.clock.wall_ms(), self._path.cursor
        wait_ms = NOTE_MS + 1000 * len(cursor.note) // NOTE_BYTES
        if not self._changed or (not at_once and 0 <= now_ms - self._noted_ms < wait_ms):
            return
        note = self._log.note(end, busy, now_ms)
        self._changed, self._noted_ms = False, now_ms
        # A note of another kind may name entries that exist nowhere else.
        if is_note(cursor.note) or (note and not cursor.note):
            cursor.set_note(note)


class SharedReading(Reading):
    """Shared: any ready consumer gets the next run of entries, in turn."""

    def __init__(self, path: ReadPath) -> None:
        sharing, outstanding = RoundRobinSharing(), OutstandingEntries(path)
        super().__init__(path, sharing, outstanding)
        self._turns = sharing.turns
        self._outstanding = outstanding
        self._replay: list[int] = []
        self._later = DelayedEntries(path)

    @property
    def at_end(self) -> bool:
        return super().at_end and not self._replay and not self._later.waiting

    @property
    def delayed(self) -> int:
        return self._later.count

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
        super().consumers_changed()
        if not self.consumers:
            self._keep_note(at_once=True)
            self.rewind()

    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int], retry: Retry = AT_ONCE) -> None:
        wanted = (ordinal for ordinal in ordinals if ordinal in consumer.outstanding)
        self._outstanding.give_back(wanted, asked=True)

    def _keep_note(self, *, at_once: bool = False) -> None:
        busy = chain(self._outstanding.by_ordinal, self._replay)
        self._later.keep_note(self.path.next, busy, at_once=at_once)

    def turn(self) -> bool:
        outstanding = self._outstanding
        if not self._replay:
            # One slice goes out before the next, else the highest entries could wait for ever.
            self._come_due(self._later.pop_due(SLICE_ENTRIES))
        if outstanding.returning:
            self._come_due(ordinal for ordinal, _ in outstanding.take_back())
            if outstanding.returning:
                return True
        more = False
        if len(self._replay) < SLICE_ENTRIES:
            due = self._later.scan(self.path.next, outstanding.by_ordinal)
            self._come_due(due or ())
            more = due is not None
        if self._replay:
            more |= self._replay_turn()
        # Entries that come back go first, so new entries wait while those cannot be delivered.
        if not self._replay:
            more |= self._fresh_turn()
        outstanding.flush()
        self._keep_note()
        return more

    def _come_due(self, ordinals: Iterable[int]) -> None:
        for ordinal in ordinals:
            heappush(self._replay, ordinal)

    def _replay_turn(self) -> bool:
        """Deliver the first entries that came back; whether another turn could deliver more."""
        if self._outstanding.blocked or not (wanted := self._next_replayed()):
            return False
        sent = 0
        for entry in self.path.source.read_each(wanted) or ():
            consumer = None if self._outstanding.blocked else self._turns.next()
            if entry.ordinal != wanted[sent] or not isinstance(consumer, ServedConsumer):
                break
            self._hand(consumer, entry)
            sent += 1
        for ordinal in wanted[sent:]:
            heappush(self._replay, ordinal)
        return sent > 0 and bool(self._replay)

    def _next_replayed(self) -> list[int]:
        """Take the first entries that came back and are pending; entries that stay away are pushed again."""
        acks, outstanding, wanted = self.path.cursor.acks, self._outstanding.by_ordinal, list[int]()
        while self._replay and len(wanted) < REPLAY_ENTRIES:
            ordinal = heappop(self._replay)
            if ordinal not in acks and ordinal not in outstanding and ordinal not in wanted[-1:]:
                wanted.append(ordinal)
        return wanted

    def _fresh_turn(self) -> bool:
        path, outstanding = self.path, self._outstanding
        if outstanding.blocked:
            return False
        consumer = self._turns.next()
        if consumer is None:
            return False
        acks = path.cursor.acks
        while (start := self._later.passed(acks.next_pending(path.next))) != path.next:
            path.next = start
        entries = path.source.read(path.next, path.batch_entries)
        if not entries:
            return False
        run = 0
        later = self._later
        for entry in entries:
            ordinal = entry.ordinal
            if later.passes and later.passed(ordinal) != ordinal:
                return True
            if ordinal in acks or ordinal in outstanding.by_ordinal or later.set_aside(entry):
                path.next = ordinal + 1
                continue
            if run == RUN_ENTRIES or consumer is None or not consumer.ready:
                consumer = self._turns.next()
                run = 0
            if outstanding.blocked or not isinstance(consumer, ServedConsumer):
                return False
            self._hand(consumer, entry)
            run += 1
            path.next = ordinal + 1
        return path.next < path.source.end

    def _hand(self, consumer: ServedConsumer, entry: Entry) -> None:
        ack_set, messages = self.path.pending_of(entry)
        consumer.charge(messages)
        self._outstanding.give(consumer, entry, 0, messages, ack_set)
