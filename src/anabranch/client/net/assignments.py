"""Assignments as brokers send them."""

from __future__ import annotations

from anabranch.client.decide.layout_checks import ID_MAX, SEGMENTS_MAX
from anabranch.errors import LayoutError, RemoteProtocolError
from anabranch.model.assignment import UNCOUNTED, AssignedSegment, Assignment
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb


def assignment_from_wire(wire: pb.ScalableConsumerAssignment) -> Assignment:
    """The assignment in a response or in a pushed update; RemoteProtocolError if it is impossible."""
    if len(wire.segments) > SEGMENTS_MAX:
        raise RemoteProtocolError(f"the broker assigned {len(wire.segments)} segments")
    try:
        segments = tuple(
            AssignedSegment(
                segment.segment_id,
                HashRange(segment.hash_start, segment.hash_end),
                segment.segment_topic,
                tuple(HashRange(bucket.start, bucket.end) for bucket in segment.bucket_ranges),
            )
            for segment in wire.segments
        )
        leaving = tuple(
            (part.segment_id, tuple(HashRange(slots.start, slots.end) for slots in part.ranges))
            for part in wire.leaving
        )
    except LayoutError as error:
        raise RemoteProtocolError(f"the broker sent an impossible assignment: {error}") from error
    ids = {segment.segment_id for segment in segments}
    if len(ids) < len(segments) or max(ids, default=0) > ID_MAX:
        raise RemoteProtocolError("the broker assigned a segment twice, or one with an impossible id")
    generation = wire.generation if wire.HasField("generation") else UNCOUNTED
    return Assignment(wire.layout_epoch, generation, segments, wire.positions, leaving, wire.awaits)
