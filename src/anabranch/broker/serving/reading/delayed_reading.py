"""The delayed entries of a Shared subscription: set aside when read, and read again when it is time."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from anabranch.broker.dispatch.delayed_log import DelayedLog, is_note
from anabranch.broker.serving.reading.reading import ReadPath
from anabranch.ledger.storage import Entry
from anabranch.protocol.outer import deliver_at_ms

NOTE_MS = 1000
"""Least time between two notes; a large note waits longer."""

NOTE_BYTES = 16 * 2**10
"""Bytes of a note that may be written each second."""


class DelayedReading:
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
        """The first ordinal from this one on that may be read now."""
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
