"""What a topic gives back to the disk: segments that nobody needs, and how much of the others.

A limit says what must stay of what is acknowledged; beyond either of them it goes, the oldest first. Pure:
the leader carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.controller.coordinator import finished_by_group, has_cursors, undrained
from anabranch.metadata.records import Retention, SubscriptionRecord
from anabranch.model.layout import Layout

Sizes = Mapping[int, int]
"""Bytes by segment, as far as owners say."""

NO_SIZES: Sizes = {}


def prunable(
    layout: Layout,
    subscriptions: Iterable[SubscriptionRecord],
    limits: Retention,
    now_ms: int,
    sizes: Sizes = NO_SIZES,
) -> tuple[int, ...]:
    """Sealed segments that nobody needs any more and that are beyond a limit, ancestors of each included.

    Those that are old go; then others, as long as what is left of the topic is large enough. One whose size
    is not known counts for nothing, and stays. A checkpoint group holds what its members say they have not
    read; what they cannot tell, and what comes before a checkpoint that nobody reads from, is left to the
    limits.
    """
    needed = _needed(layout, subscriptions)
    unneeded = [segment for segment in layout.sealed if segment.id not in needed]  # Parents come first.
    gone: set[int] = set()
    if limits.time_s is not None:
        sealed_until_ms = now_ms - int(limits.time_s * 1000)
        for segment in unneeded:
            if segment.sealed_ms <= sealed_until_ms and gone.issuperset(segment.parents):
                gone.add(segment.id)
    if limits.size_bytes is not None:
        left = _total(layout, sizes) - sum(sizes.get(id_, 0) for id_ in gone)
        for segment in unneeded:
            known = segment.id in sizes and segment.id not in gone and gone.issuperset(segment.parents)
            if known and left - sizes[segment.id] >= limits.size_bytes:
                gone.add(segment.id)
                left -= sizes[segment.id]
    return tuple(sorted(gone))


def _needed(layout: Layout, subscriptions: Iterable[SubscriptionRecord]) -> set[int]:
    needed: set[int] = set()
    for record in subscriptions:
        if record.type == "CHECKPOINT":
            finished = finished_by_group(record) if record.consumers else None
            needed |= set() if finished is None else {s.id for s in layout.sealed} - finished
        elif has_cursors(record) or record.consumers:
            needed |= {segment.id for segment in undrained(record, layout)}
    return needed


def kept_sizes(layout: Layout, limits: Retention, sizes: Sizes) -> dict[int, int]:
    """How many bytes each active segment has to keep so that the topic keeps enough; none where all stays.

    Each gives up the same part of what it has. Sealed segments go as a whole, or stay.
    """
    if limits.size_bytes is None:
        return {}
    excess = _total(layout, sizes) - limits.size_bytes
    active = {segment.id: sizes[segment.id] for segment in layout.active if segment.id in sizes}
    held = sum(active.values())
    if excess <= 0 or held == 0:
        return {}
    keep = max(0, held - excess)
    return {id_: -(-size * keep // held) for id_, size in active.items()}


def _total(layout: Layout, sizes: Sizes) -> int:
    return sum(size for id_, size in sizes.items() if id_ in layout.segments)
