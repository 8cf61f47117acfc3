"""How far a reader that keeps its positions itself has read, by segment and slot. Pure.

Each segment has a position from the beginning: its start, then the last message handed out. Positions become
checkpoints, which the application keeps. All slots of a segment are read from one place, in the order of the
log; entries that their slot has covered already, and those of slots that are read elsewhere, are passed over.

Example: a checkpoint has slots 0 to 32767 of segment 3 at entry 20 and the other slots at entry 10, because
two readers shared the segment. One reader of all slots begins behind entry 10. It passes over entry 15 if the
slots of that entry lie below 32768, and hands out everything from entry 21 on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from anabranch.client.decide.consuming.ordering import before_first, bits_after, covers, place, readable
from anabranch.client.message import Message, place_of
from anabranch.client.received import Received
from anabranch.errors import AnabranchError
from anabranch.model.checkpoint import Checkpoint, CheckpointKind
from anabranch.model.drains import ALL, Ranges, difference
from anabranch.model.ids import LATEST, MessageId
from anabranch.model.layout import Layout, Segment
from anabranch.model.slot_positions import SlotPositions
from anabranch.protocol.outer import read_outer

_FINISHED = LATEST
"""The position of slots that are read to the end of their segment."""


class ReadPositions:
    """The positions of one consumer that begins at `start` and reads all slots."""

    def __init__(self, start: Checkpoint) -> None:
        self.start = start
        self.positions: dict[int, MessageId] = {}
        """The last message covered in the slots that are read, of each segment, without the current entry."""
        self.finished: dict[int, None] = {}
        """Segments that are read to their end, or that the start excludes."""
        self.ends: dict[int, MessageId] = {}
        """The last message of sealed segments that are being read; LATEST until it is known."""
        self.excluded: dict[int, None] = {}
        """Sealed segments that the start excludes without naming them."""
        self.began: dict[int, SlotPositions] = {}
        """The positions in each segment when its slots were given to this consumer."""
        self._starts: dict[int, SlotPositions] = {}
        self._slots: dict[int, SlotPositions] = {}
        """The positions of all slots, without the progress in those that are being read."""

    def begin(self, layout: Layout) -> tuple[int, ...]:
        """Set the start of each segment; sealed segments that the start excludes are finished.

        Returns the segments that the start covers in part and that the layout does not list any more.
        """
        start = self.start
        for id_ in sorted(layout.segments):
            if start.is_latest:
                self._begin(id_, SlotPositions.unknown(id_))
                self.positions[id_] = MessageId(id_, *LATEST)
            else:
                # A segment that a regular checkpoint does not name is newer, so its first message is due.
                begin = before_first(id_, 0 if start.is_regular else -1)
                self._begin(id_, start.slots(id_) or SlotPositions.whole(begin))
        at_time = start.kind is CheckpointKind.AT_TIME
        for segment in layout.sealed:
            too_old = at_time and 0 <= segment.sealed_ms < start.timestamp_ms
            if start.is_latest or too_old:
                self.excluded[segment.id] = None
            if segment.id in self.excluded or self.positions[segment.id].position == _FINISHED:
                self._slots[segment.id] = SlotPositions.whole(MessageId(segment.id, *_FINISHED))
                self.positions[segment.id] = MessageId(segment.id, *_FINISHED)
                self.finished[segment.id] = None
        return tuple(
            id_
            for id_, position in start.positions.items()
            if id_ not in layout.segments and position.position != _FINISHED
        )

    def _begin(self, id_: int, slots: SlotPositions) -> None:
        self._starts[id_] = self._slots[id_] = self.began[id_] = slots
        self.positions[id_] = slots.lowest

    def follow(self, layout: Layout) -> None:
        """Begin new segments at their first message, and forget those that the layout does not list."""
        for id_ in sorted(layout.segments):
            if id_ not in self.positions:
                self._begin(id_, SlotPositions.whole(before_first(id_, 0)))
        for known in (self.positions, self.finished, self.excluded, self.began, self._starts, self._slots):
            for id_ in [id_ for id_ in known if id_ not in layout.segments]:
                del known[id_]

    def unread(self, layout: Layout) -> tuple[int, ...]:
        """Segments that are not read to their end and that the layout does not list any more."""
        return tuple(
            id_
            for id_ in self.positions
            if id_ not in layout.segments
            and id_ not in self.finished
            and self.left(id_)
            and not self.is_read(id_)
        )

    # Slots.

    def slots(self, id_: int) -> Ranges:
        """Return the slots of a segment that this consumer reads."""
        return ALL

    def left(self, id_: int) -> Ranges:
        """Return the slots of a segment that this consumer reads and has not finished."""
        return difference(self.slots(id_), self._slots[id_].finished())

    def readable(self, layout: Layout) -> tuple[Segment, ...]:
        """Return the segments to read now, oldest first: their slots are read to the end in all ancestors."""
        return readable(layout, self.finished)

    def pin(self, id_: int, last: MessageId) -> None:
        """Begin a segment behind its last message."""
        self.positions[id_] = last
        self.began[id_] = self.began[id_].raised(self.slots(id_), last)

    def at(self, id_: int, position: MessageId | None = None) -> SlotPositions:
        """Return the positions of all slots of a segment, with the slots that are read at `position`."""
        reached = self.positions[id_] if position is None else position
        if reached.position == LATEST:
            return self._slots[id_]  # It is finished, or its end is not known yet.
        return self._slots[id_].raised(self.left(id_), reached)

    # Progress.

    def advance(self, entry: Received) -> None:
        """Cover all wanted messages of an entry, if its segment is still listed."""
        if entry.source.segment_id in self.positions and entry.wanted:
            self.positions[entry.source.segment_id] = place(entry, entry.wanted.bit_length() - 1)

    def accept(self, entry: Received) -> bool:
        """Return whether an entry is handed out; one from before the time to start at is covered instead."""
        id_ = entry.source.segment_id
        at_time = self.start.kind is CheckpointKind.AT_TIME
        if at_time and entry.publish_time_ms < self.start.timestamp_ms:
            self.cover(entry)
            return False
        entry.before = self.positions.get(id_)
        return True

    def wants(self, entry: Received) -> bool:
        """Return whether the slot of an entry is read here and does not cover the entry already.

        An entry that does not name its slot may belong to any.
        """
        id_ = entry.source.segment_id
        slots, mine = self._slots.get(id_), self.slots(id_)
        if slots is None or (mine == ALL and slots.is_whole):
            return True
        try:
            slot = read_outer(entry.data).bucket_hash
        except AnabranchError:
            return True
        if any(slot in part for part in mine):
            entry.wanted &= bits_after(slots.of(slot), *entry.position)
            return entry.wanted != 0
        return False

    def cover(self, entry: Received) -> None:
        """Cover a whole entry that is not handed out."""
        self.positions[entry.source.segment_id] = place(entry, entry.count - 1)

    def missing_before(self, entry: Received) -> int:
        """Return the number of messages that were removed between the position and an entry."""
        position = self.positions.get(entry.source.segment_id)
        if position is None or position.next_index < 0 or entry.index is None:
            return 0
        if entry.position == (position.ledger, position.entry + 1):
            # No entry lies between; one of the two was stored with a wrong number of messages.
            return 0
        return max(entry.index - entry.count + 1 - position.next_index, 0)

    def is_read(self, id_: int) -> bool:
        """Return whether a sealed segment whose end was asked for is read to that end."""
        end = self.ends.get(id_)
        return end is not None and covers(self.positions[id_], end.ledger, end.entry, end.batch_index)

    def finish(self, id_: int) -> None:
        """Note that the slots of a segment that are read here are read to its end."""
        self._slots[id_] = self._slots[id_].placed(self.slots(id_), MessageId(id_, *_FINISHED))
        self.positions[id_] = MessageId(id_, *_FINISHED)
        if self._slots[id_].finished() == ALL:
            self.finished[id_] = None
        self.ends.pop(id_, None)

    def checkpoint(
        self, entry: Received | None, left: int, known: Collection[int] | None = None
    ) -> Checkpoint:
        """The checkpoint while `left` messages of an entry wait; `known` limits it to some segments."""
        reached = {id_: position for id_, position in self.positions.items() if known is None or id_ in known}
        if entry is not None:
            handed_out = entry.wanted.bit_count() - left
            if handed_out and entry.source.segment_id in self.positions:
                index = entry.wanted_indexes()[handed_out - 1]
                reached[entry.source.segment_id] = place(entry, index)
        return self._made({}, reached)

    def before(self, checkpoint: Checkpoint, waiting: Sequence[Message[object]]) -> Checkpoint:
        """The checkpoint as if the messages `waiting`, the last ones handed out, had not been handed out."""
        reached: dict[int, MessageId] = {}
        for message in reversed(waiting):
            entry, index = place_of(message)
            id_ = entry.source.segment_id
            earlier = [one for one in entry.wanted_indexes() if one < index]
            position = place(entry, earlier[-1]) if earlier else entry.before
            if position is not None and id_ in checkpoint.positions and id_ in self.positions:
                reached[id_] = position
        found = {id_: checkpoint.slots(id_) or SlotPositions.unknown(id_) for id_ in checkpoint.positions}
        return self._made(found, reached)

    def _made(self, slots: Mapping[int, SlotPositions], reached: Mapping[int, MessageId]) -> Checkpoint:
        """Return a checkpoint of these positions, and of those reached in the slots that are read here."""
        positions: dict[int, MessageId] = {}
        parts = {id_: found for id_, found in slots.items() if id_ not in reached}
        for id_, position in reached.items():
            if self._slots[id_].is_whole and self.slots(id_) == ALL:
                positions[id_] = position
            else:
                parts[id_] = self.at(id_, position).known(id_)
        if self.start.kind is CheckpointKind.AT_TIME:
            # Messages before the time are skipped while reading, so the checkpoint must keep the time.
            return Checkpoint(positions, CheckpointKind.AT_TIME, self.start.timestamp_ms, parts)
        return Checkpoint(positions, parts=parts)
