"""Which segments may be read now, and from where: parents before children, positions kept by the reader.

A reader without a cursor in the broker must keep the order of a key itself: nothing of a segment may be
handed out before all its ancestors that the layout still knows are read to their end. Knows nothing of
connections; positions are plain message ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.model.ids import EARLIEST, LATEST, Checkpoint, MessageId
from anabranch.model.layout import Layout, Segment


def readable(layout: Layout, finished: Collection[int]) -> tuple[Segment, ...]:
    """The segments to read now, oldest first: not finished themselves, and all their ancestors are."""
    done = frozenset(finished)
    return tuple(
        layout.segments[id_]
        for id_ in sorted(layout.segments)
        if id_ not in done and layout.ancestors(id_) <= done
    )


def start_positions(layout: Layout, start: Checkpoint) -> dict[int, MessageId]:
    """The last message covered by `start` in every segment of the layout.

    Every segment gets an entry, so that a checkpoint taken before anything was received restores to the same
    place. From `latest` on, segments sealed by then are covered whole. A segment that a regular checkpoint
    does not name is newer than it and starts at its beginning; with other starts that is wherever the oldest
    message left is.
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
    """Segments that a start goes on in, and that the layout does not know any more."""
    return tuple(
        id_
        for id_, place in start.positions.items()
        if id_ not in layout.segments and place.position != LATEST
    )


def follow_layout(positions: Mapping[int, MessageId], layout: Layout) -> dict[int, MessageId]:
    """The positions under a newer layout: new segments from their beginning, forgotten ones left out."""
    return {id_: positions.get(id_) or before_first(id_, 0) for id_ in sorted(layout.segments)}


def before_first(segment: int, next_index: int = -1) -> MessageId:
    """Covers nothing of a segment; with `next_index` nothing from that message on."""
    return MessageId(segment, *EARLIEST, next_index=next_index)


def after_last(segment: int) -> MessageId:
    """Covers all of a segment, whatever it holds."""
    return MessageId(segment, *LATEST)


def covers(position: MessageId, ledger: int, entry: int, batch_index: int) -> bool:
    """Whether a message is at or before a position; batch index -1 in the position means the whole entry."""
    if (ledger, entry) != (position.ledger, position.entry):
        return (ledger, entry) < (position.ledger, position.entry)
    return position.batch_index < 0 or batch_index <= position.batch_index
