"""The cursors of a log. A cursor records each change of its AckSet as a step until a commit takes it.

A step holds only what was newly acknowledged, never the whole set, so the cost of a commit depends on what
changed. Replaying a step over a set that already contains it has no effect. This module knows nothing of
files.

A step holds what became acknowledged, never the whole set, so a commit costs what changed. Replaying a step
over a set that contains it leaves the set as it is. This module knows nothing of files.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from anabranch.errors import TopicNotFoundError
from anabranch.ledger.format.commits import Acked, Labelled, Noted, PartAcked, Reset, Step, UpTo
from anabranch.model.acks import AckSet


class Cursor:
    """The acknowledged entries of one log as an AckSet over its ordinals. In memory only."""

    __slots__ = ("acks", "name", "note", "properties")

    def __init__(self, name: str, acks: AckSet, properties: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.acks = acks
        """All acknowledgements, durable or not. Only the cursor may change the set."""
        self.properties = properties or {}
        self.note = b""
        """The bytes passed to the last `set_note`; empty after a reset."""

    def acknowledge(self, ordinals: Iterable[int]) -> None:
        """Acknowledge whole entries."""
        self.acks.acknowledge(ordinals)

    def acknowledge_part(self, ordinal: int, remaining: int, count: int) -> None:
        """Acknowledge messages of one entry.

        A set bit i of `remaining` means that message i is still pending.
        """
        self.acks.acknowledge_part(ordinal, remaining, count)

    def acknowledge_up_to(self, ordinal: int) -> None:
        """Acknowledge all entries below `ordinal`."""
        self.acks.acknowledge_up_to(ordinal)

    def reset(self, ordinal: int) -> None:
        """Seek: mark exactly the entries below `ordinal` as acknowledged, and clear the note."""
        self.acks.reset(ordinal)
        self.note = b""

    def set_note(self, note: bytes) -> None:
        """Replace the subscription's note, whose bytes only the subscription understands.

        A note becomes durable together with the acknowledgements before it, and before later ones.
        """
        self.note = note

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties that applications gave to the subscription."""
        self.properties = dict(properties)

    async def flush(self, *, patient: bool = False) -> None:
        """Return once every change made before the call is as durable as this kind of cursor makes it.

        A patient call may wait a few milliseconds longer, to share the sync of an append.

        A patient call may wait some milliseconds longer, to share the sync of an append.
        """


class CursorJournal(Protocol):
    """Makes changes of cursors durable, in the order of the calls."""

    def cursor_created(self, log: int, name: str, ordinal: int, properties: dict[str, str]) -> None: ...

    def cursor_deleted(self, log: int, name: str) -> None: ...

    def steps_waiting(self, cursor: DurableCursor) -> None:
        """Take this cursor's steps with the next commit. Called for the first step after each commit."""

    async def flush(self, *, patient: bool = False) -> None:
        """Return once every step queued before the call is durable; `patient` is as in `Cursor.flush`."""


class DurableCursor(Cursor):
    """A cursor whose changes become durable with the next commit of its journal."""

    __slots__ = ("_acked", "_deleted", "_journal", "_noted", "_parted", "_steps", "log")

    def __init__(
        self, log: int, name: str, acks: AckSet, properties: Mapping[str, str], journal: CursorJournal
    ) -> None:
        super().__init__(name, acks, dict(properties))
        self.log = log
        self._journal = journal
        self._steps: list[Step] = []
        self._acked: list[int] = []
        self._parted: dict[int, int] = {}
        """Messages of each entry that was acknowledged in part since the last commit. One step for each entry
        follows the other steps: all but a Reset only add, so their order does not matter."""
        self._noted = False
        self._deleted = False

    def acknowledge(self, ordinals: Iterable[int]) -> None:
        given = ordinals if isinstance(ordinals, list) else list(ordinals)
        if not given:
            return
        self.acks.acknowledge(given)
        self._announce()
        self._acked.extend(given)

    def acknowledge_part(self, ordinal: int, remaining: int, count: int) -> None:
        if self.acks.acknowledge_part(ordinal, remaining, count):
            self.acknowledge([ordinal])
        elif self.acks.remaining(ordinal) is not None:
            self._announce()
            self._parted[ordinal] = count

    def acknowledge_up_to(self, ordinal: int) -> None:
        if ordinal <= self.acks.mark:
            return
        self.acks.acknowledge_up_to(ordinal)
        if not self._acked and self._steps and isinstance(self._steps[-1], UpTo):
            self._steps[-1] = UpTo(ordinal)
        else:
            self._add(UpTo(ordinal))

    def reset(self, ordinal: int) -> None:
        super().reset(ordinal)
        self._announce()
        self._acked.clear()
        self._parted.clear()
        self._noted = False
        self._steps[:] = [*(step for step in self._steps if isinstance(step, Labelled)), Reset(ordinal)]

    def set_note(self, note: bytes) -> None:
        if note != self.note:
            self._announce()
            super().set_note(note)
            self._noted = True

    def set_properties(self, properties: Mapping[str, str]) -> None:
        super().set_properties(properties)
        self._add(Labelled(dict(properties)))

    async def flush(self, *, patient: bool = False) -> None:
        await self._journal.flush(patient=patient)

    def take_steps(self) -> list[Step]:
        """Return the steps since the last call, oldest first, or an empty list if the cursor was deleted."""
        self._close_acked()
        steps, self._steps = self._steps, []
        parted, self._parted = self._parted, {}
        for ordinal, count in parted.items():
            left = self.acks.remaining(ordinal)
            if left is not None:
                steps.append(PartAcked(ordinal, left.to_bytes((left.bit_length() + 7) // 8, "little"), count))
        if self._noted:
            self._noted = False
            steps.append(Noted(self.note))
        return [] if self._deleted else steps

    def mark_deleted(self) -> None:
        """Stop making changes of this cursor durable."""
        self._deleted = True

    def _add(self, step: Step) -> None:
        self._announce()
        self._close_acked()
        self._steps.append(step)

    def _announce(self) -> None:
        if not self._steps and not self._acked and not self._parted and not self._noted:
            self._journal.steps_waiting(self)

    def _close_acked(self) -> None:
        if self._acked:
            self._steps.append(Acked(_encode_ordinals(self._acked)))
            self._acked = []


class LogCursors(Mapping[str, DurableCursor]):
    """The durable cursors of one log, by name."""

    __slots__ = ("_cursors", "_deleted", "_journal", "_log", "_log_name")

    def __init__(self, log: int, log_name: str, journal: CursorJournal) -> None:
        self._log = log
        self._log_name = log_name
        self._journal = journal
        self._cursors: dict[str, DurableCursor] = {}
        self._deleted = False

    def __getitem__(self, name: str) -> DurableCursor:
        return self._cursors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cursors)

    def __len__(self) -> int:
        return len(self._cursors)

    def open(self, name: str, ordinal: int, properties: Mapping[str, str] | None = None) -> DurableCursor:
        """Return the cursor, creating it at `ordinal` if it is missing.

        The next commit makes a new one durable.
        """
        cursor = self._cursors.get(name)
        if cursor is None:
            if self._deleted:
                raise TopicNotFoundError(f"{self._log_name} was deleted")
            given = dict(properties or {})
            self._journal.cursor_created(self._log, name, ordinal, given)
            cursor = self.restore(name, AckSet(ordinal), given)
        return cursor

    async def delete(self, name: str) -> None:
        """Delete the cursor; the deletion is durable on return. An unknown name has no effect."""
        if self.remove(name):
            self._journal.cursor_deleted(self._log, name)
        await self._journal.flush()

    def restore(
        self, name: str, acks: AckSet, properties: Mapping[str, str], note: bytes = b""
    ) -> DurableCursor:
        """Add a cursor that is in the journal already, or will be with the next commit."""
        cursor = self._cursors[name] = DurableCursor(self._log, name, acks, properties, self._journal)
        cursor.note = note
        return cursor

    def remove(self, name: str) -> bool:
        """Remove a cursor without recording it in the journal. Returns False if the name is unknown."""
        cursor = self._cursors.pop(name, None)
        if cursor is None:
            return False
        cursor.mark_deleted()
        return True

    def log_deleted(self) -> None:
        """Refuse new cursors, and stop making changes of existing ones durable."""
        self._deleted = True
        for cursor in self._cursors.values():
            cursor.mark_deleted()


def replay(cursor: Cursor, steps: Iterable[Step]) -> None:
    """Apply the steps to a cursor without recording them in the journal."""
    acks = cursor.acks
    for step in steps:
        match step:
            case Acked(ordinals):
                acks.acknowledge(_decode_ordinals(ordinals))
            case UpTo(ordinal):
                acks.acknowledge_up_to(ordinal)
            case PartAcked(ordinal, remaining, count):
                acks.acknowledge_part(ordinal, int.from_bytes(remaining, "little"), count)
            case Reset(ordinal):
                acks.reset(ordinal)
                cursor.note = b""
            case Noted(note):
                cursor.note = note
            case Labelled(properties):
                cursor.properties = properties


def _encode_ordinals(ordinals: list[int]) -> bytes:
    packed = array("Q", ordinals)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _decode_ordinals(data: bytes) -> list[int]:
    packed = array("Q", data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()
