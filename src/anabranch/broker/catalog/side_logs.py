"""The side logs of all open stores: which subscriptions they belong to, and which of them are garbage.

A side log that no note of a cursor names is garbage: a crash came between a change of the note and the
deletion. This module must not know how entries are spilled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from anabranch.broker.catalog.stores import Stores
from anabranch.broker.dispatch.spilled import side_logs_in
from anabranch.broker.serving.subscription.acknowledging import backlog_messages
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import SegmentLog


class Spilled(NamedTuple):
    """The pending entries in side logs, and the bytes of these logs."""

    entries: int
    size_bytes: int


def side_logs_of(log: SegmentLog) -> list[str]:
    """Return the names of the side logs of all subscriptions of a log."""
    return [name for cursor in log.cursors.values() if cursor.note for name in side_logs_in(cursor.note)]


def spilled(stores: Stores, cursor: Cursor) -> Spilled:
    """Return the spilled entries of a durable cursor, whether or not its log is loaded."""
    names = side_logs_in(cursor.note) if cursor.note else ()
    logs = [log for name in names if (log := stores.get(name)) is not None]
    ends = [(own.acks, log.extent.next_ordinal) for log in logs for own in log.cursors.values()]
    entries = sum(acks.pending_count(end) for acks, end in ends)
    return Spilled(entries, sum(log.extent.size_bytes for log in logs))


def spilled_bytes(stores: Stores, log: SegmentLog) -> int:
    """Return the bytes of all side logs of a log."""
    return sum(spilled(stores, cursor).size_bytes for cursor in log.cursors.values())


def whole_backlog(stores: Stores, log: SegmentLog, cursor: Cursor) -> int:
    """Return how many messages a cursor has not acknowledged; a spilled entry counts as an average one."""
    extent, entries = log.extent, spilled(stores, cursor).entries
    stored = extent.next_ordinal - extent.first_ordinal
    messages = extent.next_index - extent.first_index
    return backlog_messages(log, cursor) + (round(entries * messages / stored) if stored else entries)


def named_side_logs(stores: Stores) -> frozenset[str]:
    """Return the names of all side logs that are in use."""
    return frozenset(name for log in _logs(stores) for name in side_logs_of(log))


async def delete_garbage(stores: Stores) -> None:
    """Delete the side logs that no note names."""
    for storage in tuple(stores.opened.values()):
        for name in storage.side_names():
            # Looked up again for each: a subscription may have named the log while another one was deleted.
            if name not in named_side_logs(stores):
                await storage.delete(name)


def _logs(stores: Stores) -> Iterator[SegmentLog]:
    for name in stores.names():
        log = stores.get(name)
        if log is not None:
            yield log
