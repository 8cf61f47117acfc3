"""Finds one message of a log: by time, by index, by its id, or by the acknowledgements of a subscription.

Bulk readers plan by message indexes, and cursors and checkpoints name entries; a log knows both. This module
must not know consumers and commands.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.errors import DamagedEntriesError, RemoteProtocolError
from anabranch.ledger.storage import SegmentLog
from anabranch.model.ids import Position
from anabranch.protocol.outer import read_outer

SCANNED_ENTRIES_MAX = 10_000
"""Entries that are opened to compare their publish time; clocks that differ more are not corrected."""

_READ_ENTRIES = 100
_READ_BYTES = 2**20


class FoundMessage(NamedTuple):
    """A message by its index, and by its entry and the number in it; the end of a log has both, too."""

    index: int  # type: ignore[assignment]  # a position in the log here, not a tuple's method
    position: Position
    batch_index: int
    batch_size: int
    """Messages in the entry; 0 at the end."""


def at_index(log: SegmentLog, index: int) -> FoundMessage:
    """Return the message at an index; the first stored one if it was removed, the end if it is to come."""
    extent = log.extent
    ordinal = extent.ordinal_of_index(index)
    index = min(max(index, extent.index_of(ordinal)), extent.next_index)
    number = index - extent.index_of(ordinal)
    return FoundMessage(index, extent.position_of(ordinal), number, extent.count_of(ordinal))


def after_id(log: SegmentLog, position: Position, batch_index: int) -> FoundMessage:
    """Return the message after an id; a batch index of -1 stands for the whole entry."""
    extent = log.extent
    ordinal = extent.ordinal_of(position)
    index = extent.index_of(ordinal)
    if ordinal < extent.next_ordinal and extent.position_of(ordinal) == position:
        count = extent.count_of(ordinal)
        index += count if batch_index < 0 else min(batch_index + 1, count)
    return at_index(log, index)


def first_unacknowledged(served: ServedLog, subscription: str) -> FoundMessage | None:
    """Return the first message that a durable subscription did not acknowledge; None if it does not exist."""
    cursor = served.log.cursors.get(subscription)
    if cursor is None:
        return None
    mark = max(cursor.acks.mark, served.log.extent.first_ordinal)
    left = cursor.acks.remaining(mark)
    passed = 0 if left is None else (left & -left).bit_length() - 1
    return at_index(served.log, served.log.extent.index_of(mark) + passed)


async def at_time(log: SegmentLog, time_ms: int) -> FoundMessage:
    """Return the first message that was published at this time or later, or the end.

    The log is searched by the time of storing. An entry is stored after it was published, so entries that
    were stored then but published earlier are passed.
    """
    extent = log.extent
    begin = ordinal = extent.ordinal_at_time(time_ms)
    while ordinal < extent.next_ordinal and ordinal < begin + SCANNED_ENTRIES_MAX:
        try:
            entries = await log.read(ordinal, _READ_ENTRIES, _READ_BYTES)
        except DamagedEntriesError:
            break
        for entry in entries:
            if _published_ms(entry.data) >= time_ms:
                return at_index(log, entry.index)
            ordinal = entry.ordinal + 1
        if not entries:
            break
    return at_index(log, extent.index_of(ordinal if ordinal >= extent.next_ordinal else begin))


def _published_ms(entry: bytes) -> int:
    try:
        return read_outer(entry).publish_time
    except RemoteProtocolError:
        # A reader reports the entry; passing it here would hide it.
        return 2**63
