"""The order of a reader that keeps its positions itself: which segments it may read, and how far it is. Pure.

Each segment has a position from the beginning: its start, then the last message handed out. Positions become
checkpoints, which only the application keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from anabranch.client.message import Message, Received
from anabranch.model.checkpoint import Checkpoint, CheckpointKind
from anabranch.model.ids import EARLIEST, LATEST, MessageId
from anabranch.model.layout import Layout, Segment


def readable(layout: Layout, finished: Collection[int]) -> tuple[Segment, ...]:
    """The segments to read now, oldest first: unfinished ones whose ancestors are all finished."""
    done = frozenset(finished)
    return tuple(
        layout.segments[id_]
        for id_ in sorted(layout.segments)
        if id_ not in done and layout.ancestors(id_) <= done
    )


def before_first(segment: int, next_index: int = -1) -> MessageId:
    """The position that covers no message of a segment, or none from `next_index` on."""
    return MessageId(segment, *EARLIEST, next_index=next_index)


def covers(position: MessageId, ledger: int, entry: int, batch_index: int) -> bool:
    """Whether a message is at or before a position; a position with batch index -1 covers its whole entry."""
    if (ledger, entry) != (position.ledger, position.entry):
        return (ledger, entry) < (position.ledger, position.entry)
    return position.batch_index < 0 or batch_index <= position.batch_index


def bits_after(position: MessageId, ledger: int, entry: int) -> int:
    """Bits of the messages of an entry that lie after a position."""
    if (ledger, entry) != (position.ledger, position.entry):
        return 0 if (ledger, entry) < (position.ledger, position.entry) else -1
    return -1 << (position.batch_index + 1) if position.batch_index >= 0 else 0


class ReadPositions:
    """The positions of one consumer that begins at `start`."""

    def __init__(self, start: Checkpoint) -> None:
        self.start = start
        self.positions: dict[int, MessageId] = {}
        """The last message covered in each segment, without the entry at hand."""
        self.finished: dict[int, None] = {}
        """Segments that are read to their end, or that the start excludes."""
        self.ends: dict[int, MessageId] = {}
        """The last message of sealed segments that are being read; LATEST until it is known."""

    def begin(self, layout: Layout) -> tuple[int, ...]:
        """Set the start of each segment; sealed segments that the start excludes are finished.

        Returns the segments that the start covers in part and that the layout does not list any more.
        """
        start = self.start
        for id_ in sorted(layout.segments):
            if start.is_latest:
                self.positions[id_] = MessageId(id_, *LATEST)
            else:
                # A segment that a regular checkpoint does not name is newer, so its first message is due.
                begin = before_first(id_, 0 if start.is_regular else -1)
                self.positions[id_] = start.positions.get(id_) or begin
        at_time = start.kind is CheckpointKind.AT_TIME
        for segment in layout.sealed:
            too_old = at_time and 0 <= segment.sealed_ms < start.timestamp_ms
            if too_old or self.positions[segment.id].position == LATEST:
                self.finish(segment.id)
        return tuple(
            id_
            for id_, position in start.positions.items()
            if id_ not in layout.segments and position.position != LATEST
        )

    def follow(self, layout: Layout) -> None:
        """Begin new segments at their first message, and forget those that the layout does not list."""
        self.positions = {
            id_: self.positions.get(id_) or before_first(id_, 0) for id_ in sorted(layout.segments)
        }
        self.finished = {id_: None for id_ in self.finished if id_ in layout.segments}

    def unread(self, layout: Layout) -> tuple[int, ...]:
        """Segments that are not finished and that the layout does not list any more."""
        return tuple(id_ for id_ in self.positions if id_ not in layout.segments and id_ not in self.finished)

    def advance(self, entry: Received) -> None:
        """Cover all wanted messages of an entry, if its segment is still listed."""
        if entry.source.segment_id in self.positions and entry.wanted:
            self.positions[entry.source.segment_id] = place(entry, entry.wanted.bit_length() - 1)

    def accept(self, entry: Received) -> bool:
        """Whether an entry is handed out; one from before the time to start at is covered instead."""
        id_ = entry.source.segment_id
        at_time = self.start.kind is CheckpointKind.AT_TIME
        if at_time and entry.publish_time_ms < self.start.timestamp_ms:
            self.cover(entry)
            return False
        entry.before = self.positions.get(id_)
        return True

    def cover(self, entry: Received) -> None:
        """Cover a whole entry that is not handed out."""
        self.positions[entry.source.segment_id] = place(entry, entry.count - 1)

    def missing_before(self, entry: Received) -> int:
        """The number of messages that were removed between the position and an entry."""
        position = self.positions.get(entry.source.segment_id)
        if position is None or position.next_index < 0 or entry.index is None:
            return 0
        if entry.position == (position.ledger, position.entry + 1):
            # No entry lies between; one of the two was stored with a wrong number of messages.
            return 0
        return max(entry.index - entry.count + 1 - position.next_index, 0)

    def is_read(self, id_: int) -> bool:
        """Whether a sealed segment whose end was asked for is read to that end."""
        end = self.ends.get(id_)
        return end is not None and covers(self.positions[id_], end.ledger, end.entry, end.batch_index)

    def finish(self, id_: int) -> None:
        """Note that a segment is read to its end."""
        self.positions[id_] = MessageId(id_, *LATEST)
        self.finished[id_] = None
        self.ends.pop(id_, None)

    def checkpoint(
        self, entry: Received | None, left: int, known: Collection[int] | None = None
    ) -> Checkpoint:
        """The checkpoint while `left` messages of an entry wait; `known` limits it to some segments."""
        positions = {
            id_: position for id_, position in self.positions.items() if known is None or id_ in known
        }
        if entry is not None:
            handed_out = entry.wanted.bit_count() - left
            if handed_out:
                index = entry.wanted_indexes()[handed_out - 1]
                positions[entry.source.segment_id] = place(entry, index)
        return self._at(positions)

    def before(self, checkpoint: Checkpoint, waiting: Sequence[Message[object]]) -> Checkpoint:
        """The checkpoint as if the messages `waiting`, the last ones handed out, had not been handed out."""
        positions = dict(checkpoint.positions)
        for message in reversed(waiting):
            entry: Received = message._entry
            earlier = [index for index in entry.wanted_indexes() if index < message._index]
            position = place(entry, earlier[-1]) if earlier else entry.before
            if position is not None and entry.source.segment_id in positions:
                positions[entry.source.segment_id] = position
        return self._at(positions)

    def _at(self, positions: Mapping[int, MessageId]) -> Checkpoint:
        if self.start.kind is CheckpointKind.AT_TIME:
            # Messages before the time are skipped while reading, so the checkpoint must keep the time.
            return Checkpoint(positions, CheckpointKind.AT_TIME, self.start.timestamp_ms)
        return Checkpoint(positions)


def place(entry: Received, index: int) -> MessageId:
    """The position that covers an entry up to the message at `index`."""
    ledger, position = entry.position
    return MessageId(
        entry.source.segment_id,
        ledger,
        position,
        index if entry.batch_size else -1,
        entry.batch_size,
        next_index=-1 if entry.index is None else entry.index - entry.count + index + 2,
    )
