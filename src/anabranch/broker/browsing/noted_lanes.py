"""Lanes that only the note of a cursor names, before the first consumer comes after a start.

Their messages are not counted yet, but a parked one can be released.
"""

from __future__ import annotations

from typing import Any

import msgspec

from anabranch.broker.dispatch import spilled
from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.broker.dispatch.lane_notes import LaneNote, SlotNote, decode_note
from anabranch.broker.dispatch.lanes import LaneReason
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import SegmentLog
from anabranch.model.hashing import bucket_ranges

Json = dict[str, Any]


def noted_lanes(stored: SegmentLog | None, limit: int) -> dict[str, list[Json]]:
    """Return the lanes that stored notes name, for each subscription of a log that is not loaded."""
    cursors = {} if stored is None else dict(stored.cursors)
    cursors.pop(COMPACTION, None)
    notes = {name: spilled.decode_note(cursor.note).reading for name, cursor in cursors.items()}
    return {name: found for name, note in notes.items() if (found := lanes_in_note(note, limit))}


def lanes_in_note(data: bytes, limit: int) -> list[Json]:
    note = decode_note(data)
    return [_noted(note, one) for one in note.slots[:limit]]


def lane_in_note(data: bytes, slot: int) -> Json | None:
    note = decode_note(data)
    return next((_noted(note, one) for one in note.slots if one.slot == slot), None)


def _noted(note: LaneNote, one: SlotNote) -> Json:
    shown: Json = {
        "slot": one.slot,
        "reason": str(one.reason if one.stopped else LaneReason.NO_CONSUMER),
        "sinceMs": one.since_ms,
        "untilMs": one.until_ms,
        "heldEntries": None,
        "heldBytes": None,
        "waitsFor": "",
        "note": one.text,
        "sampleKey": None,
        "trafficShare": None,
    }
    if note.boundaries is not None:
        shown["hashRange"] = str(bucket_ranges(note.boundaries)[one.slot])
    return shown


def release_in_note(cursor: Cursor, slot: int) -> bool:
    """Release a parked or paused slot; it stays listed, because its messages still wait."""
    note = decode_note(cursor.note)
    known = next((one for one in note.slots if one.slot == slot and one.stopped), None)
    if known is None:
        return False
    free = SlotNote(slot, LaneReason.NO_CONSUMER, known.since_ms)
    slots = tuple(free if one is known else one for one in note.slots)
    cursor.set_note(msgspec.structs.replace(note, slots=slots).encode())
    return True
