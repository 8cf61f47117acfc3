"""Which segments of a group wait, for which buckets of which ancestors, and which consumers read those.

Pure, and only for operators: no decision depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.controller.decide.groups import finished_by_group, open_parts
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.assignment import bucket_owners
from anabranch.model.drains import Ranges, covers, union
from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout, Segment


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """Buckets of an ancestor that are not drained and so hold a segment back, with their readers."""

    segment_id: int
    buckets: Ranges
    consumers: tuple[str, ...]


def waiting(record: SubscriptionRecord, layout: Layout) -> dict[int, tuple[WaitsFor, ...]]:
    """Each segment that is held back, at least in part, with the ancestors it waits for."""
    drained = finished_by_group(record) if record.type == "CHECKPOINT" else frozenset(record.drained)
    if drained is None or record.type == "QUEUE":
        return {}
    parts = open_parts(record)
    blockers = {
        segment.id: _blocker(record, segment, parts.get(segment.id, ()))
        for segment in layout.sealed
        if segment.id not in drained
    }
    found = {}
    for id_ in sorted(layout.segments):
        behind = sorted(layout.ancestors(id_) - drained)
        if behind:
            found[id_] = tuple(blockers[ancestor] for ancestor in behind)
    return found


def _blocker(record: SubscriptionRecord, segment: Segment, drained: Ranges) -> WaitsFor:
    """The buckets of a sealed segment that are not drained, with their readers."""
    readers = sorted(
        name
        for name, consumer in record.consumers.items()
        if any(held.segment_id == segment.id for held in consumer.segments)
    )
    buckets = bucket_ranges(segment.bucket_splits)
    behind = [at for at, bucket in enumerate(buckets) if not covers(drained, bucket)]
    owners = bucket_owners(len(buckets), readers)
    return WaitsFor(
        segment.id,
        union(buckets[at] for at in behind),
        tuple(sorted({owners[at] for at in behind if owners})),
    )
