"""Which segments a reader without a cursor may read now, and from which position. Pure.

Such a reader keeps the order of keys itself: it hands out nothing of a segment before all ancestors that the
layout still lists are read to their end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.model.checkpoint import Checkpoint
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


def start_positions(layout: Layout, start: Checkpoint) -> dict[int, MessageId]:
    """The last message that `start` covers in each segment of the layout.

    Every segment gets a position, so that a checkpoint taken before the first message restores to the same
    place. `latest` covers sealed segments whole. A segment that a regular checkpoint does not name is newer
    and starts at its first message; any other start begins at the oldest message that is left.
    """
    positions: dict[int, MessageId] = {}
    for id_ in sorted(layout.segments):
        if start.is_latest:
            positions[id_] = after_last(id_)
        else:
            begin = before_first(id_, 0 if start.is_regular else -1)
            positions[id_] = start.positions.get(id_) or begin
    return positions


def missing(start: Checkpoint, layout: Layout) -> tuple[int, ...]:
    """Segments that `start` covers in part and that the layout does not list any more."""
    return tuple(
        id_
        for id_, place in start.positions.items()
        if id_ not in layout.segments and place.position != LATEST
    )


def follow_layout(positions: Mapping[int, MessageId], layout: Layout) -> dict[int, MessageId]:
    """The positions in a newer layout; a new segment begins at its first message."""
    return {id_: positions.get(id_) or before_first(id_, 0) for id_ in sorted(layout.segments)}


def before_first(segment: int, next_index: int = -1) -> MessageId:
    """The position that covers no message of a segment, or none from `next_index` on."""
    return MessageId(segment, *EARLIEST, next_index=next_index)


def after_last(segment: int) -> MessageId:
    """The position that covers all messages of a segment."""
    return MessageId(segment, *LATEST)


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
