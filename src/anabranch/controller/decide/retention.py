"""Decides which sealed segments of a topic are dropped, and how much each active segment keeps. Pure.

Acknowledged data is kept within the limits of time and size; beyond either limit the oldest data goes first.
The leader carries the decisions out.

Example: the size limit is 100 bytes. If the active segments 3 and 4 hold 60 bytes each, `kept_sizes` lets
each keep 50, and `prunable` drops every sealed segment that no subscription needs. If they hold 30 each, the
newest sealed segment stays at any size, because newer data alone has only 60 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.controller.decide.groups import finished_by_group, has_cursors
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.layout import Layout
from anabranch.model.policies.retention import Retention

Sizes = Mapping[int, int]
"""Bytes by segment. Segments whose owner did not answer are missing."""

NO_SIZES: Sizes = {}


def prunable(
    layout: Layout,
    subscriptions: Iterable[SubscriptionRecord],
    limits: Retention,
    now_ms: int,
    sizes: Sizes = NO_SIZES,
) -> tuple[int, ...]:
    """Return the sealed segments that no subscription needs and that exceed a limit; ancestors go first.

    A segment exceeds the size limit if newer data alone reaches it. A segment of unknown size stays, and does
    not count. A checkpoint group needs the segments that its members report as unread; without reports, or
    without members, only the limits count.
    """
    needed = _needed(layout, subscriptions)
    beyond = _old(layout, limits, now_ms) | _too_much(layout, limits, sizes)
    gone: set[int] = set()
    for segment in layout.sealed:  # Parents come first.
        if segment.id in beyond - needed and gone.issuperset(segment.parents):
            gone.add(segment.id)
    return tuple(sorted(gone))


def _old(layout: Layout, limits: Retention, now_ms: int) -> set[int]:
    if limits.time_s is None:
        return set()
    sealed_until_ms = now_ms - int(limits.time_s * 1000)
    return {segment.id for segment in layout.sealed if segment.sealed_ms <= sealed_until_ms}


def _too_much(layout: Layout, limits: Retention, sizes: Sizes) -> set[int]:
    found: set[int] = set()
    if limits.size_bytes is None:
        return found
    newer = sum(sizes.get(segment.id, 0) for segment in layout.active)
    for segment in sorted(layout.sealed, key=lambda segment: (segment.sealed_ms, segment.id), reverse=True):
        if segment.id in sizes:
            if newer >= limits.size_bytes:
                found.add(segment.id)
            newer += sizes[segment.id]
    return found


def _needed(layout: Layout, subscriptions: Iterable[SubscriptionRecord]) -> set[int]:
    sealed = {segment.id for segment in layout.sealed}
    needed: set[int] = set()
    for record in subscriptions:
        if record.type == "CHECKPOINT":
            finished = finished_by_group(record) if record.consumers else None
            needed |= set() if finished is None else sealed - finished
        elif has_cursors(record) or record.consumers:
            needed |= sealed.difference(record.drained)
    return needed


def kept_sizes(layout: Layout, limits: Retention, sizes: Sizes) -> dict[int, int]:
    """Return the bytes that each active segment must keep for the topic's size limit; empty if all stays."""
    # Sealed segments do not count: old data that a subscription needs must not displace the newest data.
    active = {segment.id: sizes[segment.id] for segment in layout.active if segment.id in sizes}
    held = sum(active.values())
    if limits.size_bytes is None or held <= limits.size_bytes:
        return {}
    return {id_: -(-size * limits.size_bytes // held) for id_, size in active.items()}
