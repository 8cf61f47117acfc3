"""Which segments an ordered subscription may read, by the definition rather than by `assign`."""

from __future__ import annotations

from anabranch.model.drains import NO_PARTS, Parts, open_buckets, open_slots
from anabranch.model.layout import Layout, Segment


def ready_segments(layout: Layout, drained: frozenset[int], parts: Parts = NO_PARTS) -> tuple[Segment, ...]:
    """The segments with an open bucket that are active or not drained, by range."""
    slots = open_slots(layout, drained, parts)
    found = (
        segment
        for id_, segment in layout.segments.items()
        if open_buckets(segment, slots[id_]) and (segment.active or id_ not in drained)
    )
    return tuple(sorted(found, key=lambda segment: (segment.range, segment.id)))
