"""Keeps a note of a subscription's lanes in its cursor, and restores lanes from it after a restart.

`dispatch/lane_notes.py` has the claim of a note. This module decides when a note is written, and finds the
pending entries below the floor of the last one, slice by slice, while other slots are delivered already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from anabranch.broker.dispatch.keyed import KeyedDispatch
from anabranch.broker.dispatch.lane_notes import LaneNote, SlotNote, decode_note
from anabranch.broker.dispatch.lane_views import lane_reason, waiting_slots
from anabranch.broker.dispatch.lanes import LaneReason
from anabranch.broker.dispatch.slot_stops import SlotStop
from anabranch.broker.serving.delivery.read_path import ReadPath
from anabranch.ledger.storage import Entry

NOTE_MS = 1000
"""Least time between two notes; longer with many lanes."""

SCAN_ENTRIES = 500
"""Entries below the floor that are read in one turn."""


class LaneKeeper:
    """Writes the note of one keyed subscription, and restores lanes from it."""

    def __init__(self, path: ReadPath, dispatch: KeyedDispatch, boundaries: tuple[int, ...] | None) -> None:
        self._path = path
        self._dispatch = dispatch
        self._boundaries = boundaries
        self._floor = 0
        """The floor of the last note that was considered."""
        self._listed = 0
        """Slots in the last note."""
        self._next_ms = 0
        self._changed = False
        self.scanning = False
        """Whether pending entries below the floor may not have been found yet."""
        self._scan_at = self._scan_end = 0

    def restore(self) -> int:
        """Open the lanes of the note; returns the ordinal at which reading starts."""
        cursor, dispatch = self._path.cursor, self._dispatch
        mark = self._floor = self._scan_at = cursor.acks.mark
        self.scanning = False
        note = decode_note(cursor.note)
        self._listed = len(note.slots)
        if not self._path.keyed.lasts or note.boundaries != self._boundaries:
            return mark
        for one in note.slots:
            # A delay counted for the first entry of a lane, which may be another one now.
            if one.stopped and one.reason is not LaneReason.DELAYED:
                dispatch.stop(one.slot, SlotStop(one.reason, one.since_ms, one.until_ms, one.text))
        floor = min(note.floor, self._path.source.end)
        if floor <= mark:
            return mark
        dispatch.restore(((one.slot, one.since_ms) for one in note.slots), floor)
        self._floor = self._scan_end = floor
        self.scanning = True
        return floor

    def scan_turn(self, add: Callable[[Entry], None]) -> bool:
        """Pass the next pending entries below the floor to `add`; whether the next turn could do more."""
        acks = self._path.cursor.acks
        wanted = acks.pending_from(self._scan_at, self._scan_end, SCAN_ENTRIES)
        if not wanted:
            self.scanning = False
            self._dispatch.restored()
            return True
        entries = self._path.source.read_each(wanted, scan=True)
        for entry in entries or ():
            if entry.ordinal not in acks:
                add(entry)
            self._scan_at = entry.ordinal + 1
        return bool(entries)

    def hasten(self) -> None:
        """Write the next note soon, because a slot was stopped."""
        self._changed = True

    def wake_ms(self, next_ordinal: int) -> int | None:
        """When a note is due; None if none is."""
        return self._next_ms if self._due(next_ordinal) else None

    def _due(self, next_ordinal: int) -> bool:
        if not self._path.keyed.lasts:
            return False
        dispatch = self._dispatch
        if not len(dispatch.lanes) and not len(dispatch.stops) and not dispatch.overdue:
            return self._listed > 0
        behind = next_ordinal - max(self._floor, self._path.cursor.acks.mark)
        return self._changed or behind >= self._path.keyed.note_entries

    def turn(self, next_ordinal: int, outstanding: Iterable[tuple[int, int]]) -> None:
        """Write a note if one is due; `outstanding` are (ordinal, slot), ascending."""
        if self._due(next_ordinal):
            now_ms, wait_ms = self._path.clock.wall_ms(), NOTE_MS + self._listed // 4
            # A clock that was set back must not stop the notes.
            if not 0 < self._next_ms - now_ms <= wait_ms:
                self.write(next_ordinal, outstanding)
                self._next_ms = now_ms + wait_ms

    def write(self, next_ordinal: int, outstanding: Iterable[tuple[int, int]]) -> None:
        """Write a note of the lanes as they are."""
        if not self._path.keyed.lasts:
            return
        self._changed = False
        dispatch, cursor = self._dispatch, self._path.cursor
        listed = {slot: since_ms for slot, since_ms, _ in waiting_slots(dispatch)}
        floor = next_ordinal
        for ordinal, slot in outstanding:
            if slot not in listed:
                floor = min(floor, ordinal)
                break
        self._floor = floor
        slots = tuple(_slot_note(dispatch, slot, since_ms) for slot, since_ms in listed.items())
        self._listed = len(slots)
        note = LaneNote(floor=floor, boundaries=self._boundaries, slots=slots).encode()
        if note != cursor.note:
            cursor.set_note(note)


def _slot_note(dispatch: KeyedDispatch, slot: int, since_ms: int) -> SlotNote:
    stop = dispatch.stops.get(slot)
    if stop is None:
        return SlotNote(slot, lane_reason(dispatch, slot), since_ms)
    return SlotNote(slot, stop.reason, since_ms, stopped=True, until_ms=stop.until_ms, text=stop.note)
