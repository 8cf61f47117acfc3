"""Converts between a topic's record and its layout."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from anabranch.metadata.records import PrunedRecord, RangeRecord, SegmentRecord, TopicRecord
from anabranch.model.layout import Layout, Segment, SegmentState
from anabranch.model.ranges import HashRange
from anabranch.model.scaling.pruned import PrunedSegment


def layout_of(record: TopicRecord) -> Layout:
    """The layout in a topic's record."""
    return Layout(
        record.epoch,
        record.next_segment_id,
        {segment.segment_id: _segment(segment) for segment in record.segments.values()},
        {id_: _pruned(id_, pruned) for id_, pruned in record.pruned.items()},
    )


def with_layout(record: TopicRecord, layout: Layout) -> TopicRecord:
    """The record with another layout."""
    return msgspec.structs.replace(
        record,
        epoch=layout.epoch,
        next_segment_id=layout.next_id,
        segments={id_: _segment_record(layout.segments[id_]) for id_ in sorted(layout.segments)},
        pruned={
            id_: PrunedRecord(pruned.range.start, pruned.range.end, pruned.next_index, pruned.children)
            for id_, pruned in sorted(layout.pruned.items())
        },
    )


def with_properties(record: TopicRecord, changes: Mapping[str, str | None]) -> TopicRecord:
    """The record with these properties changed; None removes a property."""
    after = {**record.properties, **changes}
    return msgspec.structs.replace(record, properties={k: v for k, v in after.items() if v is not None})


def _pruned(id_: int, record: PrunedRecord) -> PrunedSegment:
    return PrunedSegment(id_, HashRange(record.start, record.end), record.child_ids, record.next_index)


def _segment(record: SegmentRecord) -> Segment:
    return Segment(
        id=record.segment_id,
        range=HashRange(record.hash_range.start, record.hash_range.end),
        state=SegmentState(record.state),
        parents=record.parent_ids,
        children=record.child_ids,
        created_epoch=record.created_at_epoch,
        sealed_epoch=record.sealed_at_epoch,
        created_ms=record.created_at_ms,
        sealed_ms=record.sealed_at_ms,
        bucket_splits=record.entry_bucket_splits,
        legacy_topic=record.legacy_topic_name,
        store=record.store,
    )


def _segment_record(segment: Segment) -> SegmentRecord:
    return SegmentRecord(
        segment_id=segment.id,
        hash_range=RangeRecord(start=segment.range.start, end=segment.range.end),
        state="ACTIVE" if segment.active else "SEALED",
        parent_ids=segment.parents,
        child_ids=segment.children,
        created_at_epoch=segment.created_epoch,
        sealed_at_epoch=segment.sealed_epoch,
        created_at_ms=segment.created_ms,
        sealed_at_ms=segment.sealed_ms,
        entry_bucket_splits=segment.bucket_splits,
        legacy_topic_name=segment.legacy_topic,
        store=segment.store,
    )
