"""The cursor of a subscription with spilled entries: they are pending here, although the log may drop them.

The durable cursor counts a spilled entry as acknowledged, so that the log can be trimmed; the cursor of its
side log says whether it really is. An entry that is pending in both counts as the one of the
log, because a crash may come between the copy and the acknowledgement in the log. This module never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pyroaring import BitMap64

from anabranch.broker.dispatch.spilled import OldLedgers, SideRecord, SpillNote, decode_note, encode_note
from anabranch.broker.serving.side_logs.side_log import SideLog
from anabranch.ledger.cursors import Cursor, DurableCursor
from anabranch.ledger.storage import Entry, SegmentLog


class SpillingCursor(Cursor):
    """As `Cursor`; the sets of both cursors are one object while no side log exists."""

    __slots__ = ("_expected", "_filling", "_reading_note", "dropped", "ledgers", "main", "moves", "sides")

    def __init__(self, main: DurableCursor, find: Callable[[str], SegmentLog | None]) -> None:
        """`find` returns the log of a name in the same store."""
        self.main = main
        note = decode_note(main.note)
        super().__init__(main.name, main.acks, main.properties)
        self._reading_note = note.reading
        self.ledgers = OldLedgers(note.ledgers)
        self._expected: SideRecord | None = None
        self._filling: SideLog | None = None
        self.moves = 0
        """How often the cursor was moved by `reset`."""
        self.dropped: Callable[[Sequence[SideLog]], None] = lambda sides: None
        """Called with side logs that the note no longer names; they are to be deleted."""
        # A side log that the note names may not have been created before a crash.
        logs = [(find(record.name), record.first) for record in note.sides]
        self.sides = [SideLog(log, first) for log, first in logs if log is not None]
        if self.sides:
            self.acks = main.acks.copy()
            self._take_over()

    def _take_over(self) -> None:
        spilled = BitMap64()
        for side in self.sides:
            spilled |= self.void_copies(side)
        self.acks.reopen(spilled)
        for side in self.sides:
            for original, bits in side.parts():
                if original in spilled:
                    self.acks.acknowledge_part(original, bits, bits.bit_length() + 1)

    def void_copies(self, side: SideLog) -> BitMap64:
        """Acknowledge the copies of entries that are pending in the log; returns the other pending ones."""
        pending = side.pending_originals()
        twice = pending.copy()
        self.main.acks.keep_pending(twice)
        side.acknowledge(twice)
        return pending - twice

    @property
    def note(self) -> bytes:
        """The note of the reading."""
        return self._reading_note

    @note.setter
    def note(self, note: bytes) -> None:
        self._reading_note = note

    def set_note(self, note: bytes) -> None:
        self._reading_note = note
        self._write_note()

    def set_properties(self, properties: Mapping[str, str]) -> None:
        super().set_properties(properties)
        self.main.set_properties(properties)

    def _write_note(self) -> None:
        sides = tuple(SideRecord(side.log.name, side.first) for side in self.sides)
        if self._expected is not None:
            sides += (self._expected,)
        self.main.set_note(encode_note(SpillNote(self._reading_note, sides, self.ledgers.known)))

    @property
    def spilled(self) -> int:
        """Spilled entries that are not acknowledged."""
        return sum(side.pending for side in self.sides)

    def is_spilled(self, ordinal: int) -> bool:
        """Return whether an entry is pending, but not in the log."""
        return bool(self.sides) and ordinal not in self.acks and ordinal in self.main.acks

    def acknowledge(self, ordinals: Iterable[int]) -> None:
        if not self.sides:
            self.main.acknowledge(ordinals)
            return
        given = list(ordinals)
        spilled = [ordinal for ordinal in given if self.is_spilled(ordinal)]
        self.acks.acknowledge(given)
        self.main.acknowledge([ordinal for ordinal in given if ordinal not in self.main.acks])
        if spilled:
            for side in self.sides:
                side.acknowledge(spilled)
            self._drop_drained()

    def acknowledge_part(self, ordinal: int, remaining: int, count: int) -> None:
        if not self.is_spilled(ordinal):
            self.main.acknowledge_part(ordinal, remaining, count)
            if self.sides:
                self.acks.acknowledge_part(ordinal, remaining, count)
        elif self.acks.acknowledge_part(ordinal, remaining, count):
            for side in self.sides:
                side.acknowledge([ordinal])
            self._drop_drained()
        else:
            for side in self.sides:
                if (at := side.ordinal(ordinal)) is not None:
                    side.cursor.acknowledge_part(at, remaining, count)

    def acknowledge_up_to(self, ordinal: int) -> None:
        self.main.acknowledge_up_to(ordinal)
        if self.sides:
            self.acks.acknowledge_up_to(ordinal)
            for side in self.sides:
                side.acknowledge_up_to(ordinal)
            self._drop_drained()

    def reset(self, ordinal: int) -> None:
        self.moves += 1
        sides, self.sides = self.sides, []
        self.ledgers.clear()
        self._reading_note, self._expected, self._filling = b"", None, None
        self.acks.reset(ordinal)
        self.main.reset(ordinal)
        self.main.acks = self.acks
        if sides:
            self.dropped(sides)

    def pass_trimmed(self, first: int) -> Sequence[int]:
        """Count entries below `first` that are not spilled as acknowledged; returns them."""
        if self.main.acks.mark >= first:
            return ()
        if not self.sides:
            passed: Sequence[int] = range(self.main.acks.mark, first)
            self.main.acknowledge_up_to(first)
            return passed
        passed = list(self.main.acks.pending_below(first))
        self.main.acknowledge_up_to(first)
        self.acks.acknowledge(passed)
        return passed

    async def flush(self, *, patient: bool = False) -> None:
        # The side logs share the journal of the log.
        await self.main.flush(patient=patient)

    def expect_side(self, name: str, first: int) -> None:
        """Name a side log in the note before it is created, because unnamed side logs are deleted."""
        self._expected = SideRecord(name, first)
        self._write_note()

    def fill(self, side: SideLog) -> None:
        """Keep this side log, although it may be drained, until `filled`."""
        self._filling, self._expected = side, None
        if side not in self.sides:
            self.sides.append(side)
            if self.main.acks is self.acks:
                self.main.acks = self.acks.copy()

    def filled(self) -> None:
        """End the spill: no side log is expected or kept any more."""
        self._filling = None
        if self._expected is not None:
            self._expected = None
            self._write_note()
        self._drop_drained()

    def take_copies(self, side: SideLog, copies: Sequence[tuple[Entry, int]]) -> None:
        """Acknowledge entries in the log whose copies, at these ordinals, are durable; all in one commit."""
        gone: list[int] = []
        spilled: list[int] = []
        news = False
        for entry, at in copies:
            if entry.ordinal in self.acks:
                gone.append(at)
                continue
            left = self.acks.remaining(entry.ordinal)
            if left is not None:
                side.cursor.acknowledge_part(at, left, entry.count)
            news |= self.ledgers.add(entry.position, entry.ordinal)
            spilled.append(entry.ordinal)
        side.cursor.acknowledge(gone)
        if news:
            self._write_note()
        self.main.acknowledge(spilled)

    def _drop_drained(self) -> None:
        drained = [side for side in self.sides if side.drained and side is not self._filling]
        if not drained:
            return
        self.sides = [side for side in self.sides if side not in drained]
        if not self.sides:
            self.main.acks = self.acks
            self.ledgers.clear()
        self._write_note()
        self.dropped(drained)
