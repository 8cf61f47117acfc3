"""Skips entries of a subscription: they are acknowledged for its consumers, which stay connected.

A seek would disconnect them, and drop the side logs with entries that should not be skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.broker.serving.delivery.log_reader import FETCH_BYTES_MAX
from anabranch.broker.serving.subscription.subscription import Subscription

SLICE_ENTRIES = 1000


async def skip_entries(subscription: Subscription, ordinals: Sequence[int]) -> None:
    """Acknowledge these entries, durably; the consumers stay."""
    subscription.cursor.acknowledge(ordinals)
    subscription.reading.acknowledged(ordinals)
    await _settle(subscription)


async def _settle(subscription: Subscription) -> None:
    """Take note of what was acknowledged, and make it durable."""
    counters, mark = subscription.counters, subscription.cursor.acks.mark
    if mark != counters.mark:
        counters.mark_set(mark)
        counters.marked_ms = subscription.reading.path.clock.wall_ms()
    subscription.schedule()
    subscription.check_end()
    await subscription.cursor.flush()


async def skip_older(subscription: Subscription, before_ms: int) -> None:
    """Acknowledge the pending entries that were stored before that time, durably: they expire."""
    subscription.pass_trimmed()
    log, acks, stored = subscription.backing.log, subscription.cursor.acks, subscription.log.extent
    ordinal = acks.mark
    while wanted := acks.pending_from(ordinal, stored.first_ordinal, SLICE_ENTRIES):
        entries = await log.read_each(wanted, FETCH_BYTES_MAX)
        old = [one for one in entries if one.timestamp_ms < before_ms]
        subscription.counters.messages_expired += sum(one.count for one in old)
        await skip_entries(subscription, [one.ordinal for one in old])
        ordinal = entries[-1].ordinal + 1 if entries else wanted[-1] + 1
    await expire_up_to(subscription, stored.ordinal_at_time(before_ms))


async def expire_up_to(subscription: Subscription, end: int, left: int | None = None) -> None:
    """As `skip_up_to`, for old messages, and for those of the entry `end` without a bit in `left`."""
    subscription.counters.expired_ms = subscription.reading.path.clock.wall_ms()
    subscription.counters.messages_expired += await skip_up_to(subscription, end)
    if left is not None and end not in subscription.cursor.acks:
        subscription.counters.messages_expired += await _skip_part(subscription, end, left)


async def _skip_part(subscription: Subscription, ordinal: int, remaining: int) -> int:
    """Acknowledge the messages of a pending entry without a bit in `remaining`; returns their number."""
    acks, count = subscription.cursor.acks, subscription.log.extent.count_of(ordinal)
    before = acks.remaining(ordinal)
    pending = (1 << count) - 1 if before is None else before
    subscription.reading.acknowledge_part(ordinal, remaining, count)
    await _settle(subscription)
    return (pending & ~remaining).bit_count()


async def skip_up_to(subscription: Subscription, end: int) -> int:
    """Acknowledge the pending entries below `end` that the log still has, durably; returns their messages."""
    extent = subscription.log.extent
    acks, ordinal, messages = subscription.cursor.acks, extent.first_ordinal, 0
    while wanted := acks.pending_from(ordinal, end, SLICE_ENTRIES):
        messages += sum(extent.count_of(one) for one in wanted)
        await skip_entries(subscription, wanted)
        ordinal = wanted[-1] + 1
    return messages
