"""The note that a subscription keeps of its lanes: the slots that have lanes, and a floor in the log.

The claim of a note is that all pending entries below `floor` belong to the listed slots. Acknowledgements
only grow, so the claim stays true however old the note is. Reading may therefore start again at `floor`, with
the listed slots stopped until the pending entries below `floor` have been read again.

For example, entries 5 and 6 of slot 3 wait, entry 90 of slot 8 is outstanding, and everything below 100 was
read. The note lists slot 3 with floor 90, because slot 8 has no lane. After a restart, entry 90 and later
ones go out at once if their slot is not 3; entries 5 and 6 are found meanwhile, and then slot 3 goes on.
"""

from __future__ import annotations

import msgspec

from anabranch.broker.dispatch.lanes import LaneReason

VERSION = 1


class SlotNote(msgspec.Struct, array_like=True, frozen=True):
    """One slot that has a lane."""

    slot: int
    reason: LaneReason
    since_ms: int
    stopped: bool = False
    """Whether the slot was stopped on purpose: paused, or parked."""
    until_ms: int = 0
    text: str = ""


class LaneNote(msgspec.Struct, array_like=True, frozen=True):
    """The lanes of a subscription. Fields may be added at the end."""

    version: int = VERSION
    floor: int = 0
    boundaries: tuple[int, ...] | None = None
    """Split points of the buckets if slots are buckets; None if they are hashes of keys."""
    slots: tuple[SlotNote, ...] = ()

    def encode(self) -> bytes:
        """Return the bytes for a cursor; none for a note that says nothing."""
        return msgspec.msgpack.encode(self) if self.slots else b""


def decode_note(data: bytes) -> LaneNote:
    """Undo `encode`. A note that cannot be read says nothing, which costs time and never order."""
    if not data:
        return LaneNote()
    try:
        note = msgspec.msgpack.decode(data, type=LaneNote)
    except (msgspec.DecodeError, ValueError):
        return LaneNote()
    return note if note.version == VERSION else LaneNote()
