"""Backlogs of logs and subscriptions, old entries, and properties of subscriptions, for admin calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from anabranch.broker.browsing.positions import ordinal_from
from anabranch.broker.catalog.trimming import first_kept, trim
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.subscription.skipping import skip_entries
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.ledger.storage import SegmentLog
from anabranch.model.ids import Position
from anabranch.model.limits import check_properties
from anabranch.model.policies.retention import Retention
from anabranch.model.reports.logs import BacklogAnalysis, MessageIdBody

SLICE_ENTRIES: Final = 10_000
"""Entries counted in one turn of the event loop."""

ENTRIES_MAX: Final = 1_000_000
"""Entries after which a count ends and says so."""


async def analyze(log: ServedLog, subscription: Subscription, start: object) -> BacklogAnalysis:
    """Count the pending entries and messages, from a message id on or all of them, without reading them."""
    acks, extent = subscription.cursor.acks, log.log.extent
    first = acks.mark if start is None else max(acks.mark, ordinal_from(extent, start))
    end = extent.next_ordinal
    ordinal = first = acks.next_pending(max(first, extent.first_ordinal))
    entries = messages = 0
    last = first
    while entries < ENTRIES_MAX and (found := acks.pending_from(ordinal, end, SLICE_ENTRIES)):
        entries += len(found)
        for one in found:
            left = acks.remaining(one)
            messages += extent.count_of(one) if left is None else left.bit_count()
        last, ordinal = found[-1], found[-1] + 1
        await asyncio.sleep(0)
    return BacklogAnalysis(
        entries=entries,
        messages=messages,
        filter_accepted_entries=entries,
        filter_accepted_messages=messages,
        aborted=bool(acks.pending_from(ordinal, end, 1)),
        first_position=_text(log, first) if entries else "",
        last_position=_text(log, last) if entries else "",
    )


def _text(log: ServedLog, ordinal: int) -> str:
    position = log.log.extent.position_of(ordinal)
    return f"{position.ledger}:{position.entry}"


def size_after(log: SegmentLog, last: MessageIdBody) -> int:
    """Return the stored bytes behind a message; all bytes for the ledger -1, as in Pulsar."""
    extent = log.extent
    after = extent.ordinal_of(Position(last.ledger_id, last.entry_id + 1))
    # Stored entries may have heads, which the size of the log does not count: take the same share of both.
    whole = extent.bytes_between(extent.first_ordinal, extent.next_ordinal)
    return extent.size_bytes * extent.bytes_between(after, extent.next_ordinal) // max(whole, 1)


async def skip_next(log: ServedLog, subscription: Subscription, count: int) -> int:
    """Acknowledge the next `count` entries; returns how many of them the log does not have."""
    acks, end = subscription.cursor.acks, log.log.extent.next_ordinal
    if subscription.backing.spilled_bytes:
        with log.use.call():
            skipped = acks.pending_from(acks.mark, end, max(count, 0))
            await skip_entries(subscription, skipped)
        return count - len(skipped)
    ordinal = acks.next_pending(acks.mark)
    while count > 0 and ordinal < end:
        ordinal = acks.next_pending(ordinal + 1)
        count -= 1
    await subscription.seek(min(ordinal, end))
    return count


async def drop_old(log: ServedLog, limits: Retention, now_ms: int) -> None:
    """Drop the ledgers that every subscription has acknowledged and retention does not keep."""
    with log.use.call():
        await trim(log.log, first_kept(log.log, limits, now_ms))
    for subscription in tuple(log.subscriptions.values()):
        subscription.pass_trimmed()


async def truncate(log: ServedLog) -> None:
    """Acknowledge all entries for every durable subscription, and drop all ledgers but the last."""
    end = log.log.extent.next_ordinal
    with log.use.call():
        for subscription in [one for one in log.subscriptions.values() if one.durable]:
            await subscription.seek(end)
        await trim(log.log, end)


async def replace_properties(subscription: Subscription, properties: Mapping[str, str]) -> None:
    """Give a subscription these properties and no others, durably."""
    check_properties("a subscription", properties)
    subscription.cursor.set_properties(properties)
    await subscription.cursor.flush()
