"""What a topic gives back to the disk: segments that nobody needs, and how much of the others.

A limit says what must stay of what is acknowledged; beyond either of them it goes, the oldest first. Pure:
the leader carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.controller.decide.groups import finished_by_group, has_cursors, undrained
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

    Beyond the size is what comes before enough that is newer. A segment whose size is not known counts for
    nothing, and stays. A checkpoint group holds what its members say they have not read; what they cannot
    tell, and what comes before a checkpoint that nobody reads from, is left to the limits.
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

    Each gives up the same part of what it has. What sealed segments hold is older: as long as somebody needs
    it, it must not cost what came last.
    """
    active = {segment.id: sizes[segment.id] for segment in layout.active if segment.id in sizes}
    held = sum(active.values())
    if limits.size_bytes is None or held <= limits.size_bytes:
        return {}
    return {id_: -(-size * limits.size_bytes // held) for id_, size in active.items()}
