"""The order of a reader that keeps its positions itself: which segments it may read. Pure.

Also the arithmetic of positions inside one segment. `ReadPositions` knows how far a reader is.

Example: segment 0 is sealed and has the children 1 and 2. Only segment 0 is readable at first; when it is
finished, 1 and 2 are. The position (ledger 5, entry 20, batch index 1) covers the messages at index 0 and 1
of that entry, so of its four messages the bits 0b1100 are left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.client.received import Received
from anabranch.model.drains import ALL, NO_PARTS, Parts, Ranges, intersection, open_slots
from anabranch.model.ids import EARLIEST, MessageId
from anabranch.model.layout import Layout, Segment


def readable(
    layout: Layout,
    finished: Collection[int],
    parts: Parts = NO_PARTS,
    mine: Mapping[int, Ranges] | None = None,
) -> tuple[Segment, ...]:
    """Return the segments to read now, oldest first: unfinished ones whose ancestors are all finished.

    A member of a group reads the slots `mine`; it may begin when its slots are finished in all ancestors.
    `parts` has the finished slots of ancestors that are not finished as a whole.
    """
    done = frozenset(finished)
    slots = open_slots(layout, done, parts)
    found = []
    for id_ in sorted(layout.segments):
        wanted = ALL if mine is None else mine.get(id_, ())
        if id_ not in done and wanted and intersection(slots[id_], wanted) == wanted:
            found.append(layout.segments[id_])
    return tuple(found)


def before_first(segment: int, next_index: int = -1) -> MessageId:
    """Return the position that covers no message of a segment, or none from `next_index` on."""
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


def place(entry: Received, index: int) -> MessageId:
    """Return the position that covers an entry up to the message at `index`."""
    ledger, position = entry.position
    return MessageId(
        entry.source.segment_id,
        ledger,
        position,
        index if entry.batch_size else -1,
        entry.batch_size,
        next_index=-1 if entry.index is None else entry.index - entry.count + index + 2,
    )
